"""One round's proposal: what the drafter offers and how much of it is worth verifying.

Drafts are the most probable ones, or draws: then the Gumbel noise comes from here and the graph
says which scores it was added to, so that the distribution the drafts really came from is known
and verification stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import UnsupportedError
from draftrt.runtime.decoding.drafter import INVERSE_TEMPERATURE, NOISE, DraftSession
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.signature import CONFIDENCE, DRAFT_IDS, LOGITS
from draftrt.spec import DrafterSpec

COLDEST_DRAW = 1e-3  # the lowest temperature at which drafts are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Draft tokens of one round.

    Attributes:
        token_ids: [k] int64, target vocabulary.
        confidences: [k] float32, probability that a draft survives if those before it did; None
            without a confidence head.
        distribution: what the drafts were sampled from; None for argmax drafts, whose
            distribution is one-hot.
    """

    token_ids: NDArray[np.int64]
    confidences: NDArray[np.float32] | None = None
    distribution: DraftDistribution | None = None

    def head(self, length: int) -> Proposal:
        """Return the first ``length`` drafts."""
        return Proposal(
            token_ids=self.token_ids[:length],
            confidences=None if self.confidences is None else self.confidences[:length],
            distribution=self.distribution,
        )

    def replaced(self, token_ids: Sequence[int]) -> Proposal:
        """Return these drafts with the distributions of their places.

        What was not drawn must be certain of the target too, so that no distribution counts there.
        """
        return replace(self, token_ids=np.array(token_ids, np.int64), confidences=None)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws drafts at a temperature.

    Attributes:
        temperature: above 0.
        rng: source of the noise.
    """

    temperature: float
    rng: np.random.Generator

    def walk(self, shape: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
        """Return the feeds of one draw, the noise of the given shape."""
        # Minus the logarithm of an exponential variable is a Gumbel variable. A float64 one is zero
        # once in 2**53 draws; the bound keeps the noise finite then.
        waits = np.maximum(self.rng.standard_exponential(shape), np.finfo(np.float64).tiny)
        return {
            NOISE: (-np.log(waits)).astype(np.float32),
            INVERSE_TEMPERATURE: np.array([1 / self.temperature], np.float32),
        }


def sampler_of(options: DecodeOptions, rng: np.random.Generator) -> Sampler | None:
    """Return what draws the drafts under these options; None where they are the most probable.

    Near temperature 0 a draw is the most probable draft, and is judged as that: the graph scales
    its scores in float32, whose rounding would outgrow the noise and at last overflow.
    """
    if options.temperature < COLDEST_DRAW or options.proposal == "argmax":
        return None
    return Sampler(options.temperature, rng)


def propose(
    drafter: DraftSession,
    anchor: int,
    features: NDArray[np.float32],
    sampler: Sampler | None = None,
) -> Proposal:
    """Draft one block.

    Args:
        drafter: see `draftrt.runtime.decoding.drafter.DraftSession.draft` for the other arguments
            and errors.
        anchor: last committed token.
        features: [1, T, m*H_t] float32 of the tokens that the drafter does not hold yet.
        sampler: draws the drafts; the graph must take noise (`check_proposal`). None: the most
            probable ones.
    """
    if sampler is None or drafter.noise_shape is None:
        outputs, q = drafter.draft(anchor, features, unwanted=drafter.extra_outputs), None
    else:
        walk = sampler.walk(drafter.noise_shape)
        sources = ("candidate_ids", "candidate_scores", "vocabulary_ids", LOGITS)
        unwanted = tuple(name for name in drafter.extra_outputs if name not in sources)
        outputs = drafter.draft(anchor, features, walk, unwanted=unwanted)
        q = realised(outputs, float(walk[INVERSE_TEMPERATURE][0]))
    confidences = outputs.get(CONFIDENCE)
    return Proposal(
        token_ids=outputs[DRAFT_IDS][0],
        confidences=None if confidences is None else confidences[0],
        distribution=q,
    )


def realised(outputs: Mapping[str, NDArray[Any]], inverse_temperature: float) -> DraftDistribution:
    """Return what each draft was drawn from, given the drafts before it.

    Args:
        outputs: ``candidate_ids`` and ``candidate_scores`` [1, n, k]; or ``logits`` [1, n, V'] and,
            for a reduced vocabulary, ``vocabulary_ids`` [1, V'].
        inverse_temperature: factor on the scores, as the graph was given it.
    """
    if "candidate_scores" in outputs:
        scores, ids = outputs["candidate_scores"][0], outputs["candidate_ids"][0]
    else:
        scores, ids = outputs[LOGITS][0], None
        if "vocabulary_ids" in outputs:
            ids = np.broadcast_to(outputs["vocabulary_ids"], scores.shape)
    scaled = scores.astype(np.float64) * inverse_temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return DraftDistribution(
        probabilities=weights / weights.sum(axis=-1, keepdims=True), candidate_ids=ids
    )


def confident_length(proposal: Proposal, threshold: float) -> int:
    """Return how many drafts come before the first confidence below ``threshold``.

    The confidence of a draft depends on the drafts before it only, so cutting there keeps decoding
    lossless. A threshold of 0 keeps all.
    """
    if threshold <= 0 or proposal.confidences is None:
        return len(proposal.token_ids)
    below = np.flatnonzero(proposal.confidences < threshold)
    return int(below[0]) if below.size else len(proposal.token_ids)


def check_confidence(spec: DrafterSpec, options: DecodeOptions) -> None:
    """Check that a drafter gives the confidences that the options build on.

    Raises:
        UnsupportedError: a threshold above 0, or a schedule, without a confidence head.
    """
    if spec.confidence is not None:
        return
    if options.confidence_threshold > 0:
        raise UnsupportedError(
            f"confidence threshold {options.confidence_threshold} on a drafter of family "
            f"{spec.family.value} without a confidence head, expected 0",
            hint="leave the threshold at 0",
        )
    if options.schedule == "survival":
        raise UnsupportedError(
            f"schedule {options.schedule!r} on a drafter of family {spec.family.value} without a "
            "confidence head, expected 'auto' or 'all'",
            hint="leave the schedule at 'auto'",
        )


def check_proposal(drafter: DraftSession, options: DecodeOptions) -> None:
    """Check that a drafter can draw its drafts where that is asked for.

    Raises:
        UnsupportedError: sampled drafts from a graph that takes no noise.
    """
    if options.proposal == "sampled" and drafter.noise_shape is None:
        raise UnsupportedError(
            "proposal 'sampled': the draft graph has no input 'noise'",
            hint="export the bundle again with --sampled, or leave the proposal at argmax",
        )


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
