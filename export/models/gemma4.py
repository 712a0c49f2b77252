"""The Gemma-4-flavoured decoder layers, of a drafter and of a target, sliding and full.

They differ from Qwen3's in: four norms a layer and the whole state times a scalar at its end,
queries, keys and values normed a head (values without a weight), attention scale 1, and values that
may be the raw key projection. A target's full layers have heads and angles of their own.
(transformers, ``modeling_gemma4_unified``.)
"""

from __future__ import annotations

from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import Caches, View, attend_with_cache
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, DrafterSpec


def advance(
    spec: DrafterSpec | DecoderSpec, w: Weights, x: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    """Advance the residual stream through one layer; shapes as in `qwen3.advance`."""

    def norm(name: str, rows: Tensor) -> Tensor:
        return ops.rms_norm(rows, w.below(f"{name}_layernorm"), spec.rms_norm_eps)

    mixed, caches = _attention(spec, w, norm("input", x), view, caches)
    x = x + norm("post_attention", mixed)
    mixed = gated_mlp(norm("pre_feedforward", x), w.below("mlp"), spec.activation)
    x = x + norm("post_feedforward", mixed)
    return x * w("layer_scalar").float(), caches


def _attention(
    spec: DrafterSpec | DecoderSpec, layer: Weights, u: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    dim, eps = caches[0].shape[3], spec.rms_norm_eps
    scale = spec.attention_scale if isinstance(spec, DrafterSpec) else 1.0
    with layer.inside("self_attn") as w:
        rows = view.rows(u)
        raw = ops.heads(rows, w.below("k_proj"), dim)
        has_values = w.get("v_proj.weight") is not None
        value = ops.heads(rows, w.below("v_proj"), dim) if has_values else raw
        query = ops.heads(u, w.below("q_proj"), dim)
        query = ops.rms_norm(query, w.below("q_norm"), eps)
        key = ops.rms_norm(raw, w.below("k_norm"), eps)
        value = ops.bare_norm(value, w.below("v_norm"), eps)
        out, caches = attend_with_cache(view, query, key, value, caches, scale=scale)
        return ops.linear_to_residual(out, w.below("o_proj")), caches
