"""Every limit of the table at its border: a little less is the same, a little more is different."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.compare.arrays import compare_values
from draftrt.compare.measures import Judge, Verdicts
from draftrt.tolerances import (
    FP16_AGAINST_FP32,
    GOLDEN_ATOL,
    IDS,
    LIMITS,
    LOGITS,
    Limit,
    golden_limit,
)

ALL = list(dict.fromkeys([*LIMITS.values(), FP16_AGAINST_FP32]))
VALUE_LIMITS = [limit for limit in ALL if limit.atol or limit.rtol]
VECTORS = ("hidden", *LOGITS)
CASES = list(dict.fromkeys((key[2], one) for key, one in LIMITS.items() if key[2] in VECTORS))
COUNT = 1000
Rows = NDArray[np.float64]
Pair = tuple[Rows, Rows]


def id_of(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("limit", VALUE_LIMITS, ids=id_of)
@pytest.mark.parametrize("largest", [0.5, 40.0])
def test_an_element_may_differ_by_the_limit(limit: Limit, largest: float) -> None:
    want = np.array([[0.25, -largest, 0.125]])
    for part, is_same in ((0.99, True), (1.01, False)):
        got = want + np.array([[0.0, 0.0, part * (limit.atol + limit.rtol * largest)]])
        assert bool(compare_values("hidden", want, got, limit)) is is_same


@pytest.mark.parametrize("limit", [one for one in ALL if one.agreement < 1], ids=id_of)
def test_so_many_ids_may_differ_over_all_rounds(limit: Limit) -> None:
    allowed = math.floor((1 - limit.agreement) * COUNT + 1e-6)
    for count, is_same in ((allowed, True), (allowed + 1, False)):
        judge = Judge({"draft_ids": limit}, is_sequential=False)
        want = np.zeros((1, COUNT), np.int64)
        got = (np.arange(COUNT) < count).astype(np.int64)[None]
        assert all(judge({"draft_ids": want}, {"draft_ids": got}).values())
        assert bool(judge.shares()["draft_ids"]) is is_same


@pytest.mark.parametrize(
    ("name", "limit"), [(k[2], v) for k, v in LIMITS.items() if k[2] in IDS and v.agreement == 1]
)
def test_where_all_ids_must_agree_one_is_a_difference(name: str, limit: Limit) -> None:
    judge = Judge({"draft_ids": limit, name: limit}, is_sequential=False)
    want = {"draft_ids": np.zeros((1, COUNT), np.int64), name: np.zeros((1, COUNT), np.int64)}
    got = {key: array.copy() for key, array in want.items()}
    assert all(judge(want, got).values())
    got[name][0, 7] = 1
    assert not judge(want, got)[name]


def turned(limit: Limit, part: float) -> Pair:
    """A row turned by an angle."""
    angle = 2 * math.asin(math.sqrt(part * (1 - limit.cosine) / 2))  # 1 - cos, without its rounding
    return np.array([[1.0, 0, 0]]), np.array([[math.cos(angle), math.sin(angle), 0]])


def longer(limit: Limit, part: float) -> Pair:
    want = np.array([[3.0, -4.0, 12.0]])
    return want, want * (1 + part * limit.norm)


def diverged(limit: Limit, part: float) -> Pair:
    """Equal logits against ones of which one is larger, found by halving."""

    def kl(gap: float) -> float:  # uniform over 4 against softmax([gap, 0, 0, 0])
        return math.log((math.exp(gap) + 3) / 4) - gap / 4

    low, high = 0.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) < part * limit.divergence else (low, middle)
    return np.zeros((1, 4)), np.array([[low, 0, 0, 0]])


def reordered(limit: Limit, part: float) -> Pair:
    """Rows of which some lose one of the ten largest logits."""
    want = np.tile(np.arange(20.0)[::-1], (COUNT, 1))
    got = want.copy()
    count = math.floor(10 * COUNT * (1 - limit.overlap) + 1e-6) + (part > 1)
    for row in range(count % COUNT):
        got[row, 9], got[row, 10] = want[row, 10], want[row, 9]
    for row in range(COUNT * (count // COUNT)):  # more than one a row, from the ninth down
        place, other = row % COUNT, 8 - row // COUNT
        got[place, other], got[place, 11 + row // COUNT] = -1.0 - row // COUNT, 30.0
    return want, got


def otherwise_chosen(limit: Limit, part: float) -> Pair:
    want = np.tile(np.arange(4.0), (COUNT, 1))
    got = want.copy()
    count = math.floor((1 - limit.agreement) * COUNT + 1e-6) + (part > 1)
    got[:count, 0] = 5.0
    return want, got


@pytest.mark.parametrize(
    ("measure", "craft"),
    [
        ("cosine, smallest", turned),
        ("norm off by, largest", longer),
        ("KL divergence, largest", diverged),
        ("top-10 overlap, mean", reordered),
        ("top-1 agreement", otherwise_chosen),
    ],
)
@pytest.mark.parametrize(("name", "limit"), CASES, ids=id_of)
def test_every_measure_is_judged_at_its_limit(
    measure: str, craft: Callable[[Limit, float], Pair], name: str, limit: Limit
) -> None:
    if name == "hidden" and not measure.startswith(("cosine", "norm")):
        return  # no logits
    for part, is_same in ((0.97, True), (1.03, False)):
        verdicts = Verdicts({name: limit})
        want, got = craft(limit, part)
        verdicts.add({name: want[None]}, {name: got[None]})
        (found,) = (one for one in verdicts.measures() if one.name == measure)
        assert bool(found) is is_same, (found.seen, found.limit)


def test_a_confidence_may_differ_by_both_parts() -> None:
    for limit in {value for (_, _, name), value in LIMITS.items() if name == "confidence"}:
        for part, is_same in ((0.99, True), (1.01, False)):
            verdicts = Verdicts({"confidence": limit})
            want = np.array([[0.1, 0.9]])
            verdicts.add(
                {"confidence": want}, {"confidence": want + part * (limit.atol + limit.rtol)}
            )
            (found,) = verdicts.measures()
            assert bool(found) is is_same


def test_golden_arrays_are_judged_at_theirs() -> None:
    assert GOLDEN_ATOL == 1e-4
    want = np.array([100.0, -3.0])
    for limit, allowed in ((golden_limit("any", None), 1e-4), (golden_limit("any", 5e-5), 5e-5)):
        assert compare_values("hidden", want, want + 0.99 * allowed, limit)
        assert not compare_values("hidden", want, want + 1.01 * allowed, limit)
