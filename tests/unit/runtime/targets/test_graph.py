"""An exported target asks its graph for the rows that somebody reads, and for no others.

The graph here is the toy language in a few lines: it answers for the rows it is asked about, keeps
the text as its cache, and is strict about both.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import BundleError, BusyError, FeedError
from draftrt.lifecycle import Closing
from draftrt.runtime.backends.base import Arrays, fed_signature
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.signature import DimRange, Signature, TensorSpec, check_feeds

MOST_ROWS, MOST_ASKED, CAPACITY = 8, 3, 60
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]  # 21 tokens


class Session(Closing):
    """The toy language as a target's graph.

    Attributes:
        calls: rows fed, rows asked for and outputs left out, of each call.
    """

    def __init__(self, toy: SimpleNamespace, most_asked: int = MOST_ASKED) -> None:
        cache = TensorSpec(name="past_key_0", dtype="float32", shape=(1, 1, CAPACITY, 2))
        self._toy = toy
        self.signature = Signature(
            inputs=(
                TensorSpec(name="input_ids", dtype="int64", shape=(1, "R")),
                TensorSpec(name="context_length", dtype="int64", shape=(1,)),
                TensorSpec(name="logit_rows", dtype="int64", shape=("S",)),
                cache,
            ),
            outputs=(
                TensorSpec(name="next_ids", dtype="int64", shape=(1, "S")),
                TensorSpec(name="logits", dtype="float32", shape=(1, "S", toy.vocab)),
                TensorSpec(name="features", dtype="float32", shape=(1, "R", toy.width)),
                replace(cache, name="present_key_0", alias="past_key_0"),
            ),
            dimensions={
                "R": DimRange(min=1, opt=4, max=MOST_ROWS),
                "S": DimRange(min=1, opt=1, max=most_asked),
            },
        )
        self.calls: list[tuple[int, list[int], tuple[str, ...]]] = []
        self._text: list[int] = []

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        check_feeds(fed_signature(self.signature), feeds)
        ids, start = feeds["input_ids"][0].tolist(), int(feeds["context_length"][0])
        asked = feeds["logit_rows"].tolist()
        assert all(0 <= row < len(ids) for row in asked)
        assert start <= len(self._text), "rows are missing before these"
        assert rows == start + len(ids)
        self._text[start:] = ids
        self.calls.append((len(ids), asked, unwanted))
        texts = [self._text[: start + row + 1] for row in asked]
        features = np.zeros((1, len(ids), self._toy.width), np.float32)
        features[0, :, 0] = range(start, start + len(ids))
        features[0, :, 1] = ids
        outputs: dict[str, NDArray[Any]] = {
            "next_ids": np.array([[self._toy.next_token(text) for text in texts]]),
            "logits": np.array([[self._toy.logits(text) for text in texts]]),
            "features": features,
        }
        return {name: array for name, array in outputs.items() if name not in unwanted}

    def close(self) -> None:
        pass


def opened(toy: SimpleNamespace, most_asked: int = MOST_ASKED) -> tuple[GraphTarget, Session]:
    session = Session(toy, most_asked)
    return GraphTarget(session, CAPACITY), session


def array(ids: list[int]) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


@pytest.mark.parametrize("want_logits", [False, True], ids=["ids", "logits"])
def test_a_prompt_is_asked_for_its_last_row_alone(toy: SimpleNamespace, want_logits: bool) -> None:
    target, session = opened(toy)
    rows = target.prefill(array(TEXT), want_logits=want_logits)
    unwanted = () if want_logits else ("logits",)
    assert session.calls == [(8, [7], unwanted), (8, [7], unwanted), (5, [4], ())]
    assert target.length == len(TEXT)
    assert rows.token_ids.tolist() == [toy.next_token(TEXT)]
    assert rows.features[0, :, 0].tolist() == list(range(len(TEXT)))
    assert rows.features[0, :, 1].tolist() == TEXT
    if want_logits:
        assert rows.logits is not None
        assert np.array_equal(rows.logits, [toy.logits(TEXT)])
    else:
        assert rows.logits is None


@pytest.mark.parametrize(
    ("most_asked", "count", "asked"),
    [
        (3, 1, [[0]]),
        (3, 3, [[0, 1, 2]]),
        (3, 7, [[0, 1, 2], [0, 1, 2], [0]]),
        (1, 2, [[0], [0]]),
        (20, 10, [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1]]),
    ],
    ids=["a step", "as many as fit", "in pieces", "one by one", "more asked than fed"],
)
def test_every_row_to_verify_is_asked_for(
    toy: SimpleNamespace, most_asked: int, count: int, asked: list[list[int]]
) -> None:
    target, session = opened(toy, most_asked)
    target.prefill(array(TEXT[:9]))
    target.rollback(6)
    session.calls.clear()
    rows = target.verify(array(TEXT[6 : 6 + count]), want_logits=True)
    assert [call[:2] for call in session.calls] == [(len(one), one) for one in asked]
    texts = [TEXT[: 7 + row] for row in range(count)]
    assert rows.token_ids.tolist() == [toy.next_token(text) for text in texts]
    assert rows.logits is not None
    assert np.array_equal(rows.logits, [toy.logits(text) for text in texts])
    assert rows.features[0, :, :2].tolist() == [[6 + k, TEXT[6 + k]] for k in range(count)]
    assert target.length == 6 + count


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_call_of_fewer_rows_than_the_least_is_fed_its_last_token_again(
    toy: SimpleNamespace, count: int
) -> None:
    session = Session(toy, 8)
    target = GraphTarget(session, CAPACITY, least_rows=3)
    assert target.max_context == CAPACITY - 2  # room for what is fed again
    first = target.prefill(array(TEXT[:9]))
    assert [call[:2] for call in session.calls] == [(8, [7, 7, 7]), (3, [0, 0, 0])]
    assert first.token_ids.tolist() == [toy.next_token(TEXT[:9])]
    session.calls.clear()
    rows = target.verify(array(TEXT[9 : 9 + count]), want_logits=True)
    again = max(3 - count, 0)
    asked = [*range(count), *[count - 1] * again]
    assert [call[:2] for call in session.calls] == [(count + again, asked)]
    texts = [TEXT[: 10 + row] for row in range(count)]
    assert rows.token_ids.tolist() == [toy.next_token(text) for text in texts]
    assert rows.logits is not None
    assert np.array_equal(rows.logits, [toy.logits(text) for text in texts])
    assert rows.features[0, :, :2].tolist() == [[9 + k, TEXT[9 + k]] for k in range(count)]
    assert (first.features.shape[1], target.length) == (9, 9 + count)


@pytest.mark.parametrize("least_rows", [1, 2, 5])
def test_text_reaches_the_last_row_whatever_is_fed_again(
    toy: SimpleNamespace, least_rows: int
) -> None:
    loop = DecodeLoop(GraphTarget(Session(toy, 8), CAPACITY, least_rows=least_rows))
    most = CAPACITY - (least_rows - 1) + 1 - 9
    with pytest.raises(FeedError, match=f"expected at most {most} more"):
        loop.decode(TEXT[:9], DecodeOptions(max_tokens=most + 1))
    rounds = loop.decode(TEXT[:9], DecodeOptions(max_tokens=most))
    assert [token for one in rounds for token in one.token_ids] == toy.greedy(TEXT[:9], most)


@pytest.mark.parametrize("most_asked", [1, 2, 5, 40])
def test_text_is_the_targets_own_whatever_the_graph_answers_at_once(
    toy: SimpleNamespace, most_asked: int
) -> None:
    target, session = opened(toy, most_asked)
    spec = toy.spec()
    table = toy.signature(spec.num_draft_tokens, spec.block_size, CAPACITY, confidence=False)
    drafter = DraftSession(spec, toy.session(table, (4, 0, 2)))
    rounds = DecodeLoop(target, drafter).decode(TEXT, DecodeOptions(max_tokens=25))
    assert [token for one in rounds for token in one.token_ids] == toy.greedy(TEXT, 25)
    assert [call[2] for call in session.calls].count(()) == 1  # the prompt's last row


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "has no tokens"),
        ([1] * (CAPACITY + 1), f"0 rows . 61 new = 61, expected at most {CAPACITY}"),
    ],
    ids=["none", "too many"],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    toy: SimpleNamespace, ids: list[int], says: str
) -> None:
    target, session = opened(toy)
    for call in (target.prefill, target.verify):
        with pytest.raises(FeedError, match=says):
            call(array(ids))
    assert session.calls == []
    assert target.length == 0


def test_a_graph_that_is_no_target_is_refused(toy: SimpleNamespace) -> None:
    session = Session(toy)
    session.signature = replace(session.signature, outputs=session.signature.outputs[1:])
    with pytest.raises(BundleError, match="expected next_ids and logits") as refusal:
        GraphTarget(session, CAPACITY)
    assert "export the bundle again" in refusal.value.hint


@pytest.mark.parametrize("way", ["rollback", "skip_to"])
def test_rows_written_by_hand_belong_to_no_decoder(toy: SimpleNamespace, way: str) -> None:
    target = GraphTarget(Session(toy), CAPACITY)
    rounds = DecodeLoop(target).decode(TEXT[:4], DecodeOptions(max_tokens=8))
    next(rounds)
    if way == "rollback":
        target.rollback(0)
        target.prefill(np.array(TEXT, np.int64))
    else:
        target.skip_to(20)
    with pytest.raises(BusyError, match="another decoder has used them"):
        next(rounds)
