"""Whatever fails in a command ends in one sentence and an exit status, without a traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from draftrt.errors import BackendError, ParityError
from draftrt.failure_cli import Ending, as_failure
from tests.waiting import started, until

COMMAND = [sys.executable, "-m", "draftrt"]


def command_that_raises(error: BaseException) -> Result:
    @click.command(cls=Ending)
    def fail() -> None:
        raise error

    return CliRunner().invoke(fail, [])


class OutOfMemoryError(RuntimeError):
    """As PyTorch has it."""


TORCH = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"
FULL = OSError(errno.ENOSPC, "No space left on device", "plans/draft.plan")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (MemoryError(), 1, "not enough memory: no more is known\n  Hint: close other programs"),
        (RuntimeError(TORCH), 1, "not enough memory: [enforce fail"),
        (RuntimeError("std::bad_alloc"), 1, "not enough memory: std::bad_alloc"),
        (OutOfMemoryError("CUDA"), 1, "not enough memory: CUDA"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1, "not enough memory: [Errno 12]"),
        (FULL, 1, "plans/draft.plan: No space left on device\n  Hint: make room, or write"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "a file: Too many open files"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 1, "a: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a", None, "b"), 1, "a -> b: No such"),
        (ModuleNotFoundError("x", name="torch.nn"), 1, "needs the package torch, which is not"),
        (ModuleNotFoundError("x", name="onnx"), 1, "Hint: pip install 'draftrt[export]'"),
        (BackendError("no", hint="do"), 1, "Error: no\n  Hint: do"),
        (ParityError("differs"), 3, "Error: differs"),
        (click.UsageError("odd"), 2, "Error: odd"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (SystemExit(143), 143, ""),
        (KeyError("a\nb"), 1, r"a defect of draftrt: KeyError: 'a\nb'"),
        (ModuleNotFoundError("no secret"), 1, "a defect of draftrt: ModuleNotFoundError: no"),
        (RuntimeError("first\nsecond"), 1, "a defect of draftrt: RuntimeError: first\n  Hint"),
    ],
)
def test_each_failure_has_its_sentence_and_status(
    error: BaseException, status: int, said: str
) -> None:
    done = command_that_raises(error)
    assert done.exit_code == status
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_the_traceback_of_a_defect_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTRT_TRACEBACK", "1")
    done = command_that_raises(KeyError("a"))
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert "a defect of draftrt: KeyError" in done.stderr
    assert command_that_raises(BackendError("no")).stderr == "Error: no\n"


def test_what_packages_raise_without_memory_is_known_as_that() -> None:
    import numpy as np
    import torch

    for allocate in (lambda: np.empty(1 << 60, np.int8), lambda: torch.empty(1 << 60)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert str(as_failure(caught.value)).startswith("not enough memory: ")


@pytest.mark.parametrize("words", [["plan", "--help"], ["--version"]])
def test_a_full_disk_under_standard_output_is_told(words: list[str], root: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == (
        "Error: standard output: cannot be written: No space left on device\n"
        "  Hint: make room, or write elsewhere\n"
    )
    assert done.returncode == 1


def test_a_reader_that_has_gone_is_no_news(root: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "--help"], cwd=root, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_without_the_letters_is_told(root: Path) -> None:
    code = "import click; from draftrt.failure_cli import end; end(lambda: click.echo('\\u2026'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "standard output: cannot be written: latin-1 has no '\\u2026'" in done.stderr
    assert "Hint: set PYTHONIOENCODING=utf-8" in done.stderr


# A package that waits to be told to go on, and then becomes the real one.
SLOW = """
import pathlib, sys
pathlib.Path(__file__).with_name("importing").touch()
sys.stdin.readline()
sys.path.remove(str(pathlib.Path(__file__).parent.parent))
del sys.modules["numpy"]
import numpy
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_while_it_imports_says_so_by_its_status(
    number: signal.Signals, root: Path, tmp_path: Path
) -> None:
    package = tmp_path / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line = [*COMMAND, "run", str(tmp_path), "--prompt", "a"]
    with started(line, cwd=root, env={**os.environ, "PYTHONPATH": path}) as process:
        until((package / "importing").exists, process=process)
        process.send_signal(number)
        out, error = process.communicate("go on\n")
    assert (process.returncode, out) == (128 + number, "")
    assert error.endswith("Interrupted\n") or number != signal.SIGINT
    assert "Traceback" not in error


def test_links_that_lead_to_each_other_are_told(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    words = ["engine", str(loop), "--target", str(tmp_path), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2
    assert "Symlink loop from" in done.stderr or "symbolic links" in done.stderr, done.stderr
    assert "a defect of draftrt" not in done.stderr
