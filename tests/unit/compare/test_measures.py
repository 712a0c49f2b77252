"""Choices, distributions, directions: each figure against a slow computation in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.compare.measures import (
    Measure,
    Verdicts,
    cosine,
    divergence,
    norm_error,
    top_one,
    top_overlap,
)
from draftrt.tolerances import Limit

Rows = list[list[float]]
LIMIT = Limit(
    atol=0.1,
    agreement=0.9,
    overlap=0.9,
    divergence=0.01,
    cosine=0.99,
    norm=0.05,
    reason="test",
)


def pair(seed: int, noise: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    want = (5 * rng.standard_normal((7, 23))).astype(np.float32)
    return want, (want + noise * rng.standard_normal(want.shape)).astype(np.float32)


def softmax(row: list[float]) -> list[float]:
    raised = [math.exp(x - max(row)) for x in row]
    return [x / sum(raised) for x in raised]


def slow_divergence(a: list[float], b: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(softmax(a), softmax(b), strict=True) if p)


def slow_cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def slow_norm_error(a: list[float], b: list[float]) -> float:
    return abs(math.sqrt(sum(y * y for y in b)) / math.sqrt(sum(x * x for x in a)) - 1)


def slow_overlap(a: list[float], b: list[float]) -> float:
    first, second = (
        set(sorted(range(len(row)), key=lambda index: -row[index])[:10]) for row in (a, b)
    )
    return len(first & second) / 10


def slow_top_one(a: list[float], b: list[float]) -> float:
    return float(a.index(max(a)) == b.index(max(b)))


@pytest.mark.parametrize("noise", [1e-4, 0.3, 3.0])
@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        (divergence, slow_divergence),
        (cosine, slow_cosine),
        (norm_error, slow_norm_error),
        (top_overlap, slow_overlap),
        (top_one, slow_top_one),
    ],
)
def test_every_figure_is_what_its_definition_gives(
    fast: Callable[[Any, Any], NDArray[np.float64]],
    slow: Callable[[list[float], list[float]], float],
    noise: float,
) -> None:
    want, got = pair(3, noise)
    rows = zip(want.astype(np.float64).tolist(), got.astype(np.float64).tolist(), strict=True)
    expected = [slow(a, b) for a, b in rows]
    np.testing.assert_allclose(fast(want, got), expected, rtol=1e-9, atol=1e-12)


def test_logits_far_from_zero_do_not_overflow() -> None:
    want = np.array([[6e4, 0.0, -6e4]], np.float32)
    assert divergence(want, want) == [0.0]
    assert divergence(want, want[:, ::-1])[0] == pytest.approx(12e4)


def test_rows_of_zeros_agree_with_each_other_only() -> None:
    zero, one = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert cosine(zero, zero) == [1.0]
    assert norm_error(zero, zero) == [0.0]
    assert not cosine(zero, one) >= 0.5
    assert norm_error(zero, one) == [np.inf]


def measured(noise: float, limit: Limit = LIMIT) -> dict[str, Measure]:
    verdicts = Verdicts({"logits": limit, "confidence": limit})
    for seed in range(3):
        want, got = pair(seed, noise)
        both = [{"logits": x[None], "confidence": x[None, :, 0]} for x in (want, got)]
        verdicts.add(*both)
    found = verdicts.measures()
    assert all(one.num_rows == 21 for one in found)
    return {f"{one.output} {one.name}": one for one in found}


def test_small_noise_is_the_same_and_large_noise_fails_every_measure() -> None:
    assert all(measured(1e-3).values())
    failed = [name for name, one in measured(4.0).items() if not one]
    assert failed == [
        "logits top-1 agreement",
        "logits top-10 overlap, mean",
        "logits KL divergence, largest",
        "logits cosine, smallest",
        "logits norm off by, largest",
        "confidence error, largest",
    ]


def test_what_has_no_number_fails_every_measure_with_a_limit() -> None:
    verdicts = Verdicts({"logits": LIMIT, "hidden": LIMIT})
    want, got = pair(0, 0.0)
    got[2, 4] = np.nan
    verdicts.add(*({"logits": x[None], "hidden": x[None]} for x in (want, got)))
    failed = {(one.output, one.name) for one in verdicts.measures() if not one}
    assert ("logits", "KL divergence, largest") in failed
    assert ("hidden", "cosine, smallest") in failed
    assert ("hidden", "norm off by, largest") in failed
    assert all(
        one.to_json()["seen"] == "nan" for one in verdicts.measures() if one.seen != one.seen
    )


def test_another_shape_is_left_to_the_comparison_of_elements() -> None:
    verdicts = Verdicts({"hidden": LIMIT})
    verdicts.add({"hidden": np.ones((1, 3, 4))}, {"hidden": np.ones((1, 3, 5))})
    assert verdicts.measures() == []
