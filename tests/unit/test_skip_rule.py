"""The skip rule of tests/conftest.py, run on a small suite of its own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

@pytest.mark.gpu
def test_gpu(): assert False, "ran"

@pytest.mark.trt
def test_trt(): assert False, "ran"

def test_plain(): pass
"""


@pytest.fixture
def report(root: Path, tmp_path: Path) -> str:
    """What pytest prints for SUITE under the real conftest."""
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    shutil.copy(root / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    ).stdout


def test_a_marked_test_runs_or_is_skipped_with_its_reason(report: str) -> None:
    gpu_skipped = "GPU" in report or "NVIDIA driver" in report
    assert gpu_skipped != ("FAILED tests/test_suite.py::test_gpu" in report), report
    has_tensorrt = any(importlib.util.find_spec(name) for name in ("tensorrt_rtx", "tensorrt"))
    assert has_tensorrt == ("FAILED tests/test_suite.py::test_trt" in report), report
    assert has_tensorrt != ("neither tensorrt_rtx nor tensorrt is installed" in report), report
    assert "1 passed" in report, report
