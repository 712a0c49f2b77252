"""Arrays are the same within a limit; NaN, a lost infinity or another shape never is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftrt.compare.arrays import Finding, compare_ids, compare_values, worst_of
from draftrt.tolerances import Limit

LIMIT = Limit(atol=1e-3, reason="test")
EXACT = Limit(reason="test")
INF, NAN = float("inf"), float("nan")


def values(want: list[Any], got: list[Any], limit: Limit = LIMIT) -> Finding:
    return compare_values("x", np.array(want, np.float32), np.array(got, np.float32), limit)


@pytest.mark.parametrize(
    ("want", "got", "is_same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.0009], True),
        ([1.0, 2.0], [1.0, 2.0011], False),
        ([NAN], [NAN], False),
        ([NAN], [1.0], False),
        ([1.0], [NAN], False),
        ([INF], [INF], True),
        ([-INF, 1.0], [-INF, 1.0], True),
        ([INF], [-INF], False),
        ([-INF], [-1e30], False),
        ([1.0], [INF], False),
        ([INF, 1.0], [INF, 1.01], False),
    ],
)
def test_values_are_judged_one_by_one(want: list[float], got: list[float], is_same: bool) -> None:
    assert bool(values(want, got)) is is_same


def test_the_relative_part_goes_by_the_largest_finite_value() -> None:
    limit = Limit(rtol=1e-3, reason="test")
    assert values([0.0, 100.0], [0.09, 100.0], limit)
    assert not values([0.0, 100.0], [0.11, 100.0], limit)
    assert values([0.0, 100.0, INF], [0.09, 100.0, INF], limit).allowed == pytest.approx(0.1)
    assert not values([0.0, 1.0, INF], [0.09, 1.0, INF], limit)


def test_a_difference_says_how_much_where_and_what() -> None:
    found = values([0.0, 1.0, 2.0], [0.0, 1.5, 2.1])
    assert found.worst == pytest.approx(0.5)
    assert found.problem == "differs by 5.0e-01, limit 1.0e-03; at [1] got 1.5, expected 1"


def test_nan_is_the_worst_difference_and_reported_as_text() -> None:
    found = values([0.0, 9.0], [5.0, NAN])
    assert found.worst == INF
    assert "got nan, expected 9" in found.problem
    assert found.to_json()["worst"] == "inf"


def test_another_shape_or_no_output_is_a_difference() -> None:
    want = np.zeros((2, 3), np.float32)
    assert "got shape [3, 2], expected [2, 3]" in compare_values("x", want, want.T, LIMIT).problem
    assert "no such output" in compare_values("x", want, None, LIMIT).problem
    assert not compare_values("x", want, None, LIMIT)
    assert not compare_ids("x", np.array([1, 2]), np.array([1]), EXACT)
    assert not compare_ids("x", np.array([1, 2]), None, EXACT)


def test_ids_must_all_agree_unless_the_limit_allows_some_not_to() -> None:
    want, got = np.arange(10), np.arange(10)
    assert compare_ids("ids", want, got, EXACT)
    got[3] = 99
    found = compare_ids("ids", want, got, EXACT)
    assert not found
    assert (found.num_equal, found.num_compared) == (9, 10)
    assert found.problem.endswith("expected [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert compare_ids("ids", want, got, Limit(agreement=0.9, reason="test"))
    assert not compare_ids("ids", want, got, Limit(agreement=0.95, reason="test"))


def test_no_ids_at_all_is_not_agreement() -> None:
    assert not compare_ids("ids", np.zeros(0, np.int64), np.zeros(0, np.int64), EXACT)


def test_the_largest_excess_over_its_limit_comes_first() -> None:
    named = {"small": values([0.0], [0.002]), "fine": values([0.0], [0.0])}
    named |= {"nan": values([0.0], [NAN]), "large": values([0.0], [4.0])}
    assert [name for name, _ in worst_of(named)] == ["nan", "large", "small"]
