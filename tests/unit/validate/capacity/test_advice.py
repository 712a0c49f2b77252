"""Break-even of speculation, against enumerated rounds."""

from __future__ import annotations

import itertools

import pytest

from draftrt.manifest import Costs
from draftrt.validate.capacity.capacity import (
    best_choice,
    break_even,
    expected_length,
    modelled_costs,
)


def enumerated_length(acceptance: float, num_drafts: int) -> float:
    """The mean over every pattern of kept drafts, each with its probability."""
    total = 0.0
    for kept in itertools.product((True, False), repeat=num_drafts):
        probability = 1.0
        for one in kept:
            probability *= acceptance if one else 1 - acceptance
        prefix = next((place for place, one in enumerate(kept) if not one), num_drafts)
        total += probability * (prefix + 1)
    return total


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("num_drafts", [0, 1, 4, 7])
def test_expected_tokens_are_those_of_enumerated_rounds(acceptance: float, num_drafts: int) -> None:
    found = expected_length(acceptance, num_drafts)
    assert found == pytest.approx(enumerated_length(acceptance, num_drafts))


def test_a_round_pays_once_it_yields_more_tokens_than_steps_take_its_time() -> None:
    costs = Costs(draft_ms=4.0, verify_ms={1: 10.0, 8: 17.0}, context=256)
    assert break_even(costs, 7) == pytest.approx((4 + 17) / 10)
    assert break_even(costs, 3) == pytest.approx((4 + 13) / 10)


def test_the_best_length_is_that_of_a_search_over_all() -> None:
    costs = Costs(draft_ms=2.0, verify_ms={1: 10.0, 2: 14.0, 4: 22.0, 8: 38.0}, context=256)
    for acceptance in (0.2, 0.5, 0.9, 0.99):
        rates = [
            enumerated_length(acceptance, n) / costs.rounds(7)[n] * costs.verify(1)
            for n in range(1, 8)
        ]
        best = best_choice(costs, acceptance, 7)
        if max(rates) <= 1:
            assert (best.num_drafts, best.speedup) == (0, 1.0)
        else:
            assert best.num_drafts == rates.index(max(rates)) + 1
            assert best.speedup == pytest.approx(max(rates))
    assert best_choice(costs, 0.2, 7).num_drafts == 0
    assert best_choice(costs, 0.99, 7).num_drafts > 1


def test_modelled_costs_are_bytes_by_bandwidth() -> None:
    costs = modelled_costs(
        target_bytes=8_000_000_000, draft_bytes=1_000_000_000, bandwidth=100e9, context=4096
    )
    assert costs.verify(1) == costs.verify(9) == pytest.approx(80.0)
    assert costs.draft_ms == pytest.approx(10.0)
    assert break_even(costs, 8) == pytest.approx(90 / 80)
