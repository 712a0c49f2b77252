"""Numbers as a float type holds them."""

from __future__ import annotations

import numpy as np


def rounded(value: float, dtype: str) -> float:
    """Return a positive value rounded to the nearest one that a float dtype holds, ties to even."""
    if dtype != "bfloat16":
        return float(np.array(value, dtype=dtype))
    bits = int(np.array(value, dtype=np.float32).view(np.uint32))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(np.array(bits & 0xFFFF0000, dtype=np.uint32).view(np.float32))
