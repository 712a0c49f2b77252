"""Where another id may be drafted than the module drafts: near ties of what it is chosen from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftrt.errors import ExportError
from draftrt.export.check.compare import compare_outputs
from draftrt.spec import Precision

CLEAR, TIED = [5.0, 1.0, 0.0], [5.0, 4.99, 0.0]


AT_THE_EDGE = [0.5] * 4 + [2.49, 3.0, 5.0, 2.5, 2.45]  # 5, 6 and 7 are the candidates
INSIDE = [0.5] * 4 + [0.0, 3.0, 5.0, 4.0, 0.2]


def compare(precision: Precision, logits: list[float], scores: list[float] | None) -> None:
    """Compare a round in which the graph's first draft is another one."""
    want: dict[str, Any] = {
        "draft_ids": np.array([[7, 3]]),
        "logits": np.array([[logits, CLEAR]], np.float32),
    }
    if scores is not None:
        want["candidate_scores"] = np.array([[scores, CLEAR]], np.float32)
    got = {"draft_ids": np.array([[8, 3]])}
    compare_outputs("draft.onnx", want, got, (4, 1), precision)


@pytest.mark.parametrize(
    ("logits", "scores"), [(TIED, None), (CLEAR, TIED)], ids=["logits", "a selector's scores"]
)
def test_a_near_tie_may_fall_the_other_way_in_16_bits(
    logits: list[float], scores: list[float] | None
) -> None:
    compare(Precision.FP16, logits, scores)
    with pytest.raises(ExportError, match=r"context length 4 .* draft ids \[8, 3\], expected"):
        compare(Precision.FP32, logits, scores)


@pytest.mark.parametrize(
    ("logits", "scores"), [(CLEAR, None), (TIED, CLEAR)], ids=["logits", "a selector's scores"]
)
def test_a_clear_choice_may_not(logits: list[float], scores: list[float] | None) -> None:
    with pytest.raises(ExportError, match=r"draft ids \[8, 3\], expected \[7, 3\]"):
        compare(Precision.FP16, logits, scores)


def choose(precision: Precision, logits: list[float], other: int) -> None:
    """Compare a round in which a selector chose 7 from 5, 6 and 7, and the graph ``other``."""
    want: dict[str, Any] = {
        "draft_ids": np.array([[7]]),
        "logits": np.array([[logits]], np.float32),
        "candidate_ids": np.array([[[5, 6, 7]]]),
        "candidate_scores": np.array([[[1.0, 2.0, 9.0]]], np.float32),
    }
    got = {"draft_ids": np.array([[other]])}
    compare_outputs("draft.onnx", want, got, (4, 1), precision)


@pytest.mark.parametrize("other", [6, 8], ids=["the choice fell out", "another came in"])
def test_a_selectors_candidates_may_change_at_their_edge_in_16_bits(other: int) -> None:
    choose(Precision.FP16, AT_THE_EDGE, other)
    with pytest.raises(ExportError, match="draft ids"):
        choose(Precision.FP32, AT_THE_EDGE, other)
    with pytest.raises(ExportError, match="draft ids"):
        choose(Precision.FP16, INSIDE, other)


def candidates(precision: Precision, logits: list[float], ids: list[int], last: float) -> None:
    """Compare a round in which both chose 7, and the graph from ``ids``, the last scored so."""
    want: dict[str, Any] = {
        "draft_ids": np.array([[7]]),
        "logits": np.array([[logits]], np.float32),
        "candidate_ids": np.array([[[7, 5, 6]]]),
        "candidate_scores": np.array([[[9.0, 1.0, 2.0]]], np.float32),
    }
    got = {
        "draft_ids": np.array([[7]]),
        "candidate_ids": np.array([[ids]]),
        "candidate_scores": np.array([[[1.0, 9.0, last]]], np.float32),
    }
    compare_outputs("draft.onnx", want, got, (4, 1), precision)


LAST = [0.5] * 4 + [2.49, 3.0, 2.5, 5.0, 0.2]  # 5, 6 and 7 are candidates, 4 nearly one


def test_candidates_that_drafts_are_drawn_from_may_change_at_their_edge_in_16_bits() -> None:
    for precision in (Precision.FP16, Precision.FP32):
        candidates(precision, LAST, [5, 7, 6], 2.0)  # the same in another order
        with pytest.raises(ExportError, match=r"candidate_scores differs by 3"):
            candidates(precision, LAST, [5, 7, 6], 5.0)
        with pytest.raises(ExportError, match=r"candidates \[5, 7, 8\], expected \[5, 6, 7\]"):
            candidates(precision, LAST, [5, 7, 8], 2.0)
    candidates(Precision.FP16, LAST, [5, 7, 4], -3.0)
    with pytest.raises(ExportError, match=r"candidates \[4, 5, 7\], expected \[5, 6, 7\]"):
        candidates(Precision.FP32, LAST, [5, 7, 4], -3.0)
