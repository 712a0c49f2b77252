"""Several rounds of one sequence, by the slow drafter and by another, compared output by output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.models.signature import CANDIDATE_OUTPUTS, EXTRA_OUTPUTS
from tests.parity.family_checkpoints import Case, rounds

OUTPUTS = (*EXTRA_OUTPUTS, *CANDIDATE_OUTPUTS)  # of the drafter to compare
TOLERANCE = 4e-5  # relative to the largest value: float32 against float64
MARGIN = 1e-5  # a smaller gap between the best two logits makes ids a matter of luck
Draft = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def compare_rounds(case: Case, draft: Draft, seed: int) -> None:
    """Fail at the first output that differs.

    Args:
        case: checkpoint with its slow drafter.
        draft: takes the feeds of a round and returns its outputs; keeps caches itself.
        seed: of features and anchors.
    """
    length = 0
    for number, (features, anchor) in enumerate(rounds(case, seed)):
        got = draft(
            {
                "anchor": np.array([anchor]),
                "target_hidden": features[None],
                "context_length": np.array([length]),
            }
        )
        want = case.slow.draft(features, anchor)
        for name, expected in want.items():
            if expected.dtype == np.int64:
                assert np.array_equal(got[name][0], expected), f"round {number}: {name}"
                continue
            limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
            gap = float(np.abs(got[name][0] - expected).max())
            assert gap <= limit, f"round {number}: {name} differs by {gap:.1e}"
        best = np.sort(want["logits"], axis=-1)
        assert (best[:, -1] - best[:, -2]).min() > MARGIN, (
            f"round {number}: near tie, take another seed"
        )
        length += len(features)
