"""A module's weights read one by one when it asks for them, and dropped after use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftrt.export.graph_tensors import GraphTensor
from draftrt.export.layers import WEIGHT
from draftrt.export.quantized_file import QuantizedRef
from draftrt.export.tensor_ref import TensorRef


class Unread:
    """Weights of one layer and of what surrounds it, read from the checkpoint on demand.

    A stand-in for the module that `draftrt.export.weights.Weights` reads from: the model has one
    layer, which is ``layer`` of the checkpoint.
    """

    def __init__(
        self,
        tensors: Mapping[str, GraphTensor],
        layer: int,
        *,
        cut: Mapping[str, tuple[str, int, int]],
        looked_up: Mapping[str, Sequence[int]],
    ) -> None:
        """Remember where everything lies.

        Args:
            tensors: the weights of the graph by name.
            layer: which layer of the checkpoint the one layer is.
            cut: weights that are a block of rows: name to (name in ``tensors``, start, stop).
            looked_up: tables of which only some rows are read: name to the ids.
        """
        self._tensors = tensors
        self._layer = layer
        self._cut = cut
        self._looked_up = looked_up

    def get_parameter(self, name: str) -> Tensor:
        """Return a weight in the element type the module computes with.

        Raises:
            AttributeError: the model has no such weight.
        """
        stored, start, stop = self._cut.get(name, (name, 0, -1))
        tensor = self._tensors.get(WEIGHT.sub(rf"\g<1>{self._layer}.", stored))
        if tensor is None:
            raise AttributeError(name)
        if name in self._looked_up:
            return _rows_of(tensor, self._looked_up[name])
        source = _source_of(tensor)
        source = source if stop < 0 else source.rows(start, stop)
        return _computed(source.read(), tensor)


def _source_of(tensor: GraphTensor) -> TensorRef:
    """Return the content; a float32 twin of a bfloat16 graph dequantises without rounding."""
    source, is_twin = tensor.source, tensor.dtype == "bfloat16"
    return source.exact() if is_twin and isinstance(source, QuantizedRef) else source


def _computed(content: Tensor, tensor: GraphTensor) -> Tensor:
    """Return the content rounded to the graph's type; bfloat16 is computed with in float32."""
    if isinstance(tensor.source, QuantizedRef) and tensor.dtype == "bfloat16":
        return content
    rounded = content.to(tensor.torch_dtype)
    return rounded.float() if tensor.dtype == "bfloat16" else rounded


def _rows_of(tensor: GraphTensor, ids: Sequence[int]) -> Tensor:
    """Return a table that holds some of its rows; memory of the others is never touched."""
    table = torch.empty(
        tensor.shape, dtype=torch.float32 if tensor.dtype == "bfloat16" else tensor.torch_dtype
    )
    for row in ids:
        content = _source_of(tensor).rows(row, row + 1).read()
        table[row] = _computed(content, tensor)[0]
    return table
