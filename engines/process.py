"""Run a process that may crash, hang or be interrupted, and never leave it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

TICK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process ended.

    Attributes:
        status: its exit status; minus the signal number when a signal ended it.
        seconds: wall time.
        timed_out: whether it was stopped for lasting too long.
    """

    status: int
    seconds: float
    timed_out: bool

    def describe(self) -> str:
        """Return the end as text: ``was ended by SIGSEGV after 3 s``."""
        after = f"after {self.seconds:.1f} s"
        if self.timed_out:
            return f"was stopped at the time limit, {after}"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name} {after}"
        return f"ended with status {self.status} {after}"


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    timeout_s: float,
    on_tick: Callable[[float], None],
) -> Ending:
    """Run a command to its end, with its output appended to ``log``.

    An exception here, `KeyboardInterrupt` included, ends the process and all it started first.

    Args:
        command: program and arguments.
        env: its whole environment.
        cwd: its working folder.
        log: file for stdout and stderr.
        timeout_s: seconds until it is stopped.
        on_tick: called a few times a second with the seconds since the start.
    """
    start = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    with log.open("ab") as output:
        try:
            with uninterrupted():  # a process that nobody knows of could not be ended
                process = subprocess.Popen(
                    command,
                    env=env,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C on the terminal reaches this process only
                )
            timed_out = _wait(process, start + timeout_s, lambda: on_tick(time.monotonic() - start))
        finally:
            if process is not None:
                _end(process)
    return Ending(status=process.returncode, seconds=time.monotonic() - start, timed_out=timed_out)


def _wait(process: subprocess.Popen[bytes], deadline: float, tick: Callable[[], None]) -> bool:
    """Wait for the process; return whether the deadline passed first."""
    while process.poll() is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        try:
            process.wait(timeout=min(left, TICK_S))
        except subprocess.TimeoutExpired:
            tick()
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack inside the block, so that clean-up code runs.

    By default it ends Python at once. Where it is handled or ignored it stays so. Handlers run in
    the main thread; elsewhere this does nothing.
    """

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with _handlers({signal.SIGTERM: unwind} if is_default else {}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP inside the block; they arrive at its end.

    A signal mask would not do: it holds for one thread, and the signal picks another.
    """
    arrived: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    try:
        with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), keep)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)


@contextmanager
def _handlers(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]],
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
