"""Quantised weights in a data file: written slice by slice, read as what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftrt.export.code_sizes import block_of, bytes_of
from draftrt.export.quantize import dequantize, quantize_rows
from draftrt.export.quantized_graph import QuantizedUse
from draftrt.export.tensor_ref import TensorRef, from_tensor
from draftrt.quantization import Scheme

SLICE_ELEMENTS = 1 << 23
Place = tuple[int, int]  # offset and bytes


def write_quantized(
    stream: BinaryIO, use: QuantizedUse, align: Callable[[BinaryIO], int]
) -> tuple[Place, Place]:
    """Quantise a weight, a slice of its output channels at a time.

    Args:
        stream: data file, at its end.
        use: the weight.
        align: pads the file to where a tensor may start, and returns that offset.

    Returns:
        Where its codes lie, and its scales.
    """
    rows, width = use.tensor.shape
    start, parts = align(stream), []
    for first, codes, scales in _slices(use):
        parts.append(scales)
        if not use.is_product:
            stream.write(packed(codes, use.scheme))
        elif codes.shape[0] == rows:
            stream.write(packed(codes.T.contiguous(), use.scheme))
        else:
            line = bytes_of(rows, use.scheme)
            at, short = start + bytes_of(first, use.scheme), bytes_of(codes.shape[0], use.scheme)
            block = memoryview(packed(codes.T.contiguous(), use.scheme))
            for index in range(width):
                stream.seek(at + index * line)
                stream.write(block[index * short : (index + 1) * short])
    size = bytes_of(rows * width, use.scheme)
    stream.seek(start + size)
    content = torch.cat(parts)
    if use.is_product and use.scheme is Scheme.INT4:
        content = content.T.contiguous()
    offset = align(stream)
    raw = content.view(torch.uint8).numpy().tobytes()
    stream.write(raw)
    return (start, size), (offset, len(raw))


def _slices(use: QuantizedUse) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first row, codes, scales), of an even number of rows: int4 fills its bytes."""
    rows, width = use.tensor.shape
    step = max(2, SLICE_ELEMENTS // width // 2 * 2)
    if rows % 2 and use.scheme is Scheme.INT4:
        step = rows
    for first in range(0, rows, step):
        content = use.tensor.source.rows(first, min(first + step, rows)).read()
        yield (first, *quantize_rows(use.name, content, use.scheme, use.tensor.torch_dtype))


def packed(codes: Tensor, scheme: Scheme) -> bytes:
    """Return codes as ONNX stores them: of two int4 the first in the lower half of a byte."""
    flat = codes.reshape(-1).view(torch.uint8).numpy()
    if scheme is not Scheme.INT4:
        return flat.tobytes()
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    return ((flat[0::2] & 0xF) | (flat[1::2] << 4)).tobytes()


def unpacked(raw: NDArray[np.uint8], scheme: Scheme, shape: tuple[int, ...]) -> Tensor:
    """Return the codes that `packed` wrote, int8 or float8_e4m3fn."""
    if scheme is Scheme.INT4:
        both = np.stack((raw << 4, raw & 0xF0), axis=-1).reshape(-1)[: math.prod(shape)]
        return torch.from_numpy(both.view(np.int8) >> 4).reshape(shape)
    kind = torch.float8_e4m3fn if scheme is Scheme.FP8 else torch.int8
    return torch.from_numpy(np.array(raw)).view(kind).reshape(shape)


@dataclass(frozen=True, slots=True)
class QuantizedRef(TensorRef):
    """A quantised weight [out, in] of a data file, dequantised when it is read.

    Its ``dtype`` is what the products of code and scale are rounded to; `exact` leaves them as
    they are.

    Attributes:
        scheme: how it is quantised.
        scales: its scales, as stored.
        is_product: stored as [in, out].
    """

    scheme: Scheme = Scheme.INT8
    scales: TensorRef | None = None
    is_product: bool = True

    def read(self) -> Tensor:
        """Return the weight [out, in] that the integers stand for."""
        assert self.file is not None
        assert self.scales is not None
        rows, width = self.shape
        count = bytes_of(rows * width, self.scheme)
        raw = np.memmap(self.file, dtype=np.uint8, mode="r", offset=self.offset, shape=(count,))
        scales = self.scales.read()
        wanted: torch.dtype = getattr(torch, self.dtype)
        if not self.is_product:
            return dequantize(unpacked(raw, self.scheme, self.shape), scales).to(wanted)
        out = torch.empty(rows, width, dtype=wanted)
        step = block_of(self.name, width) if self.scheme is Scheme.INT4 else 1
        step *= max(1, SLICE_ELEMENTS // rows // step)
        for first in range(0, width, step):
            lines = min(step, width - first)
            begin, end = first * rows, (first + lines) * rows
            part = raw[begin // 2 : -(-end // 2)] if self.scheme is Scheme.INT4 else raw[begin:end]
            codes = unpacked(part, self.scheme, (lines, rows)).T
            some = scales
            if self.scheme is Scheme.INT4:
                block = width // scales.shape[0]
                some = scales[first // block : (first + lines) // block].T
            out[:, first : first + lines] = dequantize(codes, some).to(wanted)
        return out

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return some rows, read; of a table no others are touched."""
        if self.is_product:
            return from_tensor(self.name, self.read()[start:stop])
        wanted: torch.dtype = getattr(torch, self.dtype)
        content = torch.stack([self.channel(row) for row in range(start, stop)])
        return from_tensor(self.name, content.to(wanted))

    def channel(self, row: int) -> Tensor:
        """Return one output channel [in] without rounding, reading its codes one by one."""
        assert self.file is not None
        assert self.scales is not None
        rows, width = self.shape
        places = torch.arange(width) * rows + row if self.is_product else torch.arange(width)
        if not self.is_product:
            places = places + row * width
        raw = np.memmap(
            self.file,
            dtype=np.uint8,
            mode="r",
            offset=self.offset,
            shape=(bytes_of(rows * width, self.scheme),),
        )
        if self.scheme is Scheme.INT4:
            halves = torch.from_numpy(raw[places.numpy() // 2] >> (places.numpy() % 2 * 4) & 15)
            codes = torch.where(halves > 7, halves.to(torch.int8) - 16, halves.to(torch.int8))
            scales = self.scales.read()[:, row]
        else:
            kind = torch.float8_e4m3fn if self.scheme is Scheme.FP8 else torch.int8
            codes = torch.from_numpy(raw[places.numpy()]).view(kind)
            scales = self.scales.read()[row : row + 1]
        return dequantize(codes[None], scales.reshape(1, -1))[0]

    def exact(self) -> QuantizedRef:
        """Return the same weight without rounding: in float32 every product is exact."""
        return replace(self, dtype="float32")
