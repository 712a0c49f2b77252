"""The drafter's context: how it grows, is cropped, and what is refused before a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import FeedError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.proposal import Proposal, confident_length, propose


def build(toy: SimpleNamespace, capacity: int = 20) -> tuple[DraftSession, Any]:
    session = toy.session(toy.signature(4, 5, capacity, confidence=True), (2,))
    return DraftSession(toy.spec(confidence=True), session), session


def features(toy: SimpleNamespace, start: int, ids: list[int]) -> NDArray[np.float32]:
    rows = [[start + index, token, 0, 0, 0, 0] for index, token in enumerate(ids)]
    return np.array([rows], np.float32)


def test_a_call_adds_the_context_rows_and_none_of_the_block(toy: SimpleNamespace) -> None:
    drafter, session = build(toy)
    drafter.draft(7, features(toy, 0, [1, 2, 3]))
    assert (drafter.context_length, session.cache) == (3, [1, 2, 3])
    drafter.draft(8, features(toy, 3, [7]))
    assert (drafter.context_length, session.cache) == (4, [1, 2, 3, 7])


def test_a_graph_is_asked_for_the_rows_of_context_and_block(
    toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches that grow have just these rows: with fewer a block would be written past them."""
    drafter, session = build(toy)
    run = session.run
    asked: list[int | None] = []

    def noted(*args: Any, rows: int | None = None, **named: Any) -> Any:
        asked.append(rows)
        return run(*args, rows=rows, **named)

    monkeypatch.setattr(session, "run", noted)
    drafter.draft(7, features(toy, 0, [1, 2, 3]))
    drafter.draft(8, features(toy, 3, [7]))
    drafter.crop(1)
    drafter.draft(9, features(toy, 1, [6, 6]))
    assert asked == [3 + 5, 4 + 5, 3 + 5]


def test_cropping_is_a_length_and_never_grows(toy: SimpleNamespace) -> None:
    drafter, session = build(toy)
    drafter.draft(7, features(toy, 0, [1, 2, 3]))
    drafter.crop(1)
    assert drafter.context_length == 1
    drafter.crop(5)
    assert drafter.context_length == 1
    drafter.draft(9, features(toy, 1, [6]))
    assert session.cache == [1, 6]


def test_the_last_block_that_fits_runs_and_the_next_is_refused_before_it_runs(
    toy: SimpleNamespace,
) -> None:
    drafter, session = build(toy)
    drafter.draft(7, features(toy, 0, [1] * 14))
    drafter.draft(7, features(toy, 14, [1]))
    assert len(session.offered) == 2
    with pytest.raises(FeedError) as refusal:
        drafter.draft(7, features(toy, 15, [1]))
    assert "15 rows + 1 new + block of 5 = 21 rows, expected at most 20" in str(refusal.value)
    assert "--max-context" in refusal.value.hint
    assert len(session.offered) == 2
    assert drafter.context_length == 15


@pytest.mark.parametrize(
    ("width", "cause"),
    [
        (3, r"width 3 \(1 layers of 3\), expected 6 = 2 layers \[1, 3\] of 3"),
        (8, r"width 8 \(hidden size 4\), expected 6"),
        (7, r"width 7 \(no whole number of layers\), expected 6"),
    ],
)
def test_features_of_the_wrong_width_name_both_sizes_and_the_likely_cause(
    toy: SimpleNamespace, width: int, cause: str
) -> None:
    drafter, session = build(toy)
    with pytest.raises(FeedError, match=cause) as refusal:
        drafter.draft(7, np.zeros((1, 2, width), np.float32))
    assert "lacks a tapped layer" in refusal.value.hint
    assert session.offered == []


def test_features_of_another_type_are_refused_by_the_signature(toy: SimpleNamespace) -> None:
    drafter, _ = build(toy)
    with pytest.raises(FeedError, match="target_hidden: got dtype float64, expected float32"):
        drafter.draft(7, np.zeros((1, 2, 6)))  # type: ignore[arg-type]
    assert drafter.context_length == 0


def test_a_proposal_is_the_first_row_of_the_graphs_outputs(toy: SimpleNamespace) -> None:
    drafter, _ = build(toy)
    proposal = propose(drafter, 7, features(toy, 0, [1, 2]))
    text = [1, 2, 7]
    assert proposal.token_ids[:2].tolist() == toy.greedy(text, 2)
    assert proposal.confidences is not None
    assert proposal.confidences.tolist() == pytest.approx([0.9, 0.9, 0.1, 0.1])
    assert proposal.distribution is None
    assert proposal.head(3).token_ids.tolist() == proposal.token_ids[:3].tolist()


@pytest.mark.parametrize(
    ("threshold", "length"),
    [(0.0, 4), (0.1, 4), (0.4, 4), (0.41, 2), (0.6, 2), (0.85, 1), (1.0, 0)],
)
def test_the_first_draft_in_doubt_and_all_behind_it_are_dropped(
    threshold: float, length: int
) -> None:
    proposal = Proposal(
        token_ids=np.arange(4), confidences=np.array([0.9, 0.8, 0.4, 0.95], np.float32)
    )
    assert confident_length(proposal, threshold) == length


def test_cache_memory_a_token_is_known(toy: SimpleNamespace) -> None:
    drafter, session = build(toy)
    assert drafter.cache_bytes_per_token == 2 * 2 * 4  # key and value, 2 elements, 4 bytes
    drafter.close()
    assert session.closed
