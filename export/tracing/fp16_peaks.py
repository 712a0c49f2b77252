"""Watches a PyTorch module: every float16 tensor it makes, with the largest magnitude it held.

Watches operators, so nothing that a graph traced from the module holds in float16 is left out. A
point is named after the module with weights that computes it, or that the values come from, and the
operator that made it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from draftrt.export.tracing.names import current_path

INPUTS = "inputs"
NAMES = {  # operators of ATen in the words of this project
    "_to_copy": "as float16",
    "addmm": "product",
    "bmm": "product",
    "embedding": "rows",
    "index_copy": "cache",
    "mm": "product",
}


class Fp16Peaks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every float16 tensor made while it is active.

    Attributes:
        largest: name of a point, as ``layers.0.mlp.up_proj · product``, to its largest magnitude;
            infinite once a value was not finite.
    """

    def __init__(self, module: nn.Module) -> None:
        """Record the module's own float16 weights, and remember whose they are."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest: dict[str, float] = {}
        self._modules: set[str] = set()
        self._origins: Any = WeakIdKeyDictionary()
        for name, weight in module.named_parameters():
            short = name.removesuffix(".weight")
            self._modules.add(short)
            self._note(f"{short} · weight", weight.detach())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, name what it made and record it."""
        out = func(*args, **(kwargs or {}))
        inputs, path = _tensors((args, kwargs or {})), current_path()
        held = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        origin = path if path in self._modules else self._inherited(inputs)
        verb = func.overloadpacket.__name__
        for tensor in _tensors(out):
            self._origins[tensor] = origin
            if tensor.untyped_storage().data_ptr() not in held:  # a view holds nothing new
                self._note(f"{origin} · {NAMES.get(verb, verb)}", tensor)
        return out

    def _inherited(self, inputs: Iterable[Tensor]) -> str:
        known = [self._origins[tensor] for tensor in inputs if tensor in self._origins]
        return next((name for name in known if name != INPUTS), INPUTS)

    def _note(self, name: str, tensor: Tensor) -> None:
        if tensor.dtype is not torch.float16 or tensor.numel() == 0:
            return
        largest = float(tensor.abs().amax())
        largest = largest if math.isfinite(largest) else math.inf
        self.largest[name] = max(self.largest.get(name, 0.0), largest)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
