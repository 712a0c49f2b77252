"""Signals that end a command: they unwind the stack, and wait while a module is being imported.

An import that is broken off leaves its package half made. The next thread that imports it crashes
the process, as PyTorch does, or waits for ever for a lock that nobody holds; either way scratch
folders stay behind.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

IMPORT_FILES = "<frozen importlib._bootstrap"  # what the frames of an import are said to lie in
RETRY_S = 0.02
ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let the signals of `ENDING` raise inside the block: KeyboardInterrupt, else SystemExit.

    The status is 128 and the signal's number, as a shell says it. A signal that is ignored, as
    under ``nohup``, or handled otherwise stays so. For the main thread. Where there are no timers,
    as on Windows, nothing is changed.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    waiting: list[int] = []

    def arrive(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            waiting.append(number)
        if is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        elif waiting:
            first = waiting[0]
            waiting.clear()
            if first == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + first)

    taken = [
        one
        for one in ENDING
        if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler)
    ]
    before = {one: signal.signal(one, arrive) for one in (*taken, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in before.items():
            signal.signal(one, handler)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, belongs to an import that is not done."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORT_FILES):
            return True
        frame = frame.f_back
    return False
