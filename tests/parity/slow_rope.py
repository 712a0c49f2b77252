"""Rotary embeddings by transformers' formulas: one angle at a time, float64, no tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SlowRope:
    """A rotary embedding; ``parameters`` are those of transformers 5's ``rope_parameters``."""

    parameters: Mapping[str, Any]
    head_dim: int
    max_position: int = 512
    interleaved: bool = False

    @property
    def _type(self) -> str:
        return str(self.parameters.get("rope_type", "default"))

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rotate."""
        if self._type == "proportional":
            return self.head_dim
        return int(self.head_dim * float(self.parameters.get("partial_rotary_factor", 1.0)))

    def frequency(self, i: int, length: int) -> float:
        """Return the angle by which slot i turns from one position to the next."""
        p, d = self.parameters, self.rotary_dim
        theta, factor = float(p["rope_theta"]), float(p.get("factor") or 1.0)
        plain: float = theta ** (-2 * i / d)
        original = int(p.get("original_max_position_embeddings") or self.max_position)
        if self._type == "linear":
            return plain / factor
        if self._type == "dynamic":
            length = max(length, self.max_position)
            grown = factor * length / self.max_position - (factor - 1)
            return float((theta * grown ** (d / (d - 2))) ** (-2 * i / d))
        if self._type == "llama3":
            wavelength = 2 * math.pi / plain
            low, high = float(p["low_freq_factor"]), float(p["high_freq_factor"])
            if wavelength < original / high:
                return plain
            if wavelength > original / low:
                return plain / factor
            smooth = (original / wavelength - low) / (high - low)
            return (1 - smooth) * plain / factor + smooth * plain
        if self._type == "yarn":
            low = self._yarn_slot(float(p.get("beta_fast") or 32.0), theta, original)
            high = self._yarn_slot(float(p.get("beta_slow") or 1.0), theta, original)
            if p.get("truncate", True):
                low, high = float(math.floor(low)), float(math.ceil(high))
            low, high = max(low, 0.0), min(high, d - 1.0)
            high = high + 0.001 if low == high else high
            ramp = min(max((i - low) / (high - low), 0.0), 1.0)
            return plain / factor * ramp + plain * (1 - ramp)
        if self._type == "longrope":
            divisors = p["long_factor"] if length > original else p["short_factor"]
            return float(plain / divisors[i])
        if self._type == "proportional":
            share = float(p.get("partial_rotary_factor", 1.0))
            return plain / factor if i < int(share * self.head_dim // 2) else 0.0
        return plain

    def _yarn_slot(self, rotations: float, theta: float, original: int) -> float:
        turns = original / (rotations * 2 * math.pi)
        return self.rotary_dim * math.log(turns) / (2 * math.log(theta))

    def magnitude(self) -> float:
        """Return the factor on cos and sin."""
        p = self.parameters
        if self._type not in ("yarn", "longrope"):
            return 1.0
        if p.get("attention_factor") is not None:
            return float(p["attention_factor"])
        original = int(p.get("original_max_position_embeddings") or self.max_position)
        factor = float(p.get("factor") or self.max_position / original)
        if factor <= 1:
            return 1.0
        if self._type == "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(original))
        numerator, denominator = p.get("mscale"), p.get("mscale_all_dim")
        if numerator and denominator:
            steps = [0.1 * float(m) * math.log(factor) + 1 for m in (numerator, denominator)]
            return steps[0] / steps[1]
        return 0.1 * math.log(factor) + 1

    def rotate(self, head: Array, position: int, length: int) -> Array:
        """Turn one head at an absolute position; length is the sequence's when that is done."""
        half = self.rotary_dim // 2
        out: Array = head.copy()
        size = self.magnitude()
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if self.interleaved else (i, i + half)
            angle = position * self.frequency(i, length)
            cos, sin = size * math.cos(angle), size * math.sin(angle)
            out[first] = head[first] * cos - head[second] * sin
            out[second] = head[second] * cos + head[first] * sin
        return out
