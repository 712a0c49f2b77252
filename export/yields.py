"""What a backbone hands to a family's head: the block rows that yield drafts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftrt.export.weights import Weights
from draftrt.spec import DrafterSpec, VocabMap


@dataclass(frozen=True, slots=True)
class Yield:
    """Rows that yield drafts, in drafting order.

    Attributes:
        anchor: [1] int64, target id before the first draft.
        hidden: [n, H] float32, final-normed.
        base_logits: [n, V'] float32 over the draft ids that may be drafted (V' = min(Vd, V)).
    """

    anchor: Tensor
    hidden: Tensor
    base_logits: Tensor


def to_target_ids(spec: DrafterSpec, weights: Weights, draft_ids: Tensor) -> Tensor:
    """Map draft ids [n] int64 to the target's vocabulary."""
    if spec.vocab_map is VocabMap.IDENTITY:
        return draft_ids
    mapped = weights("d2t").index_select(0, draft_ids)
    return mapped if spec.vocab_map is VocabMap.ABSOLUTE else draft_ids + mapped
