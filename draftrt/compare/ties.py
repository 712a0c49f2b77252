"""What a graph chose against what its module chose: another id may be a near tie, or it is wrong.

Only in 16 bits: float32 paths differ by far less than the gap between any two scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import ONNXRUNTIME
from draftrt.signature import DRAFT_IDS, LOGITS, NEXT_IDS
from draftrt.spec import Precision
from draftrt.tolerances import limit_of

Arrays = Mapping[str, NDArray[Any]]

# What drafts are chosen from; the last two where there is a selector.
CHOSEN_FROM = (LOGITS, "candidate_ids", "candidate_scores")
TIE = 4  # limits that two scores are apart: each may move by one, and a selector adds two


def draft_ids_differ(want: Arrays, got: Arrays, precision: Precision) -> str | None:
    """Return what is wrong with the ids of a round, None where nothing is.

    In 16 bits the first different id may be a tie within the limit; in float32 never.

    Args:
        want: outputs of the module, those of `CHOSEN_FROM` among them.
        got: ``draft_ids`` [1, n] int64 of the graph.
        precision: of the computation.
    """
    if np.array_equal(want[DRAFT_IDS], got[DRAFT_IDS]):
        return None
    expected, ids = want[DRAFT_IDS][0], got[DRAFT_IDS][0]
    row = int(np.flatnonzero(expected != ids)[0])
    scores = want["candidate_scores" if "candidate_scores" in want else LOGITS][0, row]
    order = np.sort(scores)
    is_tie = order[-1] - order[-2] <= _tie(scores, precision)
    if "candidate_ids" in want:
        candidates, logits = want["candidate_ids"][0, row], want[LOGITS][0, row]
        is_tie |= _may_fall_out(candidates, candidates[scores.argmax()], logits, precision)
        is_tie |= _may_come_in(candidates, int(ids[row]), logits, precision)
    if precision is not Precision.FP32 and is_tie:
        return None
    return f"draft ids {ids.tolist()}, expected {expected.tolist()}"


def candidates_differ(want: Arrays, got: Arrays, precision: Precision) -> str | None:
    """Return what is wrong with the candidates of a round that drafted the same ids.

    In 16 bits the last of a row's candidates may be others where that is a tie within the limit;
    scores are compared of those that both have.

    Args:
        want: outputs of the module, ``logits`` among them.
        got: ``candidate_ids`` and ``candidate_scores`` [1, n, k] of the graph.
        precision: of the computation.
    """
    limit = limit_of(ONNXRUNTIME, precision, "candidate_scores")
    rows = zip(want["candidate_ids"][0], got["candidate_ids"][0], strict=True)
    for row, (expected, found) in enumerate(rows):
        logits, scores = want[LOGITS][0, row], want["candidate_scores"][0, row]
        others = [int(one) for one in found if one not in expected]
        may_differ = precision is not Precision.FP32
        if others and not (
            may_differ and all(_may_come_in(expected, one, logits, precision) for one in others)
        ):
            return f"candidates {sorted(found.tolist())}, expected {sorted(expected.tolist())}"
        _, at, where = np.intersect1d(expected, found, return_indices=True)
        gap = float(np.abs(scores[at] - got["candidate_scores"][0, row][where]).max(initial=0.0))
        allowed = limit.allowed(scores)
        if not gap <= allowed:
            return f"candidate_scores differs by {gap:.1e}, limit {allowed:.1e}"
    return None


def is_tie(scores: NDArray[Any], token: int, precision: Precision) -> bool:
    """Return whether a token's score is the best one but for what two computations may differ by.

    Args:
        scores: [V] float32 logits.
        token: the choice in question.
        precision: of the computation.
    """
    return bool(scores.max() - scores[token] <= _tie(scores, precision))


def next_ids_differ(got: Arrays) -> str | None:
    """Return what is wrong with a target's ids [1, S]: each has the largest of its logits.

    They are compared with the graph's own logits: PyTorch's may be tied.
    """
    ids, logits = got[NEXT_IDS], got[LOGITS]
    inside = np.clip(ids, 0, logits.shape[-1] - 1)
    chosen = np.take_along_axis(logits, inside[..., None], axis=-1)[..., 0]
    wrong = np.argwhere((inside != ids) | (chosen != logits.max(axis=-1)))
    if not len(wrong):
        return None
    place = tuple(wrong[0])
    return (
        f"{NEXT_IDS}[{place[1]}] is {ids[place]}, expected {logits[place].argmax()}, which has "
        "the largest of its logits"
    )


def _tie(scores: NDArray[Any], precision: Precision) -> float:
    return TIE * limit_of(ONNXRUNTIME, precision, LOGITS).allowed(scores)


def _may_fall_out(
    candidates: NDArray[Any], chosen: int, logits: NDArray[Any], precision: Precision
) -> bool:
    """Whether the chosen candidate is one by no more than a tie with those left out."""
    left_out = np.delete(logits, candidates)
    return bool(logits[chosen] - left_out.max(initial=-np.inf) <= _tie(logits, precision))


def _may_come_in(
    candidates: NDArray[Any], other: int, logits: NDArray[Any], precision: Precision
) -> bool:
    """Whether the other choice is no candidate by no more than a tie with the last one.

    A drafter with a selector drafts in the target's own vocabulary: its ids are columns.
    """
    if other in candidates:
        return False
    return bool(logits[candidates].min() - logits[other] <= _tie(logits, precision))
