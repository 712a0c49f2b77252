"""Quantised weights in a data file: written slice by slice, read as what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftrt.errors import ExportError
from draftrt.export.checkpoint.quantized.linear import StoredRef
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef, from_tensor
from draftrt.export.weights.kept import kept_rows, order_of
from draftrt.export.weights.overflow import check_held
from draftrt.export.weights.quantize import dequantize, quantize_rows
from draftrt.export.weights.tensors import QuantizedUse, base_dtype
from draftrt.quantization import MIDDLE, Base, Scheme, block_of, bytes_of

SLICE_ELEMENTS = 1 << 22
WHOLE_BYTES = 48 << 20  # up to this a product's codes are put together before they are written
CHECKED_ROWS = 16  # of each slice, compared with what the checkpoint's codes stand for
Place = tuple[int, int]  # offset and bytes


def write_quantized(
    stream: BinaryIO, use: QuantizedUse, align: Callable[[BinaryIO], int]
) -> list[Place]:
    """Quantise a weight, a slice of its output channels at a time.

    Args:
        stream: data file, at its end.
        use: the weight.
        align: pads the file to where a tensor may start, and returns that offset.

    Returns:
        Where its codes lie, its scales, and what is added to them where something is.
    """
    rows, width = use.tensor.shape
    start, size = align(stream), bytes_of(rows * width, use.scheme)
    scales: list[Tensor] = []
    bases: list[Tensor] = []
    whole = None
    if use.is_product and size <= WHOLE_BYTES and (rows % 2 == 0 or use.scheme is not Scheme.INT4):
        whole = np.empty((width, size // width), np.uint8)
    for first, made in _slices(use):
        codes = made.codes
        scales.append(made.scales)
        bases += [] if made.base is None else [made.base]
        if not use.is_product:
            stream.write(packed(codes, use.scheme))
        elif whole is not None:
            at = bytes_of(first, use.scheme)
            lines = np.frombuffer(packed(codes.T.contiguous(), use.scheme), np.uint8)
            lines = lines.reshape(width, -1)
            whole[:, at : at + lines.shape[1]] = lines
        elif codes.shape[0] == rows:
            stream.write(packed(codes.T.contiguous(), use.scheme))
        else:
            line = bytes_of(rows, use.scheme)
            at, short = start + bytes_of(first, use.scheme), bytes_of(codes.shape[0], use.scheme)
            block = memoryview(packed(codes.T.contiguous(), use.scheme))
            for index in range(width):
                stream.seek(at + index * line)
                stream.write(block[index * short : (index + 1) * short])
    if whole is not None:
        stream.write(whole.data)
    stream.seek(start + size)
    places = [(start, size)]
    for parts in (scales, bases) if bases else (scales,):
        content = torch.cat(parts)
        if use.is_product and content.ndim == 2:
            content = content.T.contiguous()
        raw = content.view(torch.uint8).numpy().tobytes()
        places.append((align(stream), len(raw)))
        stream.write(raw)
    return places


def _slices(use: QuantizedUse) -> Iterator[tuple[int, Encoded]]:
    """Yield (first row, codes and scales), of an even number of rows: int4 fills its bytes."""
    rows, width = use.tensor.shape
    step = max(2, SLICE_ELEMENTS // width // 2 * 2)
    if rows % 2 and use.scheme is Scheme.INT4:
        step = rows
    for first in range(0, rows, step):
        made = encoded(use.name, use.tensor, use.scheme, first, min(first + step, rows))
        if use.tensor.kept is not None:
            _check_kept(use, first, made)
        yield first, made


def _check_kept(use: QuantizedUse, first: int, made: Encoded) -> None:
    """Compare the first rows of a slice with the checkpoint's own weights.

    Raises:
        ExportError: what the graph holds stands for other weights.
    """
    held = made.dequantized()[:CHECKED_ROWS]
    source = use.tensor.source.rows(first, first + len(held))
    assert isinstance(source, StoredRef)
    order = order_of(source)
    held = held if order is None else held[:, np.argsort(order)]
    want = source.read().float()
    added = 0.0 if made.base is None or made.kind is Base.ZEROS else float(made.base.abs().max())
    room = 4 * torch.finfo(use.tensor.torch_dtype).eps * (float(want.abs().max()) + added)
    gap = float((held - want).abs().max())
    if not gap <= room:
        raise ExportError(
            f"{use.name}: codes and scales stand for weights that differ by {gap:.3g} from the "
            f"checkpoint's, expected at most {room:.3g}",
            hint="a defect of draftrt, please report it",
        )


@dataclass(frozen=True, slots=True)
class Encoded:
    """Output channels as a graph holds them.

    Attributes:
        codes: [n, in] int8 or float8_e4m3fn.
        scales: [n], of blocks [n, blocks].
        base: [n, blocks], what is added; None for nothing.
        kind: of that.
    """

    codes: Tensor
    scales: Tensor
    base: Tensor | None = None
    kind: Base = Base.NONE

    def dequantized(self) -> Tensor:
        """Return what they stand for, [n, in] float32: no product of 16-bit scales is rounded."""
        if self.base is None:
            return dequantize(self.codes, self.scales)
        rows, width = self.codes.shape
        codes = self.codes.float().reshape(rows, self.base.shape[1], -1)
        scales, base = (one.float().reshape(rows, -1, 1) for one in (self.scales, self.base))
        if self.kind is Base.ZEROS:
            return ((codes + base) * scales).reshape(rows, width)
        return ((codes + MIDDLE) * scales + base).reshape(rows, width)


def encoded(name: str, tensor: GraphTensor, scheme: Scheme, start: int, stop: int) -> Encoded:
    """Return some output channels as a graph holds them: the checkpoint's own codes where kept.

    Args:
        name: for messages.
        tensor: the weight.
        scheme: how it is quantised.
        start: first channel.
        stop: the one behind the last.
    """
    source = tensor.source.rows(start, stop)
    if tensor.kept is None:
        return Encoded(*quantize_rows(name, source.read(), scheme, tensor.torch_dtype))
    assert isinstance(source, StoredRef)
    codes, factors, base = kept_rows(source, tensor.kept)
    wide = torch.from_numpy(factors)
    scales = wide.to(tensor.torch_dtype)
    check_held(f"a scale of {name}", wide, scales, tensor.dtype)
    held = torch.from_numpy(codes if codes.flags.writeable else codes.copy())
    held = held.view(torch.float8_e4m3fn) if scheme is Scheme.FP8 else held
    if base is None:
        return Encoded(held, scales)
    added = torch.from_numpy(base)
    stored = added.to(getattr(torch, base_dtype(tensor)))
    check_held(f"a minimum of {name}", added, stored, base_dtype(tensor))
    return Encoded(held, scales, stored, tensor.kept.base)


def packed(codes: Tensor, scheme: Scheme) -> bytes:
    """Return codes as ONNX stores them: of two int4 the first in the lower half of a byte."""
    flat = codes.reshape(-1).view(torch.uint8).numpy()
    if scheme is not Scheme.INT4:
        return flat.tobytes()
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    return ((flat[0::2] & 0xF) | (flat[1::2] << 4)).tobytes()


def unpacked(raw: NDArray[np.uint8], scheme: Scheme) -> Tensor:
    """Return the codes of bytes [..., n]: [..., n], two for each byte of int4 along the last axis.

    Their type is int8, or float8_e4m3fn.
    """
    if scheme is Scheme.INT4:
        both = np.stack((raw << 4, raw & 0xF0), axis=-1).view(np.int8) >> 4
        return torch.from_numpy(both.reshape(*raw.shape[:-1], -1))
    kind = torch.float8_e4m3fn if scheme is Scheme.FP8 else torch.int8
    return torch.from_numpy(np.array(raw)).view(kind)


@dataclass(frozen=True, slots=True)
class QuantizedRef(TensorRef):
    """A quantised weight [out, in] of a data file, dequantised when it is read.

    Its ``dtype`` is what the products of code and scale are rounded to; `exact` leaves them as
    they are.

    Attributes:
        scheme: how it is quantised.
        scales: its scales, as stored.
        is_product: stored as [in, out].
        order: [in], the input that each of its own stands for; None where they are in order.
        base: [blocks, out], what is added; None for nothing.
        base_kind: of that.
    """

    scheme: Scheme = Scheme.INT8
    scales: TensorRef | None = None
    is_product: bool = True
    order: TensorRef | None = None
    base: TensorRef | None = None
    base_kind: Base = Base.NONE

    def read(self) -> Tensor:
        """Return the weight [out, in] that the integers stand for."""
        rows, width = self.shape
        out = torch.empty(rows, width, dtype=getattr(torch, self.dtype))
        step = max(1, SLICE_ELEMENTS // width)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            out[first:last] = self.exact_rows(first, last)
        return out

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return some output channels, read; the codes of no others are."""
        return from_tensor(self.name, self.exact_rows(start, stop).to(getattr(torch, self.dtype)))

    def exact_rows(self, start: int, stop: int) -> Tensor:
        """Return some output channels [n, in] without rounding, float32."""
        added = self.channel_base(start, stop)
        made = Encoded(
            self.codes(start, stop), self.channel_scales(start, stop), added, self.base_kind
        )
        return self.in_order(made.dequantized())

    def in_order(self, held: Tensor) -> Tensor:
        """Return channels [n, in] with their inputs in the order of the model."""
        return held if self.order is None else held[:, self.order.read().argsort()]

    def codes(self, start: int, stop: int) -> Tensor:
        """Return the codes of some output channels, [n, in] int8 or float8_e4m3fn."""
        assert self.file is not None
        rows, width = self.shape
        count = bytes_of(rows * width, self.scheme)
        raw = np.memmap(self.file, dtype=np.uint8, mode="r", offset=self.offset, shape=(count,))
        if not self.is_product:
            each = bytes_of(width, self.scheme)
            return unpacked(raw[start * each : stop * each], self.scheme).reshape(-1, width)
        if self.scheme is not Scheme.INT4:
            return unpacked(raw.reshape(width, rows)[:, start:stop], self.scheme).T
        if rows % 2:  # a line begins in the middle of a byte
            places = np.arange(width) * rows + np.arange(start, stop)[:, None]
            both = unpacked(raw[places // 2][..., None], self.scheme)
            return both.gather(2, torch.from_numpy(places % 2)[..., None])[..., 0]
        lines = raw.reshape(width, rows // 2)[:, start // 2 : -(-stop // 2)]
        return unpacked(lines, self.scheme)[:, start % 2 : start % 2 + stop - start].T

    def channel_scales(self, start: int, stop: int) -> Tensor:
        """Return the scales of some output channels: [n], of blocks [n, blocks]."""
        assert self.scales is not None
        scales = self.scales.read()
        return scales[:, start:stop].T if scales.ndim == 2 else scales[start:stop]

    def channel_base(self, start: int, stop: int) -> Tensor | None:
        """Return what is added to some output channels, [n, blocks]."""
        return None if self.base is None else self.base.read()[:, start:stop].T

    def exact_channels(self, channels: Sequence[int]) -> Tensor:
        """Return output channels from all over the weight, [n, in] float32, as `exact_rows` does.

        The codes are read once and in order: a channel of a product has one in every line.
        """
        assert self.file is not None
        rows, width = self.shape
        is_int4 = self.scheme is Scheme.INT4
        if not self.is_product or (is_int4 and rows % 2):
            return torch.cat([self.exact_rows(row, row + 1) for row in channels])
        places, line = np.array(channels), bytes_of(rows, self.scheme)
        step, found = max(1, SLICE_ELEMENTS // line), []
        for first in range(0, width, step):
            count, offset = min(step, width - first), self.offset + first * line
            raw = np.fromfile(self.file, np.uint8, count * line, offset=offset)
            lines = raw.reshape(count, line)[:, places // 2 if is_int4 else places]
            if not is_int4:
                found.append(unpacked(lines, self.scheme))
                continue
            half = torch.from_numpy(places % 2)[None, :, None].expand(count, -1, 1)
            found.append(unpacked(lines[..., None], self.scheme).gather(2, half)[..., 0])
        chosen = torch.from_numpy(places)
        scales, base = self.channel_scales(0, rows)[chosen], self.channel_base(0, rows)
        added = None if base is None else base[chosen]
        made = Encoded(torch.cat(found).T, scales, added, self.base_kind)
        return self.in_order(made.dequantized())

    def exact(self) -> QuantizedRef:
        """Return the same weight without rounding: in float32 every product is exact."""
        return replace(self, dtype="float32")


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


def _best(content: Tensor, made: Tensor, held: Tensor, name: str) -> Tensor:
    """Return the weight made now, with those blocks of the held one that are as near to it."""
    shape = (-1, block_of(name, content.shape[1]))
    blocks = [one.reshape(shape) for one in (content, made, held)]
    errors = [(one - blocks[0]).square().sum(dim=1, keepdim=True) for one in blocks[1:]]
    best = torch.where(errors[1] <= errors[0] * AS_GOOD, blocks[2], blocks[1])
    return best.reshape(content.shape)
