"""One round's proposal: what the drafter offers and how much of it is worth verifying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import UnsupportedError
from draftrt.runtime.drafter import Drafter
from draftrt.runtime.verify import DraftDistribution
from draftrt.spec import DrafterSpec


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


def propose(drafter: Drafter, anchor: int, features: NDArray[np.float32]) -> Proposal:
    """Draft one block; see `draftrt.runtime.drafter.Drafter.draft` for arguments and errors."""
    outputs = drafter.draft(anchor, features)
    confidences = outputs.get("confidence")
    return Proposal(
        token_ids=outputs["draft_ids"][0],
        confidences=None if confidences is None else confidences[0],
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


def check_threshold(spec: DrafterSpec, threshold: float) -> None:
    """Check that a drafter can serve a confidence threshold.

    Raises:
        UnsupportedError: a threshold above 0 without a confidence head.
    """
    if threshold > 0 and spec.confidence is None:
        raise UnsupportedError(
            f"confidence threshold {threshold} on a drafter of family "
            f"{spec.family.value} without a confidence head, expected 0",
            hint="leave the threshold at 0",
        )
