"""The layers of a Muse-Glimmer target, sliding and full.

They differ from those of other decoders in: four norms a layer by one plus their weight, queries
and keys normed a head without a weight and queries scaled, a gate on what is attended to, and
layers without positions. (transformers, ``modeling_muse_glimmer``.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import Caches, View, attend_with_cache
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, MuseSpec


def advance(
    spec: DecoderSpec, facts: MuseSpec, w: Weights, x: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        facts: its Muse facts.
        w: the layer's weights.
        x: [R, H] float32.
        view: the call.
        caches: keys and values.

    Returns:
        The residual stream, and both caches with R rows written.
    """

    def norm(name: str, rows: Tensor, eps: float) -> Tensor:
        return ops.offset_norm(rows, w.below(f"{name}_layernorm"), eps)

    u = norm("input", x, spec.rms_norm_eps)
    mixed, caches = _attention(spec, facts, w, u, view, caches)
    x = x + norm("post_attention", mixed, facts.post_norm_eps)
    u = norm("pre_feedforward", x, spec.rms_norm_eps)
    mixed = gated_mlp(u, w.below("mlp"), spec.activation)
    return x + norm("post_feedforward", mixed, facts.post_norm_eps), caches


def _attention(
    spec: DecoderSpec, facts: MuseSpec, layer: Weights, u: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    dim, eps = spec.head_dim, spec.rms_norm_eps
    with layer.inside("self_attn") as w:
        query = ops.bare_norm(ops.heads(u, w.below("q_proj"), dim), w.below("q_norm"), eps)
        key = ops.bare_norm(ops.heads(u, w.below("k_proj"), dim), w.below("k_norm"), eps)
        out, caches = attend_with_cache(
            view,
            query,
            key,
            ops.heads(u, w.below("v_proj"), dim),
            caches,
            scale=facts.query_scale * dim**-0.5,
            has_angles=facts.full_has_rope if view.mask is None else facts.sliding_has_rope,
        )
        gate = torch.sigmoid(ops.linear(u, w.below("gate_proj")).float())
        return ops.linear_to_residual(out.float() * gate, w.below("o_proj")), caches
