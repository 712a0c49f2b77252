"""A gated convolution over the last few rows, in place of attention: the layers of LFM2.

The projection's parts are two gates and an input, in the order B, C, x: the convolution runs over
B * x and has no activation, and C multiplies what it returns. (transformers, ``modeling_lfm2``.)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.architectures.carried import Carried, convolve, slide
from draftrt.export.models.weights import Weights


def mix(
    w: Weights, u: Tensor, call: Carried, states: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return what the layer adds to its residual stream.

    Args:
        w: its weights.
        u: [R, H] float32, normed rows.
        call: the call.
        states: ``window`` [kernel - 1, H] and ``inputs`` [C, H].

    Returns:
        [R, H] float32, and the states after the call.
    """
    window, inputs = states
    first, last, x = (
        ops.linear(u, w("in_proj.weight"), w.get("in_proj.bias")).float().chunk(3, dim=-1)
    )
    entered = (first * x).to(inputs.dtype)
    whole, window, inputs = slide(call, entered, window, inputs)
    mixed, bias = convolve(whole, w("conv.weight").float()), w.get("conv.bias")
    mixed = mixed if bias is None else mixed + bias.float()
    out = ops.linear_to_residual(last * mixed, w("out_proj.weight"), w.get("out_proj.bias"))
    return out, (window, inputs)
