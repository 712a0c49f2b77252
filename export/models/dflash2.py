"""DFlash2 proposals: the top candidates of each row, chosen left to right by a selector.

With A and B the codebooks and g the row's projected hidden, the score of going from token a to
candidate b is ``U(b) + <A[a] * g, B[b]>`` with U the row's logits after multiplier and soft cap
(DFlash2 release notes, "candidate selector"); greedy takes the best candidate of each row in turn,
sampling draws from the softmax of its scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.heads import Yield
from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec


def propose(spec: DrafterSpec, weights: Weights, rows: Yield) -> dict[str, Tensor]:
    """Walk over each row's candidates.

    Returns:
        ``draft_vocab_ids`` [n] int64, ``logits`` [n, V'] float32 (before the selector),
        ``candidates`` [n, top_k] int64 in ascending order of id, and the same as the walk saw them:
        ``candidate_ids`` [n, top_k] int64 with ``candidate_scores`` [n, top_k] float32.
    """
    assert spec.selector is not None
    w = weights.below("candidate_selector")
    scores, candidates = torch.topk(rows.base_logits, spec.selector.top_k, dim=-1)
    projected = ops.linear(rows.hidden, w("hidden_projection.weight")).float()  # [n, r]
    successors = F.embedding(candidates, w("successor_codebook.weight")).float()  # [n, k, r]
    previous, ids, seen = rows.anchor, [], []
    for row in range(spec.num_draft_tokens):
        origin = F.embedding(previous, w("predecessor_codebook.weight")).float()  # [1, r]
        query = origin * projected[row : row + 1]
        edges = (scores[row] + (successors[row] * query).sum(dim=-1))[None]  # [1, k]
        previous = candidates[row].gather(0, rows.choose(row, edges))
        ids.append(previous)
        seen.append(edges)
    return {
        "draft_vocab_ids": torch.cat(ids),
        "logits": rows.base_logits,
        "candidates": torch.sort(candidates, dim=-1).values,
        "candidate_ids": candidates,
        "candidate_scores": torch.cat(seen),
    }
