"""Verifying as many drafts as pay: the right number, and never at the cost of the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.codec import from_json, to_json
from draftrt.errors import BundleError, SpecError, UnsupportedError
from draftrt.manifest import Costs
from draftrt.runtime.decoding.acceptance import accept_rejection, draw
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import DraftDistribution
from draftrt.runtime.decoding.schedule import survival_length, where

PROMPT = (3, 1, 4, 1, 5)
FLAT = Costs(draft_ms=1.0, verify_ms={1: 10.0}, context=256)
STEEP = Costs(draft_ms=1.0, verify_ms={1: 10.0, 2: 30.0}, context=256)
Length = Callable[[Sequence[float], Sequence[float]], int]


def mean_tokens(confidences: Sequence[float]) -> float:
    """Tokens of a round, over every way its drafts can fare: the slow, obvious expectation."""
    mean = 0.0
    for kept in product((True, False), repeat=len(confidences)):
        chance = float(np.prod([c if k else 1 - c for c, k in zip(confidences, kept, strict=True)]))
        mean += chance * (1 + ([*kept, False].index(False)))
    return mean


def slow_length(confidences: Sequence[float], round_ms: Sequence[float]) -> int:
    """Add drafts while the next one brings more tokens a millisecond."""
    rates = [mean_tokens(confidences[:n]) / ms for n, ms in enumerate(round_ms)]
    length = 0
    while length < len(confidences) and rates[length + 1] > rates[length]:
        length += 1
    return length


def test_the_length_is_where_the_next_draft_stops_paying() -> None:
    rng = np.random.default_rng(3)
    lengths = set()
    for _ in range(300):
        confidences = rng.random(5).tolist()
        round_ms = (5 + np.cumsum(rng.random(6) * 4)).tolist()
        found = survival_length(confidences, round_ms)
        assert found == slow_length(confidences, round_ms)
        lengths.add(found)
    assert lengths == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("confidences", "costs", "expected"),
    [
        ([0.9, 0.9, 0.9], FLAT, 3),  # a row that costs nothing always pays
        ([0.9, 0.9, 0.9], STEEP, 0),  # a row that costs twice the round never does
        ([0.9, 0.0, 0.9], FLAT, 1),  # behind a draft that cannot survive nothing survives
        ([], FLAT, 0),
    ],
    ids=["free", "dear", "dead", "nothing offered"],
)
def test_lengths_at_the_ends(confidences: list[float], costs: Costs, expected: int) -> None:
    assert survival_length(confidences, costs.rounds(len(confidences))) == expected


def test_costs_between_measured_rows_lie_on_straight_lines() -> None:
    costs = Costs(draft_ms=2.0, verify_ms={1: 10.0, 4: 13.0, 8: 21.0}, context=256)
    assert [costs.verify(rows) for rows in (1, 2, 4, 6, 8, 10)] == [10, 11, 13, 17, 21, 25]
    assert costs.rounds(3) == (12, 13, 14, 15)


@pytest.mark.parametrize("verify_ms", [{2: 1.0}, {}, {1: 0.0}, {0: 1.0, 1: 1.0}])
def test_a_table_without_one_row_or_without_time_is_refused(verify_ms: dict[int, float]) -> None:
    with pytest.raises(SpecError, match="expected positive times, 1 row among them"):
        Costs(draft_ms=1.0, verify_ms=verify_ms, context=1)


def test_every_way_to_run_a_bundle_has_a_name_of_its_own() -> None:
    one = where(port="graph", backend="onnxruntime", device="cpu", threads=1)
    two = where(port="graph", backend="onnxruntime", device="cpu", threads=2)
    assert (one, two) == (
        "target graph, onnxruntime, cpu, 1 thread",
        "target graph, onnxruntime, cpu, 2 threads",
    )


def test_costs_survive_the_manifest() -> None:
    kept = json.loads(json.dumps(to_json({"one": STEEP})))
    assert {name: from_json(Costs, one) for name, one in kept.items()} == {"one": STEEP}


@pytest.mark.parametrize(
    "table", [{}, {"draft_ms": 1, "verify_ms": {"2": 3}, "context": 1}, 7, {"verify_ms": {"x": 1}}]
)
def test_a_damaged_table_is_named(table: object) -> None:
    with pytest.raises((BundleError, SpecError)):
        from_json(Costs, table, "costs.x")


def build(toy: SimpleNamespace, num_right: Sequence[int], costs: Costs | None) -> Any:
    spec = toy.spec(confidence=True)
    session = toy.session(toy.signature(4, 5, 200, confidence=True), num_right)
    return DecodeLoop(toy.target(), DraftSession(spec, session), costs)


@pytest.mark.parametrize("num_right", [(0,), (9,), (2,), (0, 3, 1, 9, 2)])
def test_greedy_text_is_the_targets_own_and_doubtful_drafts_stay_out(
    toy: SimpleNamespace, num_right: tuple[int, ...]
) -> None:
    costs = Costs(draft_ms=1.0, verify_ms={1: 10.0, 5: 18.0}, context=256)
    decoder = build(toy, num_right, costs)
    options = DecodeOptions(max_tokens=60, schedule="survival")
    rounds = list(decoder.decode(PROMPT, options))
    assert [t for one in rounds for t in one.token_ids] == toy.greedy(PROMPT, 60)
    # The toy is 0.9 sure of right drafts and 0.1 of wrong ones, and 0.1 never pays here.
    verified = [min(num_right[i % len(num_right)], 4) for i in range(len(rounds) - 1)]
    assert [one.num_verified for one in rounds[1:]] == verified


def test_the_threshold_cuts_what_the_schedule_left(toy: SimpleNamespace) -> None:
    options = DecodeOptions(max_tokens=20, schedule="survival", confidence_threshold=0.95)
    rounds = list(build(toy, (4,), FLAT).decode(PROMPT, options))
    assert {one.num_verified for one in rounds} == {0}


@pytest.mark.parametrize(("threshold", "verified"), [(0.0, 4), (0.05, 4), (0.5, 2), (0.95, 0)])
def test_threshold_and_schedule_cut_where_the_shorter_one_does(
    toy: SimpleNamespace, threshold: float, verified: int
) -> None:
    """Rows that cost nothing pay to the end, so the threshold alone cuts: 0.9, 0.9, 0.1, 0.1."""
    options = DecodeOptions(max_tokens=20, schedule="survival", confidence_threshold=threshold)
    rounds = list(build(toy, (2,), FLAT).decode(PROMPT, options))
    assert rounds[1].confidences == pytest.approx((0.9, 0.9, 0.1, 0.1))
    assert {one.num_verified for one in rounds[1:]} == {verified}


def test_a_schedule_needs_confidences_and_costs(toy: SimpleNamespace) -> None:
    options = DecodeOptions(schedule="survival")
    with pytest.raises(UnsupportedError, match="no costs were measured") as refusal:
        build(toy, (0,), None).decode(PROMPT, options)
    assert "draftrt bench BUNDLE --calibrate" in refusal.value.hint
    drafter = DraftSession(toy.spec(), toy.session(toy.signature(4, 5, 200, confidence=False)))
    with pytest.raises(UnsupportedError, match="schedule 'survival' on a drafter of family"):
        DecodeLoop(toy.target(), drafter, FLAT).decode(PROMPT, options)


# The distribution, on three tokens. Both drafts are drawn, and how sure the drafter is of the
# second depends on the first: exactly what a schedule that looks ahead would go wrong by.
VOCAB, DRAWS = 3, 10_000
ALL_DRAWS = pytest.param(10 * DRAWS, marks=[pytest.mark.extended, pytest.mark.slow])
LIMIT = 26.124  # upper 0.1 % point of chi-square with 8 degrees of freedom
FIRST_P, FIRST_Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
NEXT_P = np.array([[0.1, 0.3, 0.6], [0.4, 0.4, 0.2], [0.3, 0.5, 0.2]])
NEXT_Q = np.array([[0.3, 0.4, 0.3], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])
SECOND_CONFIDENCE = (0.1, 0.5, 0.99)
ROUND_MS = (10.0, 16.5, 20.0)  # one draft does not pay; two do if the second is nearly certain


def look_ahead(confidences: Sequence[float], round_ms: Sequence[float]) -> int:
    """The best length of all: not lossless, for it looks at confidences behind the cut."""
    rates = [mean_tokens(confidences[:n]) / ms for n, ms in enumerate(round_ms)]
    return int(np.argmax(rates))


def statistic_of(
    length_of: Length, round_ms: Sequence[float], draws: int
) -> tuple[float, set[int]]:
    """Chi-square of the first two tokens of many texts (seed 20), and the lengths that came."""
    rng = np.random.default_rng(20)
    counts, lengths = np.zeros((VOCAB, VOCAB)), set()
    for _ in range(draws):
        first = draw(FIRST_Q, rng)
        drafts = [first, draw(NEXT_Q[first], rng)]
        rows: list[NDArray[np.float64]] = [FIRST_P, NEXT_P[first], FIRST_P]
        length = length_of([0.6, SECOND_CONFIDENCE[first]], round_ms)
        lengths.add(length)
        q = DraftDistribution(probabilities=np.array([FIRST_Q, NEXT_Q[first]]))
        outcome = accept_rejection(drafts[:length], q, rows.__getitem__, rng)
        text = [*drafts[: outcome.num_accepted], outcome.bonus]
        if len(text) == 1:  # the next round, without drafts
            text.append(draw(NEXT_P[text[0]], rng))
        counts[text[0], text[1]] += 1
    expected = draws * FIRST_P[:, None] * NEXT_P
    return float(((counts - expected) ** 2 / expected).sum()), lengths


@pytest.mark.parametrize("draws", [DRAWS, ALL_DRAWS])
@pytest.mark.parametrize(
    ("round_ms", "lengths"),
    [(ROUND_MS, {0}), ((10.0, 14.0, 17.5), {1, 2}), ((10.0, 10.0, 10.0), {2})],
    ids=["none pays", "the second pays at times", "all pay"],
)
def test_sampled_text_has_exactly_the_targets_distribution(
    round_ms: Sequence[float], lengths: set[int], draws: int
) -> None:
    statistic, found = statistic_of(survival_length, round_ms, draws)
    assert found == lengths
    assert statistic < LIMIT


def test_a_schedule_that_looks_ahead_would_be_seen() -> None:
    statistic, found = statistic_of(look_ahead, ROUND_MS, DRAWS)
    assert found == {0, 2}
    assert statistic > LIMIT
