"""`GraphTarget` over a graph with states: whatever was taken back, the answers of the whole prefix.

The reference is the publisher's: what transformers computed from whole texts without any cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from draftrt.runtime.backends.ort import OrtSession
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.runtime.targets.last_call import LastCall, carried_rows
from tests.unit.runtime.stateful import ATOL, CASE, MARGIN, export_case

CAPACITY = 640
TAPS = tuple(np.load(CASE / "prefill.npz")["taps"].tolist())
Recorded = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrtSession]:
    folder = tmp_path_factory.mktemp("target")
    entry = export_case(folder, TAPS)
    with OrtSession(folder / entry.flexible, entry.signature, can_grow=True) as opened:
        yield opened


@pytest.fixture
def recorded() -> Recorded:
    return dict(np.load(CASE / "prefill.npz"))


def check_rows(rows: Any, recorded: Recorded, start: int) -> None:
    """Compare the decisions behind tokens start ... of the prompt of 127 with the record."""
    stop = start + len(rows.token_ids)
    clear = recorded["p127.margin"][start:stop] > MARGIN
    assert (rows.token_ids == recorded["p127.argmax"][start:stop])[clear].all(), start
    for place, row in enumerate(recorded["p127.rows"]):
        if start <= row < stop and rows.logits is not None:
            gap = np.abs(rows.logits[row - start] - recorded["p127.logits"][place]).max()
            assert gap < ATOL, row
            gap = np.abs(rows.features[0, row - stop] - recorded["p127.features"][place]).max()
            assert gap < ATOL, row


@pytest.mark.parametrize("least_rows", [1, 3])
def test_random_rounds_cuts_and_rewinds_answer_as_the_whole_text_does(
    session: OrtSession, recorded: Recorded, least_rows: int
) -> None:
    ids, random = recorded["p127.ids"], np.random.default_rng(7)
    target = GraphTarget(session, CAPACITY, least_rows=least_rows)
    rewinds = 0
    for _ in range(3):
        target.rollback(0)
        start = int(random.integers(1, 70))
        check_rows(target.prefill(ids[:start], want_logits=True), recorded, start - 1)
        while target.length < 126:
            before = target.length
            count = min(int(random.integers(1, 17)), 127 - before)
            drafts = ids[before : before + count].copy()
            right = int(random.integers(1, count + 1))  # the anchor always stands
            drafts[right:] = random.integers(0, 200, count - right)
            rows = target.verify(drafts, want_logits=True)
            assert len(rows.token_ids) == count
            check_rows(_first(rows, right), recorded, before)
            target.rollback(before + right)
            if random.random() < 0.15:  # an edited prompt: far behind what the graph carries
                target.rollback(int(random.integers(1, before + 1)))
                rewinds += 1
    assert rewinds > 3


def test_every_recorded_round_is_right_through_the_port(session: OrtSession) -> None:
    told, arrays = json.loads((CASE / "rounds.json").read_text()), np.load(CASE / "rounds.npz")
    target = GraphTarget(session, CAPACITY)
    for number, one in enumerate(told["sessions"]):
        target.rollback(0)
        target.prefill(np.array(one["prompt_ids"]))
        for turn, each in enumerate(one["rounds"]):
            before = target.length
            rows = target.verify(np.array(each["ids"]))
            assert (rows.token_ids == arrays[f"s{number}.r{turn}.argmax"]).all(), (number, turn)
            target.rollback(before + each["accepted"] + 1)


@pytest.mark.parametrize("is_after", [False, True], ids=["before it", "after it"])
def test_a_call_broken_off_leaves_the_text_as_it_was(
    session: OrtSession, recorded: Recorded, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, target = recorded["p127.ids"], GraphTarget(session, CAPACITY)
    target.prefill(ids[:40])
    target.verify(ids[40:45])
    target.rollback(43)
    run = session.run

    def broken(*args: Any, **options: Any) -> Any:
        if is_after:
            run(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            target.verify(ids[43:50])
    target.rollback(43)
    check_rows(target.verify(ids[43:60], want_logits=True), recorded, 43)


def test_only_rows_that_the_graph_carries_are_committed(session: OrtSession) -> None:
    last, carried = LastCall(session.signature), carried_rows(session.signature)
    assert carried == 32
    assert last.begin(0) == 0
    last.end(0, np.arange(64), 64)
    assert [length for length in range(65) if last.can_commit(length)] == [0, *range(32, 65)]
    assert last.begin(40) == 40
    assert not last.can_commit(40)  # until the call has ended
    last.end(40, np.arange(5), 8)  # three rows more than tokens
    assert [length for length in range(1, 60) if last.can_commit(length)] == [*range(40, 46)]
    assert last.token_ids(42).tolist() == [*range(40), 0, 1]


def _first(rows: Any, count: int) -> Any:
    """Return the rows of the first tokens, those behind true ones."""
    return type(rows)(
        features=rows.features[:, :count],
        token_ids=rows.token_ids[:count],
        logits=rows.logits[:count],
    )
