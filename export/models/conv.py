"""DFlash2's grouped dynamic causal convolution around attention and MLP.

With u the sublayer's normed input, the coefficients of tap t at row i are
``base[side, t, c] + D[i, side, t, c // g]`` where ``D = kernel_projection(u)``; side 0 acts on the
sublayer's input, side 1 on its output. Taps reach back along the block and never past its start
(DFlash2 release notes, "dynamic convolution").
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec


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
