"""What this machine has: TensorRT packages, the NVIDIA driver, GPUs. Loads no TensorRT."""

from __future__ import annotations

import ctypes
import importlib.metadata
from dataclasses import dataclass

from draftrt.backends import EXTRAS, require
from draftrt.engines.capabilities import FACTS, Backend
from draftrt.errors import BackendError

DRIVER = "libcuda.so.1"

# CUdevice_attribute values of the driver interface; they do not change between releases.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs the driver shows.

    Attributes:
        sms: compute capability of each, as 86, 89, 120.
        missing: why there is none; empty when there is one.
    """

    sms: tuple[int, ...] = ()
    missing: str = ""


def backend_version(backend: Backend) -> str:
    """Return the installed version of the backend's package, without importing it.

    Raises:
        BackendError: the package or Polygraphy is not installed; the hint names the pip extra.
    """
    extra = EXTRAS[backend.module]
    require(backend.module, "polygraphy", what=f"backend {backend.value}", extra=extra)
    providers = importlib.metadata.packages_distributions().get(backend.module, [])
    if not providers:
        raise BackendError(
            f"backend {backend.value}: module {backend.module!r} is there, but no installed "
            "package says its version",
            hint=f"pip install --force-reinstall 'draftrt[{extra}]'",
        )
    return importlib.metadata.version(providers[0])


def find_gpus(driver: str = DRIVER) -> Gpus:
    """Ask the NVIDIA driver for its GPUs.

    Args:
        driver: shared library of the driver.
    """
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return Gpus(missing=f"no NVIDIA driver ({driver}) on this machine")
    if status := cuda.cuInit(0):
        return Gpus(missing=f"the NVIDIA driver shows no usable GPU (cuInit returned {status})")
    count = ctypes.c_int()
    if (status := cuda.cuDeviceGetCount(ctypes.byref(count))) or not count.value:
        return Gpus(missing=f"the NVIDIA driver shows no GPU (status {status})")
    return Gpus(sms=tuple(_compute_capability(cuda, index) for index in range(count.value)))


def target_sms(backend: Backend, requested: tuple[int, ...], gpus: Gpus | None) -> tuple[int, ...]:
    """Return the SMs to build for.

    TensorRT-RTX builds for any SM on any machine. Classic TensorRT times kernels on the GPU, so it
    builds for the GPU that is here and no other.

    Args:
        backend: the builder.
        requested: what the user asked for; may be empty for classic TensorRT.
        gpus: what `find_gpus` returned; needed for classic TensorRT only.

    Raises:
        BackendError: no GPU here, or another one than asked for.
    """
    if not FACTS[backend].needs_gpu:
        return requested
    if gpus is None or not gpus.sms:
        reason = gpus.missing if gpus is not None else "no GPU was looked for"
        raise BackendError(
            f"backend {backend.value}: builds only for the GPU of the machine it runs on, and "
            f"there is none: {reason}",
            hint="run this on the device, or use --backend tensorrt-rtx, which needs no GPU",
        )
    here = gpus.sms[0]
    if requested and requested != (here,):
        asked = ", ".join(f"SM{sm}" for sm in requested)
        raise BackendError(
            f"backend {backend.value}: got {asked}, expected SM{here}, the GPU of this machine",
            hint=f"leave --sm away, or run this on a machine with {asked}",
        )
    return (here,)


def _compute_capability(cuda: ctypes.CDLL, index: int) -> int:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
    )
    if failed:
        raise BackendError(f"the NVIDIA driver does not describe GPU {index} (status {failed})")
    return major.value * 10 + minor.value
