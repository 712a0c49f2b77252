"""ONNX files and ONNX Runtime as every stage opens them."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from draftrt.backends import absence_in
from draftrt.errors import BackendError, BundleError

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"  # read when the library is loaded, so set before that


def load_onnxruntime() -> ModuleType:
    """Import and return ``onnxruntime``, its telemetry off.

    Raises:
        BackendError: it is not installed.
    """
    os.environ.setdefault(NO_TELEMETRY, "1")
    try:
        import onnxruntime
    except ImportError as error:
        if absent := absence_in(error, what="the onnxruntime backend"):
            raise absent from error
        raise BackendError(
            f"the package onnxruntime cannot be loaded: {error}",
            hint="pip install --force-reinstall 'draftrt[ort]'",
        ) from error
    module: ModuleType = onnxruntime
    module.disable_telemetry_events()
    return module


def point_to_weights(options: Any, folder: Path) -> list[Any]:
    """Tell a session of a graph's content where its external data lies.

    ONNX Runtime refuses symbolic links that leave the folder, as in a Hugging Face cache; their
    files are given mapped.

    Args:
        options: session options.
        folder: of the data.

    Returns:
        What has to live until the session is made.
    """
    links = [one for one in sorted(folder.glob("*.data")) if one.is_symlink()]
    if not links:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
        return []
    mapped = [np.memmap(one, np.uint8, "r") for one in links]
    options.add_external_initializers_from_files_in_memory(
        [one.name for one in links], mapped, [one.size for one in mapped]
    )
    return mapped


def read_onnx(path: Path) -> Any:
    """Return an ONNX file as ``onnx.ModelProto``, its external data not loaded.

    Raises:
        BundleError: the file cannot be read, or is no ONNX file.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BundleError(
            f"{path}: is no ONNX file: {error!s:.100}", hint="restore the file, or export again"
        ) from error
    if not model.graph.node:
        raise BundleError(f"{path}: holds no graph", hint="restore the file, or export again")
    return model
