"""What runs the graphs of a bundle, and the packages that a plain install leaves out.

What runs the graphs of a bundle: the names, and the Python module behind each.

`draftrt.backends` says which extra installs a module.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from draftrt.errors import BackendError

ONNXRUNTIME, TENSORRT_RTX, TENSORRT = "onnxruntime", "tensorrt-rtx", "tensorrt"
MODULES = {ONNXRUNTIME: "onnxruntime", TENSORRT_RTX: "tensorrt_rtx", TENSORRT: "tensorrt"}
BACKENDS = tuple(MODULES)
PLANNED = (TENSORRT_RTX, TENSORRT)  # those that run a plan, built from the graph


# Two extras may bring a package; this is the one that brings what its users here need beside it.
# A plain install brings those without an extra.
EXTRAS = {
    "jinja2": "",
    "tokenizers": "",
    "onnx": "export",
    "safetensors": "export",
    "torch": "export",
    "transformers": "hf",
    "onnxruntime": "ort",
    "polygraphy": "validate",
    "tensorrt_rtx": "rtx",
    "tensorrt": "trt",
    "cuda": "rtx",
    "llguidance": "grammar",
    "starlette": "serve",
    "uvicorn": "serve",
    "pydantic": "serve",
    "prometheus_client": "serve",
    "huggingface_hub": "hub",
}
DISTRIBUTIONS = {"cuda": "cuda-bindings"}  # where pip has another name


def missing(*packages: str) -> list[str]:
    """Return which packages are not installed; none is imported."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def require(*packages: str, what: str, extra: str = "") -> None:
    """Check that packages are installed, before work begins that would be lost without them.

    Args:
        packages: names of Python packages; they are not imported.
        what: what needs them, as the subject of a sentence.
        extra: brings all of them; empty takes those of `EXTRAS`.

    Raises:
        BackendError: some are missing; the hint names the extras.
    """
    if absent := missing(*packages):
        raise absence(*absent, what=what, extra=extra)


def import_package(module: str, *, what: str, extra: str = "") -> ModuleType:
    """Import and return a module of a package of `EXTRAS`.

    Args:
        module: its whole name.
        what: what needs it, as the subject of a sentence.
        extra: as in `require`.

    Raises:
        BackendError: the package is not installed, or cannot be loaded; the hint names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if absent := absence_in(error, what=what, extra=extra):
            raise absent from error
        package = module.partition(".")[0]
        raise BackendError(
            f"the package {DISTRIBUTIONS.get(package, package)} cannot be loaded: {error!s:.300}",
            hint=_install(extra or EXTRAS[package], "--force-reinstall "),
        ) from error


def absence(*packages: str, what: str, extra: str = "") -> BackendError:
    """Return the error that packages are not installed, with the extras that bring them."""
    extras = dict.fromkeys(filter(None, [extra] if extra else [EXTRAS[one] for one in packages]))
    called = [DISTRIBUTIONS.get(name, name) for name in packages]
    one = len(packages) == 1
    names = called[0] if one else f"{', '.join(called[:-1])} and {called[-1]}"
    return BackendError(
        f"{what} needs the package{'' if one else 's'} {names}, which {'is' if one else 'are'} "
        "not installed",
        hint=_install(",".join(extras)),
    )


def _install(extras: str, how: str = "") -> str:
    return f"pip install {how}" + (f"'draftrt[{extras}]'" if extras else "draftrt")


def absence_in(error: ImportError, *, what: str, extra: str = "") -> BackendError | None:
    """Return the error that an import failed for want of such a package; None for other ones."""
    name = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name not in EXTRAS:
        return None
    return absence(name, what=what, extra=extra)
