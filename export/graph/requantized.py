"""A checkpoint's weights as a quantised graph holds them, to be compared with that graph's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.graph.initialisers import read_initialisers
from draftrt.export.weights.quantize import dequantize, quantize_rows
from draftrt.export.weights.quantized import QuantizedRef
from draftrt.export.weights.quantized_sizes import block_of
from draftrt.export.weights.tensors import GraphTensor
from draftrt.quantization import Scheme

AS_GOOD = 1 + 1e-5  # of two scales tried for an int4 block, another machine may choose the other


@dataclass(frozen=True, slots=True)
class RequantizedRef(TensorRef):
    """A weight of a checkpoint, quantised like the one of a graph when it is read.

    Its ``dtype`` is what the products of code and scale are rounded to; `exact` leaves them as
    they are.

    Attributes:
        source: the checkpoint's weight.
        stored: the graph's.
    """

    source: TensorRef | None = None
    stored: QuantizedRef | None = None

    def read(self) -> Tensor:
        """Return the weight [out, in] that the integers would stand for."""
        assert self.source is not None
        assert self.stored is not None
        content = self.source.read().float()
        scheme, scales = self.stored.scheme, getattr(torch, self.stored.dtype)
        made = dequantize(*quantize_rows(self.name, content, scheme, scales))
        if scheme is Scheme.INT4 and self.stored.shape == self.shape:
            made = _best(content, made, self.stored.exact().read(), self.name)
        wanted: torch.dtype = getattr(torch, self.dtype)
        return made.to(wanted)

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return some rows, each quantised on its own as always."""
        assert self.source is not None
        assert self.stored is not None
        return replace(
            self,
            shape=(stop - start, *self.shape[1:]),
            source=self.source.rows(start, stop),
        )

    def exact(self) -> RequantizedRef:
        """Return the same weight without rounding: in float32 every product is exact."""
        return replace(self, dtype="float32")


def requantized(path: Path, tensors: Mapping[str, GraphTensor]) -> dict[str, GraphTensor]:
    """Return the tensors with those quantised that a graph holds quantised.

    Args:
        path: ONNX file of the graph.
        tensors: weights of a checkpoint by their names in the graph.
    """
    found = dict(tensors)
    for name, stored in read_initialisers(path).items():
        if isinstance(stored, QuantizedRef) and name in tensors:
            one = tensors[name]
            ref = RequantizedRef(name, one.dtype, one.shape, source=one.source, stored=stored)
            found[name] = GraphTensor(name, one.shape, one.dtype, ref)
    return found


def _best(content: Tensor, made: Tensor, held: Tensor, name: str) -> Tensor:
    """Return the weight made now, with those blocks of the held one that are as near to it."""
    shape = (-1, block_of(name, content.shape[1]))
    blocks = [one.reshape(shape) for one in (content, made, held)]
    errors = [(one - blocks[0]).square().sum(dim=1, keepdim=True) for one in blocks[1:]]
    best = torch.where(errors[1] <= errors[0] * AS_GOOD, blocks[2], blocks[1])
    return best.reshape(content.shape)
