"""DFlash v1 proposals: every row on its own, one choice each."""

from __future__ import annotations

from torch import Tensor

from draftrt.export.models.heads import Yield
from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec


def propose(spec: DrafterSpec, weights: Weights, rows: Yield) -> dict[str, Tensor]:
    """Draft from each row's own logits.

    Returns:
        ``draft_vocab_ids`` [n] int64 and ``logits`` [n, V'] float32.
    """
    return {"draft_vocab_ids": rows.choose(0, rows.base_logits), "logits": rows.base_logits}
