"""One text at a time: requests wait in a bounded queue for the thread that decodes."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event, Thread

from draftrt.errors import BackendError, DraftrtError
from draftrt.runtime.decoding.grammar import Grammar
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Chunk, Pair

Item = Chunk | DraftrtError | None  # a round, what went wrong, or the end


@dataclass(slots=True, eq=False)
class Job:
    """One text to decode.

    Attributes:
        prompt_ids: of the prompt.
        options: of the decoding.
        stop: strings that end it.
        grammar: what it obeys; None: anything.
        speculate: whether the drafter takes part.
        give: takes each item from the decoding thread.
        left: set when nobody wants the rest.
    """

    prompt_ids: tuple[int, ...]
    options: DecodeOptions
    stop: tuple[str, ...]
    grammar: Grammar | None
    speculate: bool
    give: Callable[[Item], None]
    left: Event = field(default_factory=Event)


class FullError(Exception):
    """The queue is full."""


class Worker:
    """The thread that decodes, and what waits for it."""

    def __init__(self, pair: Pair, most_waiting: int) -> None:
        """Start the thread.

        Args:
            pair: what decodes.
            most_waiting: requests that may wait.
        """
        self._pair = pair
        self._jobs: queue.Queue[Job | None] = queue.Queue(most_waiting + 1)
        self._most = most_waiting
        self._present: Job | None = None
        self._thread = Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._jobs.qsize()

    @property
    def is_busy(self) -> bool:
        """Whether one is decoded now."""
        return self._present is not None

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            FullError: as many wait as may.
        """
        if self._jobs.qsize() >= self._most and self.is_busy:
            raise FullError
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise FullError from None

    def close(self) -> None:
        """End the thread behind the present round; what waits gets no answer."""
        while True:
            try:
                self._jobs.get_nowait()
            except queue.Empty:
                break
        if (present := self._present) is not None:
            present.left.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._present = job
            try:
                if not job.left.is_set():
                    self._decode(job)
            finally:
                self._present = None

    def _decode(self, job: Job) -> None:
        end: Item = None
        try:
            chunks = self._pair.stream(
                job.prompt_ids,
                job.options,
                stop=job.stop,
                speculate=job.speculate,
                grammar=job.grammar,
            )
            with closing(chunks):
                for chunk in chunks:
                    if job.left.is_set():
                        break
                    job.give(chunk)
        except DraftrtError as error:
            end = error
        except Exception as error:  # noqa: BLE001 (the server goes on with the next request)
            end = BackendError(f"{type(error).__name__}: {error}")
        job.give(end)
