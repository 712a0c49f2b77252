"""What runs the graphs of a bundle, and the packages that a plain install leaves out.

What runs the graphs of a bundle: the names, and the Python module behind each.

`draftrt.backends` says which extra installs a module.
"""

from __future__ import annotations

import importlib.util

from draftrt.errors import BackendError

ONNXRUNTIME, TENSORRT_RTX, TENSORRT = "onnxruntime", "tensorrt-rtx", "tensorrt"
MODULES = {ONNXRUNTIME: "onnxruntime", TENSORRT_RTX: "tensorrt_rtx", TENSORRT: "tensorrt"}
BACKENDS = tuple(MODULES)
PLANNED = (TENSORRT_RTX, TENSORRT)  # those that run a plan, built from the graph


# Two extras may bring a package; this is the one that brings what its users here need beside it.
EXTRAS = {
    "onnx": "export",
    "safetensors": "export",
    "torch": "export",
    "transformers": "hf",
    "onnxruntime": "ort",
    "polygraphy": "validate",
    "tensorrt_rtx": "rtx",
    "tensorrt": "trt",
    "cuda": "rtx",
}


def require(*packages: str, what: str) -> None:
    """Check that packages are installed, before work begins that would be lost without them.

    Args:
        packages: names of Python packages; they are not imported.
        what: what needs them, as the subject of a sentence.

    Raises:
        BackendError: some are missing; the hint names the extras.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise absence(*missing, what=what)


def absence(*packages: str, what: str) -> BackendError:
    """Return the error that packages are not installed, with the extras that bring them."""
    extras = dict.fromkeys(EXTRAS[name] for name in packages)
    one = len(packages) == 1
    names = packages[0] if one else f"{', '.join(packages[:-1])} and {packages[-1]}"
    return BackendError(
        f"{what} needs the package{'' if one else 's'} {names}, which {'is' if one else 'are'} "
        "not installed",
        hint=f"pip install 'draftrt[{','.join(extras)}]'",
    )


def absence_in(error: ImportError, *, what: str) -> BackendError | None:
    """Return the error that an import failed for want of such a package; None for other ones."""
    name = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name not in EXTRAS:
        return None
    return absence(name, what=what)
