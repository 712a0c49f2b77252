"""Which weights of a graph are quantised in every use, and the bytes that takes."""

from __future__ import annotations

from collections.abc import Mapping

from draftrt.export.code_sizes import block_of, bytes_of
from draftrt.export.graph_tensors import GraphTensor
from draftrt.quantization import HEAD, TABLES, Part, Quantization, Scheme, part_of


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
