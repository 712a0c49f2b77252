"""What every test shares: the shipped assets, fixed seeds, and the one rule for skipping."""

from __future__ import annotations

import functools
import importlib.util
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


def take_signals() -> None:
    """Handle signals as a program in the foreground does, however the tests were started.

    A shell starts background jobs with SIGINT and SIGQUIT ignored, `nohup` ignores SIGHUP, and
    children inherit that; they inherit no handler. So a run under `nohup` lives on when the
    terminal goes, and what it starts does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(one, signal.SIG_DFL)
    for one in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(one) is signal.SIG_IGN:
            signal.signal(one, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


take_signals()

# Asked in a process of its own: a process that has touched CUDA can no longer be forked.
COUNT_DEVICES = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no NVIDIA driver (libcuda.so.1) on this machine")
status, count = cuda.cuInit(0), ctypes.c_int()
if status or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    sys.exit(f"an NVIDIA driver but no usable GPU (cuInit returned {status})")
"""


@functools.cache
def missing_gpu() -> str:
    """Why no GPU can be used here; empty when one can."""
    asked = subprocess.run(
        [sys.executable, "-c", COUNT_DEVICES], capture_output=True, text=True, check=False
    )
    return "" if asked.returncode == 0 else asked.stderr.strip() or "the GPU query crashed"


@functools.cache
def missing_tensorrt() -> str:
    """Why no TensorRT can be used here; empty when one can."""
    if any(importlib.util.find_spec(name) for name in ("tensorrt_rtx", "tensorrt")):
        return ""
    return "neither tensorrt_rtx nor tensorrt is installed"


def without_cuda() -> str:
    """Why ONNX Runtime is not the build without CUDA; empty when it is."""
    import onnxruntime

    has_it = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "ONNX Runtime is the build with CUDA" if has_it else ""


def other_file_system() -> str:
    """Why /dev/shm is no other file system than that of temporary files; empty when it is."""
    place = Path("/dev/shm")
    is_other = place.is_dir() and place.stat().st_dev != Path(tempfile.gettempdir()).stat().st_dev
    return "" if is_other else "no second file system at /dev/shm"


@functools.cache
def no_mount() -> str:
    """Why no file system can be mounted here; empty when one can."""
    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "tmpfs", place]
        if missing_program("mount") or subprocess.run(mount, capture_output=True).returncode:
            return "no right to mount a file system"
        subprocess.run(["umount", place], check=True)
    return ""


def missing_program(name: str) -> str:
    """Why a program cannot be called; empty when it can."""
    return "" if shutil.which(name) else f"{name} is not installed"


# What a test may say that it needs, and why it is not here. A package is looked for by its name.
NEEDS: dict[str, Callable[[], str]] = {
    "no GPU": lambda: "" if missing_gpu() else "there is a GPU",
    "no classic TensorRT": lambda: "" if missing_package("tensorrt") else "tensorrt is installed",
    "ONNX Runtime without CUDA": without_cuda,
    "a file system of its own at /dev/shm": other_file_system,
    "to mount": no_mount,
    "chromium": lambda: missing_program("chromium"),
    "curl": lambda: missing_program("curl"),
    "node": lambda: missing_program("node"),
    "npm": lambda: missing_program("npm"),
    "make": lambda: missing_program("make"),
    "cc": lambda: missing_program("cc"),
}


def missing_package(name: str) -> str:
    """Why a package cannot be imported; empty when it can."""
    return "" if importlib.util.find_spec(name) else f"{name} is not installed"


@functools.cache
def missing(need: str) -> str:
    """Why something that a test needs is not here; empty when it is."""
    if need in NEEDS:
        return NEEDS[need]()
    if need.startswith("/"):
        return "" if Path(need).exists() else f"no {need} on this system"
    return missing_package(need)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run. Tests only carry markers; the rule is here alone."""
    for item in items:
        for marker, why in (("gpu", missing_gpu), ("trt", missing_tensorrt)):
            if item.get_closest_marker(marker) and (reason := why()):
                item.add_marker(pytest.mark.skip(reason=reason))
        for need in [need for mark in item.iter_markers("needs") for need in mark.args]:
            if reason := missing(need):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Start every test from the same random state, alone or in a run, in any order."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - other packages still draw from the global state
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is remembered of bundles goes to a folder of this run, not to the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder with the pair that ships: tiny-target, tiny-dflash, tiny-dspark."""
    return ROOT / "tests" / "assets"
