"""Seeded weights of toy checkpoints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]
CODEBOOKS = ("markov_w1.weight", "markov_w2.weight", "_codebook.weight")


def random_arrays(shapes: Shapes, seed: int) -> Arrays:
    """Return seeded weights that keep activations of order one."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in shapes.items():
        if name.endswith(("norm.weight", "layer_scalar")):
            values = rng.uniform(0.5, 1.5, shape)
        elif name.endswith("base_kernel"):
            values = rng.uniform(-0.4, 0.4, shape)
        elif name.endswith(CODEBOOKS):
            values = rng.standard_normal(shape)
        elif len(shape) == 2:
            values = rng.standard_normal(shape) / math.sqrt(shape[1])
        else:
            values = 0.1 * rng.standard_normal(shape)
        arrays[name] = values.astype(np.float32)
    return arrays
