"""What a command loads, and what its end costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toys.models import ToyTarget
from tests.toys.toys import write_target

COLLECTED = """
import atexit, gc
from draftrt.cli import main
atexit.register(lambda: print("held", gc.get_freeze_count() > 1000, gc.isenabled()))
main()
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


def test_the_end_of_a_command_collects_nothing() -> None:
    done = run(COLLECTED, "--version")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "held True True"), done.stderr


@pytest.mark.parametrize("command", ["export", "inspect", "plan"])
def test_a_refused_checkpoint_loads_no_pytorch(tmp_path: Path, command: str) -> None:
    write_target(tmp_path / "target", ToyTarget())
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}", encoding="utf-8")
    words = [str(tmp_path / "draft"), "--target", str(tmp_path / "target")]
    done = run(REFUSED, command, *words, *(["-o", str(tmp_path / "b")] * (command == "export")))
    assert done.stdout.strip() == "loaded [] exit 1", done.stderr
    assert "no *.safetensors" in done.stderr


def test_a_closed_standard_error_changes_no_outcome(tmp_path: Path) -> None:
    held = tmp_path / "held"
    code = f"import os; os.close(2); fd = os.open({str(held)!r}, os.O_CREAT); print(fd)"
    assert run(code).stdout.strip() == "2", "a closed stream's number goes to the next file"
    command = (
        "import os, sys\n"
        "from draftrt import cli\n"
        "cli._take_closed_streams()\n"
        f"fd = os.open({str(held)!r}, os.O_RDONLY)\n"
        "print(fd > 2, sys.stderr.isatty())\n"
    )
    shell = 'exec "$0" -c "$1" 2>&-'
    words = ["sh", "-c", shell, sys.executable, command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True False")


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = "import os, sys; os.rmdir(os.getcwd()); from draftrt.cli import main; main()"
    for words in (["inspect", "x"], ["validate", "parity", "x"], ["run", "x", "--prompt", "a"]):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", line, *words],
            cwd=gone,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("Error: the working directory cannot be used"), done.stderr
        assert "Traceback" not in done.stderr
