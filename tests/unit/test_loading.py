"""What the first import of a large library costs the rest of the process: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.validate.toys import ToyTarget, write_target

FIRST = """
import gc, sys
from draftrt.loading import first_import
before = gc.get_freeze_count()
with first_import("torch"):
    assert not gc.isenabled()
    import torch
assert gc.isenabled()
held = gc.get_freeze_count()
assert held > before + 50_000, held
with first_import("torch"):
    assert gc.isenabled()
assert gc.get_freeze_count() == held
gc.disable()
with first_import("another"):
    pass
assert not gc.isenabled()
"""
REFUSED = """
import sys
from draftrt.cli import group
try:
    group(sys.argv[1:])
except SystemExit as error:
    heavy = {"torch", "onnx", "onnxruntime", "transformers"} & set(sys.modules)
    print("loaded", sorted(heavy), "exit", error.code)
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )


def test_the_collector_keeps_away_from_the_first_import_alone() -> None:
    done = run(FIRST)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["export", "inspect"])
def test_a_refused_checkpoint_loads_no_pytorch(tmp_path: Path, command: str) -> None:
    write_target(tmp_path / "target", ToyTarget())
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}", encoding="utf-8")
    words = [str(tmp_path / "draft"), "--target", str(tmp_path / "target")]
    done = run(REFUSED, command, *words, *(["-o", str(tmp_path / "b")] * (command == "export")))
    assert done.stdout.strip() == "loaded [] exit 1", done.stderr
    assert "no *.safetensors" in done.stderr
