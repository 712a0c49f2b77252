"""What a backbone hands to a family's head: the block rows that yield drafts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec, VocabMap


@dataclass(frozen=True, slots=True)
class Noise:
    """What makes the choice of each draft a draw.

    With Gumbel noise it is one from ``softmax(scores * inverse_temperature)``; with zero noise and
    a factor of one it is the greedy choice, exactly.

    Attributes:
        values: [n, W] float32, added to the scores of each draft's W choices.
        inverse_temperature: [1] float32, factor on the scores before that.
    """

    values: Tensor
    inverse_temperature: Tensor


@dataclass(frozen=True, slots=True)
class Yield:
    """Rows that yield drafts, in drafting order.

    Attributes:
        anchor: [1] int64, target id before the first draft.
        hidden: [n, H] float32, final-normed.
        base_logits: [n, V'] float32 over the draft ids that may be drafted (V' = min(Vd, V)).
        noise: what makes each choice a draw; None to draft greedily.
    """

    anchor: Tensor
    hidden: Tensor
    base_logits: Tensor
    noise: Noise | None = None

    def choose(self, first: int, scores: Tensor) -> Tensor:
        """Choose among W candidates for each of R drafts.

        Args:
            first: index of the first of these drafts.
            scores: [R, W] float32.

        Returns:
            [R] int64, the chosen columns.
        """
        if self.noise is not None:
            rows = self.noise.values[first : first + scores.shape[0]]
            scores = scores * self.noise.inverse_temperature + rows
        return scores.argmax(dim=-1)


def to_target_ids(spec: DrafterSpec, weights: Weights, draft_ids: Tensor) -> Tensor:
    """Map draft ids [n] int64 to the target's vocabulary."""
    if spec.vocab_map is VocabMap.IDENTITY:
        return draft_ids
    mapped = weights("d2t").index_select(0, draft_ids)
    return mapped if spec.vocab_map is VocabMap.ABSOLUTE else draft_ids + mapped
