"""A module's weights as tensors without content, read a block of rows at a time where used.

What a product or a lookup needs is read, rounded as the graph's weight is, used and dropped: as
float32 a block stays in a processor's cache, a whole weight would go through memory three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftrt.export.check.extent import product_blocks
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef
from draftrt.export.tracing.names import LAYER
from draftrt.export.weights.quantized import QuantizedRef


class LazyWeights:
    """Weights of one layer and of what surrounds it, read from the checkpoint on demand.

    A stand-in for the module that `draftrt.export.models.weights.Weights` reads from: the model has
    one layer, which is ``layer`` of the checkpoint.
    """

    def __init__(
        self,
        tensors: Mapping[str, GraphTensor],
        layer: int,
        *,
        cut: Mapping[str, tuple[str, int, int]],
    ) -> None:
        """Remember where everything lies.

        Args:
            tensors: the weights of the graph by name.
            layer: which layer of the checkpoint the one layer is.
            cut: weights that are a block of rows: name to (name in ``tensors``, start, stop).
        """
        self._tensors = tensors
        self._layer = layer
        self._cut = cut

    def whole(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return weights of these names with all of their content, as ordinary tensors."""
        found = {name: self.get_parameter(name) for name in names}
        return {
            name: one._read(0, len(one)) if isinstance(one, Matrix) else one
            for name, one in found.items()
        }

    def get_parameter(self, name: str) -> Tensor:
        """Return a weight in the element type the module computes with.

        Raises:
            AttributeError: the model has no such weight.
        """
        stored, first, last = self._cut.get(name, (name, 0, None))
        tensor = self._tensors.get(LAYER.sub(rf"\g<1>{self._layer}.", stored))
        if tensor is None:
            raise AttributeError(name)
        if not tensor.shape:
            return _computed(tensor.source, tensor)
        start, stop = first, tensor.shape[0] if last is None else last
        source = tensor.source
        if isinstance(source, QuantizedRef) and tensor.dtype == "bfloat16":
            source = source.exact()  # the float32 twin of a graph dequantises without rounding

        def read(first: int, last: int) -> Tensor:
            return _computed(source.rows(start + first, start + last), tensor)

        if len(tensor.shape) != 2:
            return read(0, stop - start)
        return Matrix.over(read, (stop - start, tensor.shape[1]), _computed_dtype(tensor))


def _computed_dtype(tensor: GraphTensor) -> torch.dtype:
    """Return the element type a check computes with; bfloat16 is computed with in float32."""
    return torch.float32 if tensor.dtype == "bfloat16" else tensor.torch_dtype


def _computed(source: TensorRef, tensor: GraphTensor) -> Tensor:
    """Return content rounded to the graph's type, in the one it is computed with."""
    content = source.read()
    if not isinstance(tensor.source, QuantizedRef):
        content = content.to(tensor.torch_dtype)
    return content.to(_computed_dtype(tensor))


class Matrix(Tensor):
    """A weight [R, C] without content: `F.linear` and `F.embedding` read the rows they need.

    Each product is accumulated in float32 and rounded once to the weight's type. Anything else
    that is done with it reads all of it.
    """

    _read: Callable[[int, int], Tensor]

    @staticmethod
    def over(
        read: Callable[[int, int], Tensor], shape: tuple[int, int], dtype: torch.dtype
    ) -> Matrix:
        """Return the weight whose rows ``first`` to ``last`` are ``read(first, last)``."""
        made = torch.zeros(1, dtype=dtype).expand(shape).as_subclass(Matrix)
        made._read = read
        return made

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ self.T + bias``, [n, R] in the weight's type.

        Args:
            x: [n, C].
            bias: [R] or None.
        """
        rows, width = self.shape
        out = torch.empty(x.shape[0], rows)
        for block in product_blocks(rows, width):
            part = self._read(block.start, block.stop).float()
            out[:, block.start : block.stop] = F.linear(x.float(), part)
        return (out if bias is None else out + bias.float()).to(self.dtype)

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` [...], as [..., C]."""
        wanted, places = torch.unique(ids, return_inverse=True)
        found = torch.cat([self._read(row, row + 1) for row in wanted.tolist()])
        return found[places]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute a product or a lookup by blocks; describe; read all for anything else."""
        given = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear and isinstance(args[1], Matrix):
                return args[1].product(args[0], *args[2:], **given)
            if func is F.embedding and isinstance(args[1], Matrix):
                return args[1].look_up(args[0])
            if getattr(func, "__name__", "") == "__get__":  # shape, dtype
                return func(*args, **given)
            whole = [one._read(0, len(one)) if isinstance(one, Matrix) else one for one in args]
            return func(*whole, **given)
