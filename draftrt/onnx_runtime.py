"""ONNX Runtime as every stage loads it: it tells nobody, and leaves nothing in the user's cache."""

from __future__ import annotations

import os
from types import ModuleType

from draftrt.errors import BackendError

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
        raise BackendError(
            f"the onnxruntime backend needs the onnxruntime package: {error}",
            hint="pip install 'draftrt[ort]'",
        ) from error
    module: ModuleType = onnxruntime
    module.disable_telemetry_events()
    return module
