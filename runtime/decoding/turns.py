"""Whose turn it is: one call at a time on the caches of a pair, and one sequence in them.

A `Turn` is the lock that calls from several threads wait for. A generation number says which
sequence a cache holds: whoever begins one claims the caches, and whoever held them before finds
that out when it wants to go on. Lengths cannot tell: a longer text covers a shorter one.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Protocol, TypeVar

from draftrt.errors import BusyError

ONE_TEXT = (
    "one pair decodes one text at a time: read a stream to its end or close it before the next "
    "call, use generate, or load the bundle once for each text"
)
_GENERATIONS = count(1)
Item = TypeVar("Item")


class Cached(Protocol):
    """A model with the caches of one sequence.

    Attributes:
        generation: number of the sequence that they hold; 0 where nobody claimed them.
    """

    generation: int


def claim(*models: Cached | None) -> int:
    """Give the caches of these models to a new sequence and return its generation number."""
    generation = next(_GENERATIONS)
    for model in models:
        if model is not None:
            model.generation = generation
    return generation


class Turn:
    """A lock that other threads wait for, and that tells its own thread instead of hanging."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        """Wait until it is free and take it.

        Raises:
            BusyError: this thread has it already, as in a signal handler during a call.
        """
        if self._thread == get_ident():
            raise BusyError(
                "a call on this pair began while another one was running in the same thread",
                hint="make it after the running call, not from a signal handler or a finaliser",
            )
        self._lock.acquire()
        self._thread = get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self._thread = None
        self._lock.release()


class InTurns(Generator[Item, None, None]):
    """A generator whose every step takes the turn; between two steps nothing is held.

    It may be read, and closed, by any thread.
    """

    def __init__(self, steps: Generator[Item, None, None], turn: Turn) -> None:
        self._steps, self._turn = steps, turn

    def send(self, value: None) -> Item:
        """Return the next item."""
        with self._turn:
            return self._steps.send(value)

    def throw(self, kind: Any, error: Any = None, trace: Any = None) -> Item:
        """Raise an exception where the generator stands."""
        with self._turn:
            return self._steps.throw(kind if error is None else error)

    def close(self) -> None:
        """End it: at once, or after the step that another thread is in."""
        try:
            self._steps.close()
        except ValueError:  # it is running: only under the turn
            with self._turn:
                self._steps.close()
