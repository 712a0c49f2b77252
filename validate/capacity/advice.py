"""When speculation pays: the acceptance length that a round must reach, and the drafts to verify.

With t(r) the time of a target call of r rows and d that of the drafter's one call, a round that
verifies n drafts takes d + t(n + 1) and yields tau tokens; plain decoding takes t(1) a token.
Speculation pays where tau > (d + t(n + 1)) / t(1). If every draft is kept with probability a when
those before it are, tau = (1 - a^(n+1)) / (1 - a). Both are from Leviathan, Kalman and Matias,
"Fast Inference from Transformers via Speculative Decoding" (ICML 2023), equation 1 and theorem 3.8;
a block drafter drafts all n tokens in one call, so d stands where n calls of a small model stand
there.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftrt.runtime.decoding.schedule import Costs

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best number of drafts to verify at one acceptance.

    Attributes:
        acceptance: probability that a draft is kept if those before it are.
        num_drafts: drafts to verify; 0: do not speculate.
        length: expected tokens a round.
        speedup: tokens a second over plain decoding's.
    """

    acceptance: float
    num_drafts: int
    length: float
    speedup: float


def break_even(costs: Costs, num_drafts: int) -> float:
    """Return the acceptance length from which rounds that verify ``num_drafts`` drafts pay."""
    return costs.rounds(num_drafts)[num_drafts] / costs.verify(1)


def expected_length(acceptance: float, num_drafts: int) -> float:
    """Return the expected tokens of a round, the bonus token among them."""
    if acceptance >= 1:
        return num_drafts + 1.0
    return float((1 - acceptance ** (num_drafts + 1)) / (1 - acceptance))


def best_choice(costs: Costs, acceptance: float, num_drafts: int) -> Choice:
    """Return how many of ``num_drafts`` drafts to verify, and what that brings."""
    best = Choice(acceptance=acceptance, num_drafts=0, length=1.0, speedup=1.0)
    for count in range(1, num_drafts + 1):
        length = expected_length(acceptance, count)
        speedup = length / break_even(costs, count)
        if speedup > best.speedup:
            best = Choice(acceptance=acceptance, num_drafts=count, length=length, speedup=speedup)
    return best


def modelled_costs(*, target_bytes: int, draft_bytes: int, bandwidth: float, context: int) -> Costs:
    """Return costs as if reading memory were all: a call takes the bytes it reads by the bandwidth.

    That holds while the rows of a call are few enough for arithmetic to hide behind memory, about a
    hundred on a GPU; it says nothing about launches and the host, so real calls take longer.

    Args:
        target_bytes: weights and caches that a target call reads.
        draft_bytes: the same for the drafter.
        bandwidth: bytes a second.
        context: cached tokens in question.
    """
    return Costs(
        draft_ms=1e3 * draft_bytes / bandwidth,
        verify_ms={1: 1e3 * target_bytes / bandwidth},
        context=context,
    )
