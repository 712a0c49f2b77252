"""A target with states on ONNX Runtime: its publisher's answers, whatever is taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from draftrt.errors import FeedError
from draftrt.manifest import GraphEntry
from draftrt.runtime.backends.ort import OrtSession
from draftrt.signature import state_specs
from tests.unit.runtime.stateful import ATOL, CASE, MARGIN, export_case


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphEntry]:
    folder = tmp_path_factory.mktemp("target")
    return folder, export_case(folder, (0, 2))


@pytest.fixture
def session(exported: tuple[Path, GraphEntry]) -> Iterator[OrtSession]:
    folder, entry = exported
    with OrtSession(folder / entry.flexible, entry.signature, can_grow=True) as opened:
        yield opened


def test_the_graph_with_fixed_caches_answers_alike(
    exported: tuple[Path, GraphEntry], session: OrtSession
) -> None:
    folder, entry = exported
    ids = np.load(CASE / "prefill.npz")["p65.ids"].tolist()
    with OrtSession(folder / entry.file, entry.signature) as fixed:
        logits = [Text(one).feed(ids, (40, 3)) for one in (fixed, session)]
    np.testing.assert_allclose(logits[0], logits[1], atol=ATOL)


class Text:
    """One text: what a host keeps of it is two numbers."""

    def __init__(self, session: OrtSession) -> None:
        self._session = session
        self.length = self.commit = 0

    def call(self, ids: Sequence[int]) -> dict[str, Any]:
        rows = np.array(ids, np.int64)
        feeds = {
            "input_ids": rows[None],
            "context_length": np.array([self.length]),
            "logit_rows": np.arange(len(rows)),
            "commit_rows": np.array([self.commit]),
        }
        return self._session.run(feeds, rows=self.length + len(rows))

    def keep(self, rows: int) -> None:
        self.length += rows
        self.commit = rows

    def feed(self, ids: Sequence[int], sizes: Sequence[int]) -> np.ndarray[Any, Any]:
        """Feed a text in calls of these sizes, over and over; return all logits."""
        found, start, turn = [], 0, 0
        while start < len(ids):
            piece = ids[start : start + sizes[turn % len(sizes)]]
            found.append(self.call(piece)["logits"][0])
            self.keep(len(piece))
            start, turn = start + len(piece), turn + 1
        return np.concatenate(found)


@pytest.mark.parametrize("sizes", [(64,), (1,), (33, 5, 1)])
def test_a_prompt_has_its_publishers_logits_in_any_split(
    session: OrtSession, sizes: tuple[int, ...]
) -> None:
    recorded = np.load(CASE / "prefill.npz")
    for length in (n for n in recorded["lengths"] if n <= 65 and n < 40 * max(sizes)):
        part = f"p{length}."
        logits = Text(session).feed(recorded[f"{part}ids"].tolist(), sizes)
        gap = np.abs(logits[recorded[f"{part}rows"]] - recorded[f"{part}logits"]).max()
        assert gap < ATOL, (length, sizes)
        clear = recorded[f"{part}margin"] > MARGIN
        assert (logits.argmax(-1) == recorded[f"{part}argmax"])[clear].all(), (length, sizes)


def test_every_round_is_right_behind_rows_taken_back(session: OrtSession) -> None:
    told, recorded = json.loads((CASE / "rounds.json").read_text()), np.load(CASE / "rounds.npz")
    rounds = 0
    for number, one in enumerate(told["sessions"]):
        text = Text(session)
        text.feed(one["prompt_ids"], (64,))
        for turn, each in enumerate(one["rounds"]):
            answer, part = text.call(each["ids"]), f"s{number}.r{turn}."
            assert answer["next_ids"][0].tolist() == recorded[f"{part}argmax"].tolist(), part
            top = np.take_along_axis(answer["logits"][0], recorded[f"{part}top_ids"], axis=1)
            assert np.abs(top - recorded[f"{part}top_values"]).max() < ATOL, part
            text.keep(each["accepted"] + 1)
            rounds += 1
    assert rounds == 40


def test_a_long_call_can_lose_any_of_the_rows_that_it_carries(session: OrtSession) -> None:
    ids = np.load(CASE / "prefill.npz")["p127.ids"].tolist()
    whole = Text(session).feed(ids, (4,))
    for kept in (32, 33, 50, 64):  # of 64 rows, 32 of which are carried
        text = Text(session)
        text.call(ids[:64])
        text.keep(kept)
        rest = text.feed(ids[kept:], (5, 40))
        np.testing.assert_allclose(rest, whole[kept:], atol=ATOL)


def test_a_call_that_failed_is_made_again_with_the_same_inputs(session: OrtSession) -> None:
    ids = np.load(CASE / "prefill.npz")["p17.ids"].tolist()
    text = Text(session)
    text.feed(ids[:9], (9,))
    before = session.snapshot()
    with pytest.raises(FeedError):
        text.call([])
    assert all((session.snapshot()[name] == held).all() for name, held in before.items())
    first = text.call(ids[9:])["logits"]
    session.restore(before)
    assert (text.call(ids[9:])["logits"] == first).all()


def test_a_snapshot_leads_back_to_a_shared_beginning(session: OrtSession) -> None:
    ids = np.load(CASE / "prefill.npz")["p64.ids"].tolist()
    text = Text(session)
    text.feed(ids[:20], (20,))
    kept = session.snapshot()
    expected = text.feed(ids[20:40], (4,))
    text.feed(ids[40:], (3,))
    session.restore(kept)
    text.length, text.commit = 20, 20
    np.testing.assert_allclose(text.feed(ids[20:40], (7,)), expected, atol=ATOL)
    with pytest.raises(FeedError, match="missing"):
        session.restore({})


def test_a_new_text_sees_nothing_of_the_one_before_whatever_it_left(session: OrtSession) -> None:
    ids = np.load(CASE / "prefill.npz")["p17.ids"].tolist()
    first = Text(session).feed(ids, (17,))
    spoiled = session.snapshot()
    for array in spoiled.values():
        array[...] = np.nan if array.dtype.kind == "f" else 999
    session.restore(spoiled)
    again = Text(session)
    again.commit = 5
    assert (again.feed(ids, (17,)) == first).all()


def test_states_take_the_same_memory_after_many_calls(session: OrtSession) -> None:
    states = state_specs(session.signature)
    assert {tensor.name.rsplit("_", 1)[0] for tensor in states if tensor.dtype != "int64"} == {
        f"past_{name}" for name in ("state", "window", "inputs", "keys", "values", "decays")
    }
    assert all(isinstance(size, int) for tensor in states for size in tensor.shape)
