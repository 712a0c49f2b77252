"""What is found on a machine, with and without packages, driver and GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.engines.capabilities import Backend
from draftrt.engines.environment import Gpus, find_gpus, target_sms
from draftrt.errors import BackendError

# A driver library with COUNT devices, the first of SM 8.9 and the second of SM 12.0.
DRIVER = """
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute == 75) *value = device == 40 ? 8 : 12;
    else if (attribute == 76) *value = device == 40 ? 9 : 0;
    else return 1;
    return 0;
}
"""
ASK_VERSION = """
from draftrt.engines.capabilities import Backend
from draftrt.engines.environment import backend_version
from draftrt.errors import BackendError
for backend in Backend:
    try:
        backend_version(backend)
    except BackendError as error:
        print(error)
"""


def compile_driver(folder: Path, init: int, count: int) -> str:
    source, library = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    flags = ["-shared", "-fPIC", f"-DINIT={init}", f"-DCOUNT={count}"]
    subprocess.run(["cc", *flags, "-o", library, source], check=True)
    return str(library)


def test_no_driver_is_a_reason(tmp_path: Path) -> None:
    assert find_gpus(str(tmp_path / "libcuda.so.1")).missing.startswith("no NVIDIA driver")


@pytest.mark.needs("cc")
@pytest.mark.parametrize(
    ("init", "count", "expected"),
    [
        (0, 2, Gpus(sms=(89, 120))),
        (0, 0, Gpus(missing="the NVIDIA driver shows no GPU (status 0)")),
        (100, 1, Gpus(missing="the NVIDIA driver shows no usable GPU (cuInit returned 100)")),
    ],
)
def test_the_driver_is_asked_for_its_gpus(
    tmp_path: Path, init: int, count: int, expected: Gpus
) -> None:
    assert find_gpus(compile_driver(tmp_path, init, count)) == expected


def test_a_missing_package_names_the_extra_that_installs_it(root: Path, tmp_path: Path) -> None:
    # -S leaves the installed packages out, as on a machine that has none.
    output = subprocess.run(
        [sys.executable, "-S", "-c", ASK_VERSION],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    absent = "and polygraphy, which are not installed"
    assert output.splitlines() == [
        f"backend tensorrt-rtx needs the packages tensorrt_rtx {absent}",
        "  Hint: pip install 'draftrt[rtx]'",
        f"backend tensorrt needs the packages tensorrt {absent}",
        "  Hint: pip install 'draftrt[trt]'",
    ]


def test_rtx_builds_for_any_sm_without_looking_for_a_gpu() -> None:
    assert target_sms(Backend.TENSORRT_RTX, (86, 120), None) == (86, 120)


@pytest.mark.parametrize("requested", [(), (87,)])
def test_classic_builds_for_the_gpu_that_is_here(requested: tuple[int, ...]) -> None:
    assert target_sms(Backend.TENSORRT, requested, Gpus(sms=(87,))) == (87,)


@pytest.mark.parametrize(
    ("requested", "gpus", "text"),
    [
        ((), Gpus(missing="no NVIDIA driver"), "there is none: no NVIDIA driver"),
        ((90,), Gpus(sms=(89,)), "got SM90, expected SM89, the GPU of this machine"),
        ((89, 90), Gpus(sms=(89,)), "got SM89, SM90, expected SM89"),
    ],
)
def test_classic_is_refused_without_the_gpu_that_it_builds_for(
    requested: tuple[int, ...], gpus: Gpus, text: str
) -> None:
    with pytest.raises(BackendError) as caught:
        target_sms(Backend.TENSORRT, requested, gpus)
    assert text in str(caught.value)
