"""Named weights inside a module, reached by their checkpoint names.

A module that is traced holds placeholders without storage; one that computes holds real tensors.
Which it is, the module itself cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

PLACEHOLDER_LIMIT = 4096


class Weights:
    """Read access to a module's tensors below a name prefix."""

    def __init__(self, root: nn.Module, prefix: str = "") -> None:
        self._root = root
        self._prefix = prefix

    def __call__(self, name: str) -> Tensor:
        """Return the tensor called ``prefix + name``."""
        return self._root.get_parameter(self._prefix + name)

    def get(self, name: str) -> Tensor | None:
        """Return the tensor called ``prefix + name``, or None when the model has none."""
        try:
            return self._root.get_parameter(self._prefix + name)
        except AttributeError:
            return None

    def below(self, prefix: str) -> Weights:
        """Return the tensors below a longer prefix."""
        return Weights(self._root, f"{self._prefix}{prefix}.")


def register(root: nn.Module, tensors: Mapping[str, Tensor]) -> Weights:
    """Register tensors on ``root`` under their dotted names and return access to them."""
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        owner = root
        for part in path:
            child = owner._modules.get(part)
            if child is None:
                child = nn.Module()
                owner.add_module(part, child)
            owner = child
        owner.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    return Weights(root)


def placeholders(
    shapes: Mapping[str, tuple[int, ...]], dtype_of: Callable[[str], torch.dtype]
) -> dict[str, Tensor]:
    """Return tensors of the given shapes that hold no memory worth counting.

    Large ones are one element expanded; small ones get distinct contents, so that no optimiser
    merges two equal initialisers of different names.
    """
    made: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        dtype = dtype_of(name)
        if dtype == torch.int64:
            made[name] = torch.randint(0, 2, shape, generator=generator)
        elif math.prod(shape) > PLACEHOLDER_LIMIT:
            made[name] = torch.zeros(1, dtype=dtype).expand(*shape)
        else:
            made[name] = torch.rand(*shape, generator=generator).to(dtype)
    return made
