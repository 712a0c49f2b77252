"""Waiting for events in other processes: as long as it takes, with a limit that stops a hang."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HANG_S = 300.0  # no event takes so long, however loaded the machine is
POLL_S = 0.01


def until(is_so: Callable[[], object], *, process: subprocess.Popen[Any] | None = None) -> None:
    """Return once something is so; fail when it never is, or when a process ends before it is."""
    limit = time.monotonic() + HANG_S
    while not is_so():
        if process is not None and process.poll() is not None and not is_so():
            pytest.fail(f"the process ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > limit:
            pytest.fail("it never came")
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked for its status yet."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process with pipes for text; it is gone at the end, whatever the test found."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
