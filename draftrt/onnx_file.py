"""An ONNX file read for its nodes, and a damaged one told as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftrt.errors import BundleError


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
