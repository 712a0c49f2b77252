"""How things end: what `with` needs to close them, and signals that end a command.

Signals that end a command: they unwind the stack once, and wait while a module is imported.

An import that is broken off leaves its package half made. The next thread that imports it crashes
the process, as PyTorch does, or waits for ever for a lock that nobody holds; either way scratch
folders stay behind. A bundle that takes another's place and a folder that is being removed are not
broken off either, and a second signal breaks nothing off that the first one lets clean up.
"""

from __future__ import annotations

import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """A context manager that closes itself at the end."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; a second call does nothing."""

    def __enter__(self: Self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


P = ParamSpec("P")
T = TypeVar("T")
IMPORT_FILES = "<frozen importlib._bootstrap"  # what the frames of an import are said to lie in
RETRY_S = 0.02
ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_WHOLE = {cast(FunctionType, shutil.rmtree).__code__}  # what no signal breaks off


def whole(function: Callable[P, T]) -> Callable[P, T]:
    """Let signals wait until a function is done; for short ones that leave a half behind."""
    _WHOLE.add(function.__code__)
    return function


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let the first signal of `ENDING` raise in the block: KeyboardInterrupt, else SystemExit.

    The status is 128 and the signal's number, as a shell says it. Later ones do nothing: the
    process is ending. Python ignores what is raised in a finaliser or a weak reference's callback;
    there it is raised again. A signal that is ignored, as under ``nohup``, or handled otherwise
    stays so. For the main thread. Where there are no timers, as on Windows, nothing is changed.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    end: BaseException | None = None
    is_raised = False

    def arrive(number: int, frame: FrameType | None) -> None:
        nonlocal end, is_raised
        if end is None:
            end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if is_raised:
            return
        if must_wait(frame):
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        else:
            is_raised = True
            raise end

    def on_ignored(lost: UnraisableHookArgs) -> None:
        nonlocal is_raised
        if end is None or lost.exc_value is not end:
            hook(lost)
            return
        is_raised = False
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    taken = [
        one
        for one in ENDING
        if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler)
    ]
    hook, sys.unraisablehook = sys.unraisablehook, on_ignored
    before = {one: signal.signal(one, arrive) for one in (*taken, signal.SIGALRM)}
    try:
        yield
    finally:
        if not is_raised:
            sys.unraisablehook = hook
            signal.setitimer(signal.ITIMER_REAL, 0)
            for one, handler in before.items():
                signal.signal(one, handler)
            if end is not None:  # it was to wait, and the block came to its end first
                raise end


def must_wait(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is an import that is not done, or to be whole."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORT_FILES) or frame.f_code in _WHOLE:
            return True
        frame = frame.f_back
    return False
