"""Named weights inside a module, reached by their checkpoint names, and what it names after them.

A module that is traced holds placeholders without storage; one that computes holds real tensors.
Which it is, the module itself cannot tell; nor whether they are read only when it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from draftrt.export.tracing import names


class Root(Protocol):
    """What weights are read from: a module, or something that reads them when it is asked."""

    def get_parameter(self, target: str) -> Tensor:
        """Return a weight by its dotted name; AttributeError when there is none."""


class Weights:
    """Read access to a module's tensors below a name prefix."""

    def __init__(self, root: Root, prefix: str = "") -> None:
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

    @property
    def path(self) -> str:
        """The path of the module whose weights these are."""
        return self._prefix.removesuffix(".")

    @contextmanager
    def inside(self, prefix: str = "") -> Iterator[Weights]:
        """Give the tensors below a longer prefix; what is computed meanwhile is that module's."""
        own = self.below(prefix) if prefix else self
        with names.inside(own.path):
            yield own

    def name(self, value: Tensor, name: str = "", into: Tensor | None = None) -> Tensor:
        """Name what this module computes, and return it.

        Args:
            value: the tensor.
            name: below the module's path; empty for what the module itself returns.
            into: what the module computes it from.
        """
        return names.name(value, self._prefix + name if name else self.path, into)


def register(root: nn.Module, tensors: Mapping[str, Tensor] | Root) -> Weights:
    """Register tensors on ``root`` under their dotted names and return access to them.

    What reads its weights itself is left as it is.
    """
    if not isinstance(tensors, Mapping):
        return Weights(tensors)
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
    """Return tensors of the given shapes that hold one element each, repeated."""
    return {
        name: torch.zeros(1, dtype=dtype_of(name)).expand(shape) for name, shape in shapes.items()
    }
