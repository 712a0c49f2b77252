"""One pair, several texts: calls wait for each other, and no text ever goes on with another's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftrt.errors import BusyError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.turns import InTurns, Turn
from draftrt.runtime.pair import Pair

PROMPTS = ((3, 1, 4, 1, 5), (2, 7), (1, 8, 2, 8, 1, 8, 2, 8, 4), (6,))
OPTIONS = DecodeOptions(max_tokens=24, schedule="all")


@pytest.fixture
def pair(toy: SimpleNamespace, tmp_path: Path) -> Pair:
    tokenizer = Tokenizer(models.BPE(vocab={chr(97 + i): i for i in range(toy.vocab)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    session = toy.session(toy.signature(4, 5, 200, confidence=False), (2, 0, 9))
    return Pair(toy.target(), DraftSession(toy.spec(), session), tmp_path, frozenset(), num_ids=23)


def in_threads(*work: Callable[[], None]) -> None:
    """Run calls side by side to their end, and pass on what they raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        for call in [pool.submit(call) for call in work]:
            call.result()


def let_others_in(pair: Pair) -> None:
    """Give other threads their chance in the middle of every call of the target."""
    target: Any = pair.target
    run, inside = target.verify, list[int]()

    def verify(token_ids: NDArray[np.int64], *, want_logits: bool = False) -> Any:
        assert not inside, "two calls at once"
        inside.append(1)
        for _ in range(5):
            sleep(0)
        rows = run(token_ids, want_logits=want_logits)
        inside.clear()
        return rows

    target.verify = verify


@pytest.mark.parametrize("kinds", [(True,), (False,), (True, False)], ids=str)
def test_calls_of_several_threads_give_what_each_gives_alone(
    toy: SimpleNamespace, pair: Pair, kinds: tuple[bool, ...]
) -> None:
    let_others_in(pair)
    found: dict[int, list[tuple[int, ...]]] = {index: [] for index in range(len(PROMPTS))}

    def work(index: int) -> None:
        for number in range(5):
            done = pair.generate(
                PROMPTS[index], OPTIONS, speculate=kinds[(index + number) % len(kinds)]
            )
            found[index].append(done.token_ids)

    in_threads(*(lambda index=index: work(index) for index in range(len(PROMPTS))))
    for index, texts in found.items():
        assert texts == [tuple(toy.greedy(PROMPTS[index], 24))] * 5


def test_streams_of_several_threads_are_right_or_end_with_an_error(
    toy: SimpleNamespace, pair: Pair
) -> None:
    let_others_in(pair)
    found: list[tuple[int, list[int]]] = []

    def work(index: int) -> None:
        for number in range(10):
            got: list[int] = []
            try:
                for chunk in pair.stream(PROMPTS[index], OPTIONS, speculate=number % 2 == 0):
                    got += chunk.token_ids
            except BusyError:
                pass
            found.append((index, got))

    in_threads(*(lambda index=index: work(index) for index in range(len(PROMPTS))))
    assert len(found) == 10 * len(PROMPTS)
    for index, got in found:
        assert got == toy.greedy(PROMPTS[index], len(got))


