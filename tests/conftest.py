"""What every test shares: the shipped assets, fixed seeds, and the one rule for skipping."""

from __future__ import annotations

import functools
import importlib.util
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run. Tests only carry markers; the rule is here alone."""
    for item in items:
        for marker, missing in (("gpu", missing_gpu), ("trt", missing_tensorrt)):
            if item.get_closest_marker(marker) and (reason := missing()):
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
