"""Acceptance rules, in pure NumPy: which drafts the target keeps, and its own next token.

Row j of the target speaks about the position of draft j (0-based); the row after the last draft
speaks about the position behind the block. Rows are asked for one at a time and only as long as all
drafts before them were kept, so a rule that looks at the text so far may be evaluated lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Outcome of one verification.

    Attributes:
        num_accepted: drafts kept, the bonus token not counted.
        bonus: the target's token behind them; the next round's anchor.
    """

    num_accepted: int
    bonus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftDistribution:
    """The distributions that sampled drafts were really drawn from, q.

    Attributes:
        probabilities: [n, C] float64, each row sums to 1.
        candidate_ids: [n, C] int64, target ids of the columns, no id twice in a row; None where
            column c is token c.
    """

    probabilities: NDArray[np.float64]
    candidate_ids: NDArray[np.int64] | None = None

    def probability(self, row: int, token: int) -> float:
        """Return q of one token."""
        if self.candidate_ids is None:
            return float(self.probabilities[row, token])
        return float(self.probabilities[row, self.candidate_ids[row] == token].sum())

    def subtract(self, row: int, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return max(p - q, 0), [V] float64."""
        rest: NDArray[np.float64] = p.copy()
        q = self.probabilities[row]
        ids = slice(len(q)) if self.candidate_ids is None else self.candidate_ids[row]
        rest[ids] = np.maximum(rest[ids] - q, 0.0)
        return rest


def accept_matching(draft_ids: Sequence[int], choose: Callable[[int], int]) -> Acceptance:
    """Keep drafts while they are what the target chooses itself.

    Greedy decoding with ``choose`` the argmax; with ``choose`` a draw from the target's
    distribution it is exact-match sampling. Either way the output is the target's own.

    Args:
        draft_ids: n drafts.
        choose: row 0..n to the target's token.
    """
    for row, draft in enumerate(draft_ids):
        chosen = choose(row)
        if chosen != draft:
            return Acceptance(row, chosen)
    return Acceptance(len(draft_ids), choose(len(draft_ids)))


def accept_rejection(
    draft_ids: Sequence[int],
    proposed: DraftDistribution | None,
    distribution: Callable[[int], NDArray[np.float64]],
    rng: np.random.Generator,
) -> Acceptance:
    """Keep draft d with probability min(1, p(d) / q(d)); else draw from what q left of p.

    Every token then has exactly the target's distribution p (Leviathan et al. 2023, Theorem 3.5),
    whatever q is, as long as the drafts were really drawn from q.

    Args:
        draft_ids: n drafts.
        proposed: q of each draft; None for deterministic drafts (q is one-hot).
        distribution: row 0..n to the target's p, [V] float64.
        rng: source of randomness, independent of the drafts.
    """
    for row, draft in enumerate(draft_ids):
        p = distribution(row)
        q = 1.0 if proposed is None else proposed.probability(row, draft)
        if rng.random() * q < p[draft]:
            continue
        rest = _without(draft, p) if proposed is None else proposed.subtract(row, p)
        # q covers p but for rounding: a rejection that could not happen, and p is what is left.
        return Acceptance(row, draw(rest if rest.any() else p, rng))
    return Acceptance(len(draft_ids), draw(distribution(len(draft_ids)), rng))


def draw(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw an index with probability proportional to its weight.

    Args:
        weights: [V] float64, not negative, not all zero.
        rng: source of randomness.
    """
    sums = np.cumsum(weights)
    point = min(rng.random() * sums[-1], np.nextafter(sums[-1], 0.0))  # the product may round up
    # The first sum strictly above the point, so that an index of weight zero is never taken.
    return int(np.searchsorted(sums, point, side="right"))


def _without(token: int, p: NDArray[np.float64]) -> NDArray[np.float64]:
    rest: NDArray[np.float64] = p.copy()
    rest[token] = 0.0
    return rest
