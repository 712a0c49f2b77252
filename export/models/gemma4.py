"""The Gemma-4-flavoured decoder layers of a drafter and of a target.

The Gemma-4-flavoured decoder layer of a drafter.

Differs from Qwen3 in: values may be the raw key projection and are normed without a weight, four
norms a layer, the whole state times a scalar at the end, attention scale 1.

The layers of a Gemma-4 target, sliding and full.

They differ from those of other decoders in: four norms a layer and the whole state times a scalar
at its end, queries, keys and values normed a head (values without a weight), attention scale 1, and
full layers with heads and angles of their own, whose values may be the raw key projection.
(transformers, ``modeling_gemma4_unified``.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View, attend_with_cache, attended
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, DrafterSpec, Gemma4Spec, LayerSpec, Profile


class Gemma4Layer:
    """One decoder layer over explicit caches."""

    def __init__(
        self, spec: DrafterSpec, rule: LayerSpec, weights: Weights, profile: Profile
    ) -> None:
        self._spec = spec
        self._rule = rule
        self._weights = weights
        self._profile = profile

    def __call__(
        self, x: Tensor, context: Tensor, view: View, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Advance the block through the layer; shapes as in `Qwen3Layer`."""
        w = self._weights
        attended, keys, values = self._attention(
            self._norm("input", x), context, view, keys, values
        )
        x = x + self._norm("post_attention", attended)
        x = x + self._norm("post_feedforward", self._mlp(self._norm("pre_feedforward", x)))
        return x * w("layer_scalar").float(), keys, values

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self._weights(f"{name}_layernorm.weight"), self._spec.rms_norm_eps)

    def _attention(
        self, u: Tensor, context: Tensor, view: View, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec, w = self._spec, self._weights.below("self_attn")
        eps = spec.rms_norm_eps
        both = torch.cat((context, u))  # [T + K, H]
        query = ops.linear(u, w("q_proj.weight"), w.get("q_proj.bias"))
        raw = ops.linear(both, w("k_proj.weight"), w.get("k_proj.bias"))
        value = (
            raw
            if spec.attention_k_eq_v
            else ops.linear(both, w("v_proj.weight"), w.get("v_proj.bias"))
        )
        query = query.reshape(1, -1, spec.num_heads, spec.head_dim)
        raw = raw.reshape(1, -1, spec.num_kv_heads, spec.head_dim)
        value = ops.rms_norm(value.reshape(1, -1, spec.num_kv_heads, spec.head_dim), None, eps)
        query = ops.rms_norm(query, w("q_norm.weight"), eps).transpose(1, 2)
        key = ops.rms_norm(raw, w("k_norm.weight"), eps).transpose(1, 2)
        attended, keys, values = attend_with_cache(
            spec,
            self._rule,
            self._profile,
            view,
            query,
            key,
            value.transpose(1, 2),
            keys,
            values,
        )
        out = ops.linear_to_residual(attended, w("o_proj.weight"), w.get("o_proj.bias"))
        return out, keys, values

    def _mlp(self, u: Tensor) -> Tensor:
        return gated_mlp(u, self._weights.below("mlp"), self._spec.activation)


def advance(
    spec: DecoderSpec,
    facts: Gemma4Spec,
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
        facts: its Gemma-4 facts.
        layer: the layer's weights.
        x: [R, H] float32.
        view: the call, with the angles of this kind of layer.
        mask: [1, 1, R, L] bool of a sliding layer; None for a full one.
        keys: [1, G, L, D].
        values: as ``keys``.
        profile: operators allowed when traced.

    Returns:
        The residual stream, and both caches with R rows written.
    """

    def norm(name: str, rows: Tensor) -> Tensor:
        return ops.rms_norm(rows, layer(f"{name}_layernorm.weight"), spec.rms_norm_eps)

    is_raw = facts.full_key_is_value and mask is None
    out, keys, values = _attention(
        spec, is_raw, layer, norm("input", x), view, mask, keys, values, profile
    )
    x = x + norm("post_attention", out)
    out = gated_mlp(norm("pre_feedforward", x), layer.below("mlp"), spec.activation)
    x = x + norm("post_feedforward", out)
    return x * layer("layer_scalar").float(), keys, values


def _attention(
    spec: DecoderSpec,
    is_raw: bool,
    layer: Weights,
    u: Tensor,
    view: View,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
) -> tuple[Tensor, Tensor, Tensor]:
    w, eps = layer.below("self_attn"), spec.rms_norm_eps
    groups, dim = keys.shape[1], keys.shape[3]

    def project(name: str, heads: int) -> Tensor:
        rows = ops.linear(u, w(f"{name}_proj.weight"), w.get(f"{name}_proj.bias"))
        return rows.reshape(1, -1, heads, dim)

    def turn(name: str, heads: Tensor) -> Tensor:
        normed = ops.rms_norm(heads, w(f"{name}_norm.weight"), eps).transpose(1, 2)
        turned = ops.rotate(normed, view.cos, view.sin, interleaved=False, profile=profile)
        return turned.to(keys.dtype)

    raw = project("k", groups)
    value = raw if is_raw else project("v", groups)
    value = ops.rms_norm(value, None, eps).to(values.dtype).transpose(1, 2)
    keys = ops.write_cache(keys, turn("k", raw), view.start, profile)
    values = ops.write_cache(values, value, view.start, profile)
    query = turn("q", project("q", spec.num_heads))
    out = attended(view, mask, query, keys, values, profile, scale=1.0)
    return ops.linear_to_residual(out, w("o_proj.weight"), w.get("o_proj.bias")), keys, values
