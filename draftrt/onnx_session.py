"""ONNX Runtime as every stage loads it: it tells nobody, and leaves nothing in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from draftrt.errors import BackendError
from draftrt.packages import absence_in

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
