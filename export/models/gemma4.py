"""The Gemma-4-flavoured decoder layer of a drafter.

Differs from Qwen3 in: values may be the raw key projection and are normed without a weight, four
norms a layer, the whole state times a scalar at the end, attention scale 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View
from draftrt.export.models.mlp import gated_mlp
from draftrt.export.models.qwen3 import attend_with_cache
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
        """Advance the block through the layer; shapes as in `draftrt.export.models.qwen3.Layer`."""
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
