"""The Qwen3-flavoured decoder layer, of a drafter and of a target, and DFlash2's convolution.

Pre-norm residual block. In a drafter keys and values are projected once over context and block
together, the queries from the block alone; a target has no context. The residual stream stays in
float32: a block has few rows, and 16-bit residuals overflow on real features.

DFlash2's grouped dynamic causal convolution stands around attention and MLP. With u the sublayer's
normed input, the coefficients of tap t at row i are ``base[side, t, c] + D[i, side, t, c // g]``
where ``D = kernel_projection(u)``; side 0 acts on the sublayer's input, side 1 on its output. Taps
reach back along the block and never past its start (DFlash2 release notes, "dynamic convolution").
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import Caches, View, attend_with_cache
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import ConvSpec, DecoderSpec, DrafterSpec


def advance(
    spec: DrafterSpec | DecoderSpec, w: Weights, x: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    """Advance the residual stream through one layer.

    Args:
        spec: the model.
        w: the layer's weights.
        x: [R, H] float32, residual stream of the rows that ask.
        view: the call; its context is not normed by this layer.
        caches: keys and values.

    Returns:
        The residual stream [R, H] and both caches with this call's rows written.
    """
    eps, conv = spec.rms_norm_eps, spec.conv if isinstance(spec, DrafterSpec) else None
    u = ops.rms_norm(x, w.below("input_layernorm"), eps)
    around = kernels(conv, w.below("attention_conv"), u)
    mixed, caches = attention(spec, w, convolve(u, around, side=0), view, caches)
    x = x + convolve(mixed, around, side=1)
    u = ops.rms_norm(x, w.below("post_attention_layernorm"), eps)
    around = kernels(conv, w.below("mlp_conv"), u)
    mixed = gated_mlp(convolve(u, around, side=0), w.below("mlp"), spec.activation)
    return x + convolve(mixed, around, side=1), caches


def attention(
    spec: DrafterSpec | DecoderSpec, layer: Weights, u: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    """Return what the attention adds to the residual stream, [R, H] float32, and both caches."""
    dim = spec.head_dim
    if isinstance(spec, DrafterSpec):
        has_norms, factor, scale = True, spec.attention_value_scale, spec.attention_scale
    else:
        has_norms, factor, scale = spec.qk_norm, 1.0, dim**-0.5
    with layer.inside("self_attn") as w:
        rows = view.rows(u)
        query = ops.heads(u, w.below("q_proj"), dim)  # [1, K, N, D]
        key = ops.heads(rows, w.below("k_proj"), dim)  # [1, T + K, G, D]
        value = ops.heads(rows, w.below("v_proj"), dim)
        if factor != 1.0:
            value = value * factor
        if has_norms:
            query = ops.rms_norm(query, w.below("q_norm"), spec.rms_norm_eps)
            key = ops.rms_norm(key, w.below("k_norm"), spec.rms_norm_eps)
        sinks = w.get("attention_sink_bias")
        out, caches = attend_with_cache(view, query, key, value, caches, scale=scale, sinks=sinks)
        return ops.linear_to_residual(out, w.below("o_proj")), caches


def kernels(conv: ConvSpec | None, w: Weights, u: Tensor) -> Tensor | None:
    """Return the coefficients [K, 2, taps, H] float32 for u [K, H]; None without a convolution."""
    if conv is None:
        return None
    taps, group = conv.kernel_size, conv.group_size
    rows, hidden = u.shape
    with w.inside():
        dynamic = ops.linear(u, w.below("kernel_projection")).float()
        dynamic = dynamic.reshape(rows, 2, taps, hidden // group, 1).expand(-1, -1, -1, -1, group)
        return w("base_kernel") + dynamic.reshape(rows, 2, taps, hidden)


def convolve(x: Tensor, coefficients: Tensor | None, *, side: int) -> Tensor:
    """Return x [K, H] mixed with the rows before it; unchanged without coefficients."""
    if coefficients is None:
        return x
    out = coefficients[:, side, 0] * x
    for tap in range(1, coefficients.shape[2]):
        shifted = torch.cat((torch.zeros_like(x[:tap]), x[:-tap]))
        out = out + coefficients[:, side, tap] * shifted
    return out
