"""The Qwen3-flavoured decoder layer of a drafter, and DFlash2's convolution around its parts.

The Qwen3-flavoured decoder layer of a drafter: forward over explicit caches.

Pre-norm residual block; keys and values are projected once over context and block together, the
queries from the block alone. The residual stream stays in float32: a block has few rows, and
16-bit residuals overflow on real features.

DFlash2's grouped dynamic causal convolution around attention and MLP.

With u the sublayer's normed input, the coefficients of tap t at row i are
``base[side, t, c] + D[i, side, t, c // g]`` where ``D = kernel_projection(u)``; side 0 acts on the
sublayer's input, side 1 on its output. Taps reach back along the block and never past its start
(DFlash2 release notes, "dynamic convolution").
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View, attend_with_cache
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec, LayerSpec, Profile


class Qwen3Layer:
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


def kernels(spec: DrafterSpec, weights: Weights, u: Tensor) -> Tensor | None:
    """Return the coefficients [K, 2, taps, H] float32 for u [K, H]; None without a convolution."""
    if spec.conv is None:
        return None
    taps, group = spec.conv.kernel_size, spec.conv.group_size
    rows, hidden = u.shape
    dynamic = ops.linear(u, weights("kernel_projection.weight")).float()
    dynamic = dynamic.reshape(rows, 2, taps, hidden // group, 1).expand(-1, -1, -1, -1, group)
    return weights("base_kernel") + dynamic.reshape(rows, 2, taps, hidden)


def convolve(x: Tensor, coefficients: Tensor | None, *, side: int) -> Tensor:
    """Return x [K, H] mixed with the rows before it; unchanged without coefficients."""
    if coefficients is None:
        return x
    out = coefficients[:, side, 0] * x
    for tap in range(1, coefficients.shape[2]):
        shifted = torch.cat((torch.zeros_like(x[:tap]), x[:-tap]))
        out = out + coefficients[:, side, tap] * shifted
    return out
