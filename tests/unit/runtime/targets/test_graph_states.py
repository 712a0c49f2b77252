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
    last.end(0, 64, 64)
    assert [length for length in range(65) if last.can_commit(length)] == [0, *range(32, 65)]
    assert last.begin(40) == 40
    assert not last.can_commit(40)  # until the call has ended
    last.end(40, 5, 8)  # three rows more than tokens
    assert [length for length in range(1, 60) if last.can_commit(length)] == [*range(40, 46)]
    assert (last.opened(44).start, last.opened(44).first) == (40, 40)


class Counted:
    """A session that counts the rows it is fed."""

    def __init__(self, session: OrtSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, run = 0, session.run

        def counted(feeds: Any, **options: Any) -> Any:
            self.rows += feeds["input_ids"].shape[1]
            return run(feeds, **options)

        monkeypatch.setattr(session, "run", counted)

    def since(self) -> int:
        rows, self.rows = self.rows, 0
        return rows


def test_going_far_back_computes_from_the_nearest_snapshot_on(
    session: OrtSession, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, target = recorded["p127.ids"], GraphTarget(session, CAPACITY)
    counted = Counted(session, monkeypatch)
    target.prefill(ids[:50])
    target.keep()
    target.prefill(ids[50:])
    assert (target.kept_lengths, counted.since()) == ((50,), 127)
    cases = {126: 126, 100: 100, 95: 95, 94: 50, 50: 50, 30: 30, 18: 18, 17: 0}
    assert {at: target.reach(at) for at in cases} == cases
    for at, reached in ((60, 50), (30, 30), (17, 0)):  # the last behind rows that are overwritten
        target.rollback(at)
        check_rows(target.verify(ids[at : at + 9], want_logits=True), recorded, at)
        assert counted.since() == at - reached + 9
    assert target.kept_lengths == ()  # rows behind the call at 17 may be gone


@pytest.mark.parametrize("behind", [0, 3, 40], ids=["at once", "behind a round", "far behind"])
@pytest.mark.parametrize("first_other", [10, 45, 60], ids=lambda at: f"overwritten from {at}")
def test_a_snapshot_leads_back_whatever_was_overwritten_since(
    session: OrtSession,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    behind: int,
    first_other: int,
) -> None:
    ids, target = recorded["p127.ids"], GraphTarget(session, CAPACITY, snapshot_bytes=0)
    target.prefill(ids[:50])
    kept = target.snapshot()
    assert (kept.length, kept.first, len(kept.token_ids)) == (50, 18, 50)
    if behind:
        target.prefill(ids[50 : 50 + behind])
    if first_other < target.length:
        target.rollback(first_other)
        target.prefill(np.array([5] * 70))
    counted = Counted(session, monkeypatch)
    target.restore(kept)
    assert target.length == 50
    # Behind another text's rows those of the snapshot are fed again: from where both part, where
    # the rows that it holds open reach back so far, else from the first one on.
    overwritten = first_other < 50 and (behind == 40 or first_other < 50 + behind)
    lost = {10: 50, 45: 5}.get(first_other, 0) if overwritten else 0
    assert counted.since() == lost
    check_rows(target.verify(ids[50:58], want_logits=True), recorded, 50)


def test_a_recomputing_that_is_broken_off_is_begun_again(
    session: OrtSession, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, target = recorded["p127.ids"], GraphTarget(session, CAPACITY)
    target.prefill(ids)
    target.rollback(90)
    run, calls = session.run, list[int]()

    def broken(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(session, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            target.verify(ids[90:95])
    assert target.length == 90
    check_rows(target.verify(ids[90:99], want_logits=True), recorded, 90)


def test_a_long_prompt_leaves_snapshots_on_its_way(session: OrtSession) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 600)
    target = GraphTarget(session, CAPACITY)
    target.prefill(ids)
    assert target.kept_lengths == (512,)
    size = target.kept_bytes
    assert size == target.snapshot().num_bytes
    assert (target.reach(600), target.reach(567), target.reach(500)) == (600, 512, 500)
    assert GraphTarget(session, CAPACITY, snapshot_bytes=size - 1).kept_bytes == 0


def _first(rows: Any, count: int) -> Any:
    """Return the rows of the first tokens, those behind true ones."""
    return type(rows)(
        features=rows.features[:, :count],
        token_ids=rows.token_ids[:count],
        logits=rows.logits[:count],
    )
