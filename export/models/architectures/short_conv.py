"""A gated convolution over the last few rows, in place of attention: the layers of LFM2.

The projection's parts are two gates and an input, in the order B, C, x: the convolution runs over
B * x and has no activation, and C multiplies what it returns. (transformers, ``modeling_lfm2``.)
"""

from __future__ import annotations

from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.architectures.carried import Carried, convolve, slide
from draftrt.export.models.attention import Caches
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec


def advance(
    spec: DecoderSpec, w: Weights, x: Tensor, call: Carried, states: Caches
) -> tuple[Tensor, Caches]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        w: the layer's weights.
        x: [R, H] float32.
        call: the call.
        states: ``window`` [kernel - 1, H] and ``inputs`` [C, H].

    Returns:
        The residual stream, and the states after the call.
    """
    u = ops.rms_norm(x, w.below("input_layernorm"), spec.rms_norm_eps)
    mixed, states = _mix(w, u, call, states)
    x = x + mixed
    u = ops.rms_norm(x, w.below("post_attention_layernorm"), spec.rms_norm_eps)
    return x + gated_mlp(u, w.below("mlp"), spec.activation), states


def _mix(layer: Weights, u: Tensor, call: Carried, states: Caches) -> tuple[Tensor, Caches]:
    window, inputs = states
    with layer.inside("conv") as w:
        first, last, x = ops.linear(u, w.below("in_proj")).float().chunk(3, dim=-1)
        entered = (first * x).to(inputs.dtype)
        whole, window, inputs = slide(call, entered, window, inputs)
        mixed, bias = convolve(whole, w("conv.weight").float()), w.get("conv.bias")
        mixed = mixed if bias is None else mixed + bias.float()
        return ops.linear_to_residual(last * mixed, w.below("out_proj")), (window, inputs)