@pytest.mark.parametrize("first", [True, False], ids=["drafted", "plain"])
@pytest.mark.parametrize("second", [True, False], ids=["then drafted", "then plain"])
@pytest.mark.parametrize("later", ["stream", "generate", "rounds"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["same thread", "other thread"])
def test_a_later_call_is_right_and_the_older_stream_ends_with_an_error(
    toy: SimpleNamespace, pair: Pair, first: bool, second: bool, later: str, in_thread: bool
) -> None:
    older = pair.stream(PROMPTS[0], OPTIONS, speculate=first)
    next(older)
    found: list[int] = []

    def work() -> None:
        if later == "generate":
            found.extend(pair.generate(PROMPTS[2], OPTIONS, speculate=second).token_ids)
        else:
            steps: Generator[Any, None, None] = getattr(pair, later)(
                PROMPTS[2], OPTIONS, speculate=second
            )
            found.extend(token for step in steps for token in step.token_ids)

    if in_thread:
        in_threads(work)
    else:
        work()
    assert found == toy.greedy(PROMPTS[2], 24)
    with pytest.raises(BusyError) as refusal:
        next(older)
    assert "one text at a time" in refusal.value.hint
    assert list(older) == []


def test_two_streams_by_turns_never_mix(toy: SimpleNamespace, pair: Pair) -> None:
    one, two = pair.stream(PROMPTS[0], OPTIONS), pair.stream(PROMPTS[2], OPTIONS)
    next(one)
    next(two)
    with pytest.raises(BusyError):
        next(one)
    rest = [token for chunk in two for token in chunk.token_ids]
    assert rest == toy.greedy(PROMPTS[2], 24)[1:]


@pytest.mark.parametrize("how", ["closed", "left", "collected", "unread", "thrown into"])
def test_a_stream_that_is_not_read_on_holds_nobody_up(
    toy: SimpleNamespace, pair: Pair, how: str
) -> None:
    stream = pair.stream(PROMPTS[0], OPTIONS)
    if how != "unread":
        next(stream)
    if how == "closed":
        stream.close()
    if how == "thrown into":
        with pytest.raises(KeyError):
            stream.throw(KeyError("x"))
    if how == "collected":
        del stream
        gc.collect()
    found: list[int] = []
    in_threads(lambda: found.extend(pair.generate(PROMPTS[1], OPTIONS).token_ids))
    assert found == toy.greedy(PROMPTS[1], 24)


def test_one_stream_may_be_read_by_several_threads(toy: SimpleNamespace, pair: Pair) -> None:
    let_others_in(pair)
    stream = pair.stream(PROMPTS[0], OPTIONS)
    chunks: list[Any] = []
    in_threads(*[lambda: chunks.extend(stream)] * 3)
    chunks.sort(key=lambda chunk: chunk.round.index)
    assert [t for chunk in chunks for t in chunk.token_ids] == toy.greedy(PROMPTS[0], 24)


def test_a_call_inside_a_call_of_the_same_thread_is_refused_and_does_not_hang(
    toy: SimpleNamespace, pair: Pair
) -> None:
    target: Any = pair.target
    run, refused = target.verify, []

    def verify(token_ids: NDArray[np.int64], *, want_logits: bool = False) -> Any:
        with pytest.raises(BusyError, match="in the same thread") as refusal:
            pair.generate(PROMPTS[1], OPTIONS)
        refused.append(refusal)
        return run(token_ids, want_logits=want_logits)

    target.verify = verify
    assert list(pair.generate(PROMPTS[0], OPTIONS).token_ids) == toy.greedy(PROMPTS[0], 24)
    assert refused


def test_closing_from_another_thread_waits_for_the_step_that_runs() -> None:
    entered, leave, ended = Event(), Event(), []

    def steps() -> Generator[int, None, None]:
        try:
            entered.set()
            leave.wait()
            yield 1
            yield 2
        finally:
            ended.append(True)

    stream, found = InTurns(steps(), Turn()), list[int]()
    reader = Thread(target=lambda: found.append(next(stream)))
    reader.start()
    entered.wait()
    closer = Thread(target=stream.close)
    closer.start()
    leave.set()
    reader.join()
    closer.join()
    assert (found, ended, list(stream)) == ([1], [True], [])


def test_closing_the_pair_waits_for_the_call_that_runs(toy: SimpleNamespace, pair: Pair) -> None:
    target: Any = pair.target
    run, entered, leave, order = target.verify, Event(), Event(), list[str]()

    def verify(token_ids: NDArray[np.int64], *, want_logits: bool = False) -> Any:
        entered.set()
        leave.wait()
        order.append("call")
        return run(token_ids, want_logits=want_logits)

    target.verify, target.close = verify, lambda: order.append("close")
    caller = Thread(target=lambda: pair.generate(PROMPTS[0], DecodeOptions(max_tokens=1)))
    caller.start()
    entered.wait()
    closer = Thread(target=pair.close)
    closer.start()
    leave.set()
    caller.join()
    closer.join()
    assert order == ["call", "close"]
