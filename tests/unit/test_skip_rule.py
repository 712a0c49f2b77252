"""The skip rule of tests/conftest.py, run on a small suite of its own."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.backends import EXTRAS

SUITE = """
import pytest

@pytest.mark.gpu
def test_gpu(): assert False, "ran"

@pytest.mark.trt
def test_trt(): assert False, "ran"

@pytest.mark.needs("json", "/", "no-such-package")
def test_lacking(): assert False, "ran"

@pytest.mark.needs("json", "/")
def test_having(): assert False, "ran"

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
    assert "no-such-package is not installed" in report, report
    assert "FAILED tests/test_suite.py::test_lacking" not in report, report
    assert "FAILED tests/test_suite.py::test_having" in report, report
    assert "1 passed" in report, report


def test_nothing_is_skipped_elsewhere(root: Path) -> None:
    """Calls only: `skip`, `skipif`, and `importorskip` of what no extra brings."""
    packages = {*EXTRAS, "yaml"}
    found = []
    for path in sorted((root / "tests").rglob("*.py")):
        if path.name == "conftest.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            what, words = node.func.attr, [ast.unparse(argument) for argument in node.args]
            is_package = words and words[0].strip("'").partition(".")[0] in packages
            is_asked = what == "importorskip" and (is_package or words == ["request.param"])
            if what in ("skip", "skipif", "importorskip") and not is_asked:
                found.append(f"{path.relative_to(root)}:{node.lineno} {ast.unparse(node)}")
    assert not found, "\n".join(found)
