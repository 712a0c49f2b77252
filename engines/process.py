"""The process that builds: what it is told and answers, and that it is never left behind."""

from __future__ import annotations

import json
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
from typing import TypeVar

from draftrt.codec import from_json, to_json
from draftrt.engines.capabilities import Backend
from draftrt.engines.options import ShapeRange

TICK_S = 0.2
NO_ROOM_STATUS = os.EX_IOERR  # of a process that has no room for the plan or its reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnding:
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
) -> ChildEnding:
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
    return ChildEnding(
        status=process.returncode, seconds=time.monotonic() - start, timed_out=timed_out
    )


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


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One plan to build. Paths are absolute.

    Attributes:
        backend: the builder.
        sms: compute capabilities of the plan.
        onnx: ONNX file.
        plan: file to write the plan to.
        shapes: input name to its shape range; every input of the graph.
        workspace_bytes: most device memory a layer may use for scratch; None: TensorRT's default.
        strip: leave the weights out.
        device: what the SM was taken from, for messages; empty where it was given.
    """

    backend: Backend
    sms: tuple[int, ...]
    onnx: str
    plan: str
    shapes: dict[str, ShapeRange]
    workspace_bytes: int | None
    strip: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReply:
    """How a build ended, from a process that lived to say so.

    Attributes:
        problem: why there is no plan; empty when there is one.
        hint: what the user can do about it.
        peak_rss_bytes: peak resident memory of the process.
        num_attentions: attention layers in the graph.
        num_decomposed: how many of them may run as separate operations, having no fused kernel.
    """

    peak_rss_bytes: int
    problem: str = ""
    hint: str = ""
    num_attentions: int = 0
    num_decomposed: int = 0


def write(path: Path, value: BuildRequest | BuildReply) -> None:
    """Write a request or a reply."""
    path.write_text(json.dumps(to_json(value)), encoding="utf-8")


def read(cls: type[T], path: Path) -> T:
    """Read what `write` wrote.

    Raises:
        BundleError: ill-formed.
    """
    return from_json(cls, json.loads(path.read_text(encoding="utf-8")), cls.__name__)
