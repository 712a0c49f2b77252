"""The thread that decodes: one at a time, in order, and not on for clients that left."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from draftrt.errors import FeedError
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.server.worker import FullError, Job, Worker


class Endless:
    """A pair whose texts never end by themselves."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, ...]] = []
        self.closed = queue.Queue[tuple[int, ...]]()
        self.wrong: Exception | None = None

    def stream(self, prompt_ids: tuple[int, ...], *given: Any, **named: Any) -> Iterator[Any]:
        if self.wrong is not None:
            raise self.wrong
        self.begun.append(prompt_ids)
        return self._chunks(prompt_ids)

    def _chunks(self, prompt_ids: tuple[int, ...]) -> Iterator[Any]:
        try:
            while True:
                yield SimpleNamespace()
        finally:
            self.closed.put(prompt_ids)


def job(number: int, items: queue.Queue[Any]) -> Job:
    return Job((number,), DecodeOptions(), (), None, True, items.put)


@pytest.fixture
def pair() -> Endless:
    return Endless()


@pytest.fixture
def worker(pair: Endless) -> Iterator[Worker]:
    made = Worker(pair, 2)  # type: ignore[arg-type]
    yield made
    made.close()
    assert not made.is_busy


def test_a_text_ends_when_its_client_leaves_and_the_next_one_begins(
    pair: Endless, worker: Worker
) -> None:
    items: list[queue.Queue[Any]] = [queue.Queue(), queue.Queue(), queue.Queue()]
    jobs = [job(number, one) for number, one in enumerate(items)]
    for one in jobs:
        worker.submit(one)
    assert [items[0].get(timeout=60) is not None for _ in range(3)] == [True] * 3
    assert items[1].empty()
    jobs[1].left.set()  # while it waits
    jobs[0].left.set()
    assert pair.closed.get(timeout=60) == (0,)
    while items[0].get(timeout=60) is not None:
        pass
    assert items[2].get(timeout=60) is not None
    assert pair.begun == [(0,), (2,)]
    jobs[2].left.set()
    assert pair.closed.get(timeout=60) == (2,)


def test_too_many_are_refused(pair: Endless, worker: Worker) -> None:
    items: queue.Queue[Any] = queue.Queue()
    first = job(0, items)
    worker.submit(first)
    items.get(timeout=60)
    waiting = [job(1, queue.Queue()), job(2, queue.Queue())]
    for one in waiting:
        worker.submit(one)
    assert (worker.is_busy, worker.waiting) == (True, 2)
    with pytest.raises(FullError):
        worker.submit(job(3, queue.Queue()))
    first.left.set()


def test_what_goes_wrong_is_given_to_the_request_and_ends_nothing_else(
    pair: Endless, worker: Worker
) -> None:
    for wrong, told in ((FeedError("too long"), "too long"), (ZeroDivisionError("odd"), "odd")):
        pair.wrong, items = wrong, queue.Queue[Any]()
        worker.submit(job(0, items))
        assert told in str(items.get(timeout=60))
    pair.wrong = None
    last = job(1, items)
    worker.submit(last)
    assert items.get(timeout=60) is not None
    last.left.set()
    assert pair.closed.get(timeout=60) == (1,)
