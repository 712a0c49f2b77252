"""The layers of a Muse-Glimmer target, sliding and full.

They differ from those of other decoders in: four norms a layer by one plus their weight, queries
and keys normed a head without a weight and queries scaled, a gate on what is attended to, and
layers without positions. (transformers, ``modeling_muse_glimmer``.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View, attended
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, MuseSpec, Profile


def advance(
    spec: DecoderSpec,
    facts: MuseSpec,
    layer: Weights,
    x: Tensor,
    view: View,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        facts: its Muse facts.
        layer: the layer's weights.
        x: [R, H] float32.
        view: the call.
        mask: [1, 1, R, L] bool of a sliding layer; None for a full one.
        keys: [1, G, L, D].
        values: as ``keys``.
        profile: operators allowed when traced.

    Returns:
        The residual stream, and both caches with R rows written.
    """

    def norm(name: str, rows: Tensor, eps: float) -> Tensor:
        return ops.offset_norm(rows, layer(f"{name}_layernorm.weight"), eps)

    u = norm("input", x, spec.rms_norm_eps)
    out, keys, values = _attention(
        spec, facts, layer.below("self_attn"), u, view, mask, keys, values, profile
    )
    x = x + norm("post_attention", out, facts.post_norm_eps)
    u = norm("pre_feedforward", x, spec.rms_norm_eps)
    out = gated_mlp(u, layer.below("mlp"), spec.activation)
    return x + norm("post_feedforward", out, facts.post_norm_eps), keys, values


def _attention(
    spec: DecoderSpec,
    facts: MuseSpec,
    w: Weights,
    u: Tensor,
    view: View,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
) -> tuple[Tensor, Tensor, Tensor]:
    turns = facts.full_has_rope if mask is None else facts.sliding_has_rope

    def project(name: str, heads: int) -> Tensor:
        rows = ops.linear(u, w(f"{name}_proj.weight"), w.get(f"{name}_proj.bias"))
        return rows.reshape(1, -1, heads, spec.head_dim)

    def turned(name: str, heads: int) -> Tensor:
        normed = ops.rms_norm(project(name, heads), None, spec.rms_norm_eps).transpose(1, 2)
        if turns:
            normed = ops.rotate(normed, view.cos, view.sin, interleaved=False, profile=profile)
        return normed.to(keys.dtype)

    query = turned("q", spec.num_heads)
    keys = ops.write_cache(keys, turned("k", spec.num_kv_heads), view.start, profile)
    value = project("v", spec.num_kv_heads).to(values.dtype).transpose(1, 2)
    values = ops.write_cache(values, value, view.start, profile)
    scale = facts.query_scale * spec.head_dim**-0.5
    out = attended(view, mask, query, keys, values, profile, scale=scale)
    gate = torch.sigmoid(ops.linear(u, w("gate_proj.weight")).float())
    return (
        ops.linear_to_residual(out.float() * gate, w("o_proj.weight"), w.get("o_proj.bias")),
        keys,
        values,
    )
