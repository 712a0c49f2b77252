"""ONNX files and ONNX Runtime as every stage opens them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from draftrt.backends import import_package
from draftrt.errors import BackendError, BundleError

# How ONNX Runtime's CPU kernels multiply with int4 and int8 weights. Rounding the activations to
# int8, in blocks of 32, is its default and what makes them fast: 6 and 3 times float32 products.
QUANTISED_PRODUCTS = "session.qdq_matmulnbits_accuracy_level"
AS_WRITTEN, INT8 = "1", "4"
WITHOUT_QUANTISED = "session.disable_quant_qdq"  # folds dequantised weights into float32 ones
CPU = "CPUExecutionProvider"
NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"  # read when the library is loaded, so set before that


def load_onnxruntime() -> ModuleType:
    """Import and return ``onnxruntime``, its telemetry off.

    Raises:
        BackendError: it is not installed, or cannot be loaded.
    """
    os.environ.setdefault(NO_TELEMETRY, "1")
    module = import_package("onnxruntime", what="the onnxruntime backend")
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


def open_session(
    model: Path | bytes,
    weights: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    provider: str = CPU,
    threads: int = 1,
    **options: Any,
) -> Any:
    """Return an ONNX Runtime session of a graph; its threads never spin.

    Args:
        model: ONNX file, or the content of one.
        weights: folder of the external data; None for that of a file.
        settings: ONNX Runtime's session settings by their keys.
        provider: execution provider.
        threads: threads of an operator.
        options: attributes of ``onnxruntime.SessionOptions``.

    Raises:
        BackendError: onnxruntime is missing.
        Exception: whatever ONNX Runtime raises about the graph; see `onnxruntime_errors`.
    """
    runtime = load_onnxruntime()
    made = runtime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in options.items():
        setattr(made, name, value)
    for key, value in (settings or {}).items():
        made.add_session_config_entry(key, value)
    mapped = [] if weights is None else point_to_weights(made, weights)
    content: str | bytes = str(model) if isinstance(model, Path) else model
    if weights is not None and isinstance(model, Path):
        content = model.read_bytes()
    session = runtime.InferenceSession(content, made, providers=[provider])
    del mapped  # which it needed until now
    return session


@contextmanager
def onnxruntime_errors(what: Path | str) -> Iterator[None]:
    """Turn whatever ONNX Runtime raises about a graph into an error of its own.

    Raises:
        BackendError: ONNX Runtime refuses the graph, or fails while it runs.
    """
    onnxruntime = load_onnxruntime()
    kinds = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    own = tuple(one for one in kinds if isinstance(one, type) and issubclass(one, Exception))
    try:
        yield
    except own as error:
        raise BackendError(
            f"{what}: ONNX Runtime refuses it: {error!s:.400}",
            hint="the file may be damaged: restore it, or export again",
        ) from error


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
