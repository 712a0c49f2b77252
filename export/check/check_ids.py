"""Ids that a graph drafts and its module does not: near ties of what is chosen from, in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.spec import Precision

CHOSEN_FROM = ("logits", "candidate_ids", "candidate_scores")  # the others where it is a selector
TOLERANCE = {Precision.FP32: 2e-4, Precision.FP16: 4e-2, Precision.BF16: 2e-4}


def ids_differ(want: dict[str, Any], ids: NDArray[Any], precision: Precision) -> str | None:
    """Return what is wrong with the ids of a round, None where nothing is.

    In 16 bits the first different id may be a tie within the tolerance; in float32 never.

    Args:
        want: outputs of the module, those of `CHOSEN_FROM` among them.
        ids: [1, n] int64, draft ids of the graph, not all equal to the module's.
        precision: of the computation.
    """
    expected = want["draft_ids"][0]
    row = int(np.flatnonzero(expected != ids[0])[0])
    scores = want.get("candidate_scores", want["logits"])[0, row]
    order = np.sort(scores)
    is_tie = order[-1] - order[-2] <= _tie(scores, precision)
    if "candidate_ids" in want:
        candidates, logits = want["candidate_ids"][0, row], want["logits"][0, row]
        is_tie |= _may_fall_out(candidates, candidates[scores.argmax()], logits, precision)
        is_tie |= _may_come_in(candidates, int(ids[0, row]), logits, precision)
    if precision is not Precision.FP32 and is_tie:
        return None
    return f"draft ids {ids[0].tolist()}, expected {expected.tolist()}"


def candidates_differ(
    want: dict[str, Any], got: Mapping[str, NDArray[Any]], precision: Precision
) -> str | None:
    """Return what is wrong with the candidates of a round that drafted the same ids.

    In 16 bits the last of a row's candidates may be others where that is a tie within the
    tolerance; scores are compared of those that both have.

    Args:
        want: outputs of the module, ``logits`` among them.
        got: ``candidate_ids`` and ``candidate_scores`` [1, n, k] of the graph.
        precision: of the computation.
    """
    rows = zip(want["candidate_ids"][0], got["candidate_ids"][0], strict=True)
    for row, (expected, found) in enumerate(rows):
        logits, scores = want["logits"][0, row], want["candidate_scores"][0, row]
        others = [int(one) for one in found if one not in expected]
        may_differ = precision is not Precision.FP32
        if others and not (
            may_differ and all(_may_come_in(expected, one, logits, precision) for one in others)
        ):
            return f"candidates {sorted(found.tolist())}, expected {sorted(expected.tolist())}"
        _, at, where = np.intersect1d(expected, found, return_indices=True)
        gaps = np.abs(scores[at] - got["candidate_scores"][0, row][where])
        gap = float(gaps.max(initial=0.0))
        gap /= max(1.0, float(np.abs(scores).max()))
        if not gap <= TOLERANCE[precision]:
            return f"candidate_scores by {gap:.2e} (relative to their largest value)"
    return None


def _tie(scores: NDArray[Any], precision: Precision) -> float:
    return 4 * TOLERANCE[precision] * max(1.0, float(np.abs(scores).max()))


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
