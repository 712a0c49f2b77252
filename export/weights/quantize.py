"""Rows of a weight to integers and scales, and back. Arithmetic only: no files, no graphs.

Symmetric rounding to the nearest code. INT8 and FP8 take the largest magnitude of a channel for the
largest code. INT4 tries `DIVISORS` on the largest magnitude of each block and keeps the scale with
the smallest squared error: a finer grid often pays for a clipped extreme.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.errors import CheckpointError
from draftrt.quantization import Scheme, block_of

DIVISORS = (7.0, 7.5, 8.0, 8.5)
LARGEST = {Scheme.INT8: 127.0, Scheme.FP8: 448.0}
CHUNK = 1 << 18  # elements worked on at a time: they stay in the processor's cache


def quantize_rows(
    name: str, rows: Tensor, scheme: Scheme, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Quantise output channels of a weight.

    Args:
        name: for messages.
        rows: [R, in], any float dtype.
        scheme: how.
        dtype: of the scales; the codes are chosen for the scales as they are stored.

    Returns:
        Codes [R, in], int8 (int4 in -8 ... 7) or float8_e4m3fn, and scales [R], for int4
        [R, in / block].

    Raises:
        CheckpointError: a weight is not finite, or too large for a scale of this type.
        UnsupportedError: int4 over a width that no block divides.
    """
    width = rows.shape[1]
    block = block_of(name, width) if scheme is Scheme.INT4 else width
    step = max(1, CHUNK // width)
    codes, scales = [], []
    for start in range(0, rows.shape[0], step):
        groups = rows[start : start + step].float().reshape(-1, block)
        peak = groups.abs().amax(dim=1, keepdim=True)
        if scheme is Scheme.INT4:
            scale = _search(groups, peak, dtype)
            code = _int4(groups, scale).to(torch.int8)
        else:
            scale = _scale(peak, LARGEST[scheme], dtype)
            code = _encode(groups / scale, scheme)
        if not bool(torch.isfinite(scale).all()):
            raise CheckpointError(
                f"{name}: a weight is not finite, or too large for a scale in {dtype}",
                hint="the checkpoint is damaged, or needs --precision fp32",
            )
        codes.append(code.reshape(-1, width))
        scales.append(scale.to(dtype).reshape(code.numel() // width, -1))
    found = torch.cat(scales)
    return torch.cat(codes), found if scheme is Scheme.INT4 else found[:, 0]


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """Return codes [R, in] times scales [R] or [R, blocks], float32: no product is rounded."""
    rows, width = codes.shape
    grouped = codes.float().reshape(rows, scales.numel() // rows, -1)
    return (grouped * scales.float().reshape(rows, -1, 1)).reshape(rows, width)


def _scale(peak: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """Return the scale as it will be stored; one where every weight is zero or vanishes in it."""
    scale = (peak / largest).to(dtype).float()
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _encode(scaled: Tensor, scheme: Scheme) -> Tensor:
    largest = LARGEST[scheme]
    if scheme is Scheme.FP8:
        return scaled.clamp(-largest, largest).to(torch.float8_e4m3fn)
    return scaled.round().clamp(-largest, largest).to(torch.int8)


def _search(blocks: Tensor, peak: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the best of the scales tried for each block [n, block]."""
    best = torch.full_like(peak, float("inf"))
    scale = peak
    for divisor in DIVISORS:
        tried = _scale(peak, divisor, dtype)
        error = (_int4(blocks, tried) * tried).sub_(blocks).square_().sum(dim=1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, tried, scale)
    return scale


def _int4(blocks: Tensor, scale: Tensor) -> Tensor:
    return (blocks / scale).round_().clamp_(-8, 7)
