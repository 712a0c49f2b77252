"""The Qwen3-flavoured decoder layer of a drafter: forward over explicit caches.

Pre-norm residual block; keys and values are projected once over context and block together, the
queries from the block alone. The residual stream stays in float32: a block has few rows, and
16-bit residuals overflow on real features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View
from draftrt.export.models.conv import convolve, kernels
from draftrt.export.models.mlp import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.profile import Profile
from draftrt.spec import DrafterSpec, LayerSpec


class Layer:
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
        """Advance the block through the layer.

        Args:
            x: [K, H] float32, residual stream of the block.
            context: [T, H] float32, fused context of the new rows (not normed by this layer).
            view: positions, angles and masks of this call.
            keys: [1, G, L, D] cache.
            values: [1, G, L, D] cache.

        Returns:
            The residual stream [K, H] and both caches with this call's rows written.
        """
        w, eps = self._weights, self._spec.rms_norm_eps
        u = ops.rms_norm(x, w("input_layernorm.weight"), eps)
        attention_kernels = kernels(self._spec, w.below("attention_conv"), u)
        inner = convolve(u, attention_kernels, side=0)
        attended, keys, values = self._attention(inner, context, view, keys, values)
        x = x + convolve(attended, attention_kernels, side=1)
        u = ops.rms_norm(x, w("post_attention_layernorm.weight"), eps)
        mlp_kernels = kernels(self._spec, w.below("mlp_conv"), u)
        x = x + convolve(self._mlp(convolve(u, mlp_kernels, side=0)), mlp_kernels, side=1)
        return x, keys, values

    def _attention(
        self, u: Tensor, context: Tensor, view: View, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec, w = self._spec, self._weights.below("self_attn")
        eps = spec.rms_norm_eps
        both = torch.cat((context, u))  # [T + K, H]
        query = ops.linear(u, w("q_proj.weight"), w.get("q_proj.bias"))
        key = ops.linear(both, w("k_proj.weight"), w.get("k_proj.bias"))
        value = ops.linear(both, w("v_proj.weight"), w.get("v_proj.bias"))
        query = query.reshape(1, -1, spec.num_heads, spec.head_dim)  # [1, K, N, D]
        key = key.reshape(1, -1, spec.num_kv_heads, spec.head_dim)  # [1, T + K, G, D]
        value = value.reshape(1, -1, spec.num_kv_heads, spec.head_dim)
        if spec.attention_value_scale != 1.0:
            value = value * spec.attention_value_scale
        query = ops.rms_norm(query, w("q_norm.weight"), eps).transpose(1, 2)
        key = ops.rms_norm(key, w("k_norm.weight"), eps).transpose(1, 2)
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
            sinks=w.get("attention_sink_bias"),
        )
        out = ops.linear_to_residual(attended, w("o_proj.weight"), w.get("o_proj.bias"))
        return out, keys, values

    def _mlp(self, u: Tensor) -> Tensor:
        return gated_mlp(u, self._weights.below("mlp"), self._spec.activation)


def attend_with_cache(
    spec: DrafterSpec,
    rule: LayerSpec,
    profile: Profile,
    view: View,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate, write this call's keys and values into the caches, and attend.

    Args:
        spec: the drafter.
        rule: who may look at whom.
        profile: operators allowed when traced.
        view: positions, angles and masks of this call.
        query: [1, N, K, D] float32, normed.
        key: [1, G, T + K, D] float32, normed.
        value: [1, G, T + K, D].
        keys: [1, G, L, D] cache.
        values: [1, G, L, D] cache.
        sinks: [N] or None.

    Returns:
        Attended rows [K, N * D] and both caches.
    """
    interleaved = spec.rope.layout.value == "interleaved"
    count = view.num_queries
    query = ops.rotate(
        query, view.cos[:, -count:], view.sin[:, -count:], interleaved=interleaved, profile=profile
    ).to(keys.dtype)
    key = ops.rotate(key, view.cos, view.sin, interleaved=interleaved, profile=profile)
    keys = ops.write_cache(keys, key.to(keys.dtype), view.start, profile)
    values = ops.write_cache(values, value.to(values.dtype), view.start, profile)
    mask = view.masks.get(rule)
    if sinks is not None:
        if mask is None:
            mask = (torch.arange(keys.shape[2], device=keys.device) < view.valid)[None, None, None]
        out = ops.attend_plainly(
            query, keys, values, mask=mask, scale=spec.attention_scale, sinks=sinks
        )
    else:
        out = ops.attend(
            query,
            keys,
            values,
            valid=view.valid,
            mask=mask,
            scale=spec.attention_scale,
            profile=profile,
        )
    return out.transpose(1, 2).reshape(count, spec.num_heads * spec.head_dim), keys, values
