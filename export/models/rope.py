"""Rotary frequencies of every scaling rule, and the cos/sin rows of a round.

The rules are those of transformers' ``modeling_rope_utils`` (named the same). Angles are computed
in float32: in 16 bits a cosine is wrong by 0.3 and more at position 1000.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from draftrt.errors import UnsupportedError
from draftrt.export.config.keys import ROPE_TYPES
from draftrt.export.models import ops
from draftrt.export.models.shapes import PREFIX
from draftrt.export.models.weights import Weights
from draftrt.spec import RopeSpec

Array = NDArray[np.float32]


def inverse_frequencies(rope: RopeSpec, *, long: bool = False) -> tuple[Array, float]:
    """Return the inverse frequencies [rotary_dim / 2] float32 and the factor on cos and sin.

    Args:
        rope: the embedding.
        long: for ``longrope``, the frequencies beyond the original positions.

    Raises:
        UnsupportedError: the scaling rule is not one of `ROPE_TYPES`.
    """
    dim = rope.rotary_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    base = (
        (1.0 / (rope.theta**exponents)).numpy().astype(np.float64)
    )  # float32 powers, as publishers
    if rope.type in ("default", "dynamic"):
        return base.astype(np.float32), 1.0
    if rope.type == "linear":
        return (base / (rope.factor or 1.0)).astype(np.float32), 1.0
    if rope.type == "llama3":
        return _llama3(rope, base).astype(np.float32), 1.0
    if rope.type == "yarn":
        return _yarn(rope, base)
    if rope.type == "longrope":
        return _longrope(rope, base, long=long)
    if rope.type == "proportional":
        return _proportional(rope), 1.0
    raise UnsupportedError(
        f"rope_type {rope.type!r} is not supported, expected one of {ROPE_TYPES}"
    )


def _llama3(rope: RopeSpec, base: NDArray[np.float64]) -> NDArray[np.float64]:
    factor, original = rope.factor or 1.0, rope.original_max_position_embeddings or 8192
    low, high = rope.low_freq_factor or 1.0, rope.high_freq_factor or 4.0
    wavelength = 2 * math.pi / base
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / factor + smooth * base
    scaled = np.where(wavelength > original / low, base / factor, blended)
    return np.where(wavelength < original / high, base, scaled)


def _yarn(rope: RopeSpec, base: NDArray[np.float64]) -> tuple[Array, float]:
    factor = rope.factor or 1.0
    dim, original = (
        rope.rotary_dim,
        rope.original_max_position_embeddings or rope.max_position_embeddings,
    )

    def dim_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dim_of(rope.beta_fast or 32.0), dim_of(rope.beta_slow or 1.0)
    if rope.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, dim - 1.0)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    mixed = (base / factor) * ramp + base * (1 - ramp)
    return mixed.astype(np.float32), _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: RopeSpec, factor: float) -> float:
    def scale(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def _longrope(rope: RopeSpec, base: NDArray[np.float64], *, long: bool) -> tuple[Array, float]:
    divisors = rope.long_factor if long else rope.short_factor
    original = rope.original_max_position_embeddings or rope.max_position_embeddings
    factor = rope.factor or rope.max_position_embeddings / original
    attention = rope.attention_factor
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return (base / np.asarray(divisors, dtype=np.float64)).astype(np.float32), attention


def _proportional(rope: RopeSpec) -> Array:
    """Frequencies over the full head; only the first share of them is not zero."""
    real = int((rope.partial_rotary_factor or 1.0) * rope.head_dim // 2)
    exponents = np.arange(0, 2 * real, 2, dtype=np.float64) / rope.head_dim
    frequencies = np.zeros(rope.head_dim // 2, dtype=np.float64)
    frequencies[:real] = 1.0 / rope.theta**exponents
    return (frequencies / (rope.factor or 1.0)).astype(np.float32)


def tables(rope: RopeSpec, num_positions: int, *, long: bool = False) -> tuple[Array, Array]:
    """Return cos and sin of every position, each [num_positions, rotary_dim / 2] float32."""
    frequencies, factor = inverse_frequencies(rope, long=long)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * frequencies[None]
    return (np.cos(angles) * np.float32(factor)), (np.sin(angles) * np.float32(factor))


def table_tensors(rope: RopeSpec, num_positions: int, prefix: str = PREFIX) -> dict[str, Array]:
    """Return the constants a graph needs for this embedding, by initialiser name."""
    if rope.type == "dynamic":
        return {f"{prefix}.inv_freq": inverse_frequencies(rope)[0]}
    cos, sin = tables(rope, num_positions)
    named = {f"{prefix}.cos": cos, f"{prefix}.sin": sin}
    if rope.type == "longrope":
        cos, sin = tables(rope, num_positions, long=True)
        named |= {f"{prefix}.cos_long": cos, f"{prefix}.sin_long": sin}
    return named


def rows(
    rope: RopeSpec, weights: Weights, positions: Tensor, length: Tensor, prefix: str = PREFIX
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the given positions, each [1, R, rotary_dim / 2] float32.

    Args:
        rope: the embedding.
        weights: holds the constants of `table_tensors`.
        positions: [R] int64.
        length: [1] int64, positions in use after this call; selects the regime of ``dynamic`` and
            ``longrope``.
        prefix: as for `table_tensors`.
    """
    of = weights.below(prefix)
    if rope.type == "dynamic":
        return _dynamic_rows(rope, of("inv_freq"), positions, length)
    cos = ops.look_up(positions, of, "cos", called="cos.rows")[None]
    sin = ops.look_up(positions, of, "sin", called="sin.rows")[None]
    if rope.type == "longrope":
        beyond = length > (rope.original_max_position_embeddings or rope.max_position_embeddings)
        cos = torch.where(beyond, F.embedding(positions, of("cos_long"))[None], cos)
        sin = torch.where(beyond, F.embedding(positions, of("sin_long"))[None], sin)
    return cos, sin


def _dynamic_rows(
    rope: RopeSpec, inv_freq: Tensor, positions: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """NTK scaling by current length: theta grows once the declared positions are passed."""
    dim, declared, factor = rope.rotary_dim, rope.max_position_embeddings, rope.factor or 1.0
    ratio = length.float().clamp(min=float(declared)) / declared
    growth = (factor * ratio - (factor - 1)) ** (
        dim / (dim - 2)
    )  # [1], 1.0 within the declared length
    exponents = torch.arange(0, dim, 2, device=positions.device).float() / dim
    frequencies = inv_freq / growth**exponents
    angles = positions.float()[:, None] * frequencies[None]
    return torch.cos(angles)[None], torch.sin(angles)[None]
