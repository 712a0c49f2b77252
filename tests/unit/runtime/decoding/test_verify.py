"""The acceptance rules keep the target's own output, or exactly its distribution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.runtime.decoding.acceptance import Acceptance, accept_matching, accept_rejection, draw
from draftrt.runtime.decoding.proposal import DraftDistribution

VOCAB = 5
DRAWS = 10_000
ALL_DRAWS = pytest.param(10 * DRAWS, marks=[pytest.mark.extended, pytest.mark.slow])
# Upper 0.1 % point of chi-square with 24 degrees of freedom: a right rule fails one seed in a
# thousand. The seed is fixed, so the verdict is too.
LIMIT = 51.179


def p_after(text: tuple[int, ...]) -> NDArray[np.float64]:
    """A target distribution that depends on the text; token 4 never follows token 0."""
    weights = 1.0 + np.sin(np.arange(VOCAB) * 2.1 + sum(text) + len(text)) ** 2 * 4
    if text and text[-1] == 0:
        weights[4] = 0
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def q_after(text: tuple[int, ...]) -> NDArray[np.float64]:
    """A drafter's distribution, wrong everywhere; it never offers token 1."""
    weights = 1.0 + np.cos(np.arange(VOCAB) * 1.3 + 2 * sum(text)) ** 2 * 3
    weights[1] = 0
    result: NDArray[np.float64] = weights / weights.sum()
    return result


P = {text: p_after(text) for n in (0, 1, 2) for text in product(range(VOCAB), repeat=n)}
Q = {text: q_after(text) for n in (0, 1) for text in product(range(VOCAB), repeat=n)}
Drafts = tuple[list[int], DraftDistribution | None]


def argmax_drafts(rng: np.random.Generator) -> Drafts:
    first = int(P[()].argmax())
    return [first, int(Q[first,].argmax())], None


def unlikely_drafts(rng: np.random.Generator) -> Drafts:
    return [int(rng.integers(VOCAB)), int(rng.integers(VOCAB))], None


def sampled_drafts(rng: np.random.Generator) -> Drafts:
    first = draw(Q[()], rng)
    rows = np.array([Q[()], Q[first,]])
    return [first, draw(rows[1], rng)], DraftDistribution(probabilities=rows)


CANDIDATES = np.array([[0, 3], [2, 4]])
SHARES = np.array([[0.25, 0.75], [0.6, 0.4]])


def candidate_drafts(rng: np.random.Generator) -> Drafts:
    """Sampled among two candidates a row, as by a candidate selector."""
    drafts = [int(CANDIDATES[row, draw(SHARES[row], rng)]) for row in (0, 1)]
    return drafts, DraftDistribution(probabilities=SHARES, candidate_ids=CANDIDATES)


@pytest.mark.parametrize("draws", [DRAWS, ALL_DRAWS])
@pytest.mark.parametrize(
    "offer", [argmax_drafts, unlikely_drafts, sampled_drafts, candidate_drafts]
)
def test_rejection_gives_exactly_the_targets_distribution(
    offer: Callable[[np.random.Generator], Drafts], draws: int
) -> None:
    rng = np.random.default_rng(20)
    counts = dict.fromkeys(product(range(VOCAB), repeat=2), 0)
    for _ in range(draws):
        drafts, q = offer(rng)
        rows = [P[tuple(drafts[:row])] for row in (0, 1, 2)]
        outcome = accept_rejection(drafts, q, rows.__getitem__, rng)
        text = (*drafts[: outcome.num_accepted], outcome.bonus)[:2]
        if len(text) == 1:  # the next round, without drafts
            text += (accept_rejection([], None, [P[text]].__getitem__, rng).bonus,)
        counts[text] += 1
    expected = {pair: draws * P[()][pair[0]] * P[pair[:1]][pair[1]] for pair in counts}
    assert counts[(0, 4)] == expected[(0, 4)] == 0
    statistic = sum((counts[pair] - mean) ** 2 / mean for pair, mean in expected.items() if mean)
    assert statistic < LIMIT


def test_a_wrong_rule_would_be_seen() -> None:
    """The same statistic rejects drafts kept with probability p(d) though they came from q."""
    rng = np.random.default_rng(20)
    counts = np.zeros(VOCAB)
    for _ in range(DRAWS):
        drafts, _ = sampled_drafts(rng)
        kept = rng.random() < p_after(())[drafts[0]]
        counts[drafts[0] if kept else draw(p_after(()), rng)] += 1
    expected = counts.sum() * p_after(())
    assert ((counts - expected) ** 2 / expected).sum() > LIMIT


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_matching_keeps_drafts_up_to_the_first_difference(num_right: int) -> None:
    target = [7, 8, 9, 10]
    drafts = [token if index < num_right else 0 for index, token in enumerate(target[:3])]
    outcome = accept_matching(drafts, target.__getitem__)
    assert outcome == Acceptance(num_right, target[num_right])


def test_rows_behind_the_first_rejection_are_never_asked_for() -> None:
    asked: list[int] = []

    def choose(row: int) -> int:
        asked.append(row)
        return row

    accept_matching([0, 5, 2], choose)
    assert asked == [0, 1]


def test_a_draft_the_target_rules_out_is_never_kept() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        outcome = accept_rejection([4], None, lambda row: p_after((0,)), rng)
        assert outcome.num_accepted == 0
        assert outcome.bonus != 4


def test_drafts_from_the_targets_own_distribution_are_always_kept() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        first = draw(p_after(()), rng)
        q = DraftDistribution(probabilities=p_after(())[None])
        rows = [p_after(()), p_after((first,))]
        assert accept_rejection([first], q, rows.__getitem__, rng).num_accepted == 1


def test_drawing_never_takes_an_index_of_weight_zero() -> None:
    class Edge(np.random.Generator):
        point = 0.0

        def random(self, *args: object, **kwargs: object) -> float:  # type: ignore[override]
            return self.point

    rng = Edge(np.random.PCG64(0))
    weights = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    assert draw(weights, rng) == 1
    rng.point = np.nextafter(1.0, 0.0)
    assert draw(weights, rng) == 3
    rng.point = 1.0  # as if the product had been rounded up
    assert draw(weights, rng) == 3
