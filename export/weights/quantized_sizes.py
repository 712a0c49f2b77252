"""Which weights of a graph are quantised in every use, their blocks, and the bytes that takes."""

from __future__ import annotations

from collections.abc import Mapping

from draftrt.errors import UnsupportedError
from draftrt.export.weights.tensors import GraphTensor
from draftrt.quantization import BLOCK, HEAD, TABLES, Part, Quantization, Scheme, part_of


def is_quantised(name: str, tensors: Mapping[str, GraphTensor], quantization: Quantization) -> bool:
    """Return whether every use of a weight is quantised; a tied table has two."""
    if name in TABLES:
        is_tied = HEAD not in tensors
        return Part.EMBEDDING in quantization and (not is_tied or Part.HEAD in quantization)
    return part_of(name, is_product=True) in quantization


def quantised_bytes(name: str, tensor: GraphTensor, quantization: Quantization) -> int:
    """Return the bytes of codes and scales of a weight's product or lookup, 0 for others."""
    total = 0
    for is_product in (True, False):
        part = part_of(name, is_product=is_product)
        if part is None or part not in quantization:
            continue
        rows, width = tensor.shape
        scheme = quantization[part]
        count = rows if scheme is not Scheme.INT4 else rows * (width // block_of(name, width))
        total += bytes_of(rows * width, scheme) + count * tensor.itemsize
    return total


def block_of(name: str, width: int) -> int:
    """Return how many elements of a reduction axis of ``width`` share an int4 scale.

    Raises:
        UnsupportedError: neither `BLOCK` nor half of it divides the width.
    """
    for block in (BLOCK, BLOCK // 2):
        if width % block == 0:
            return block
    raise UnsupportedError(
        f"{name}: int4 needs a reduction axis that is a multiple of {BLOCK // 2}, got {width}",
        hint="use int8 for this part, which has one scale for each output channel",
    )


def bytes_of(count: int, scheme: Scheme) -> int:
    """Return the bytes of so many codes; two of int4 share one."""
    return -(-count // 2) if scheme is Scheme.INT4 else count
