"""Memory of an export: predicted by a fit to measurements, and refused where it is not there.

What an export holds is what its check holds (`draftrt.export.check.drafter`): of a large model one
layer and what surrounds the layers, as they are stored, and of a layer's quantised weights one that
is dequantised; of a small one everything. The measurements are in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftrt.errors import ExportError
from draftrt.export.check.extent import BLOCK_ROWS, TABLES, is_small
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.models.shapes import PREFIX
from draftrt.export.tracing.names import LAYER
from draftrt.export.weights.data_file import is_read_whole, num_bytes
from draftrt.export.weights.storage import PlacedWeights
from draftrt.export.weights.tensors import is_quantised, quantised_bytes
from draftrt.provenance import check_available, in_gb

COPY_BYTES = 50 * 10**6  # slices on their way
EXPORT_BYTES = 360 * 10**6  # PyTorch, ONNX, ONNX Runtime: 330 to 392 by installation
QUANTISE_BYTES = 80 * 10**6  # slices that are quantised, and their search
DEQUANTISED = {"float32": 4, "bfloat16": 4, "float16": 11}  # bytes an element, of all copies
ROW_COPIES = 10  # of a large graph's rotary tables, with what else grows by the row
CACHE_COPIES = 3  # fed, as the module leaves them, and as the graph does


def check_memory(
    placed: Mapping[str, PlacedWeights], caches: Mapping[str, int], context: int
) -> None:
    """Refuse an export that this process has not the memory for, before its work.

    Args:
        placed: graph name to its weights.
        caches: graph name to the bytes of its caches.
        context: rows of each cache.

    Raises:
        ExportError: with the numbers.
    """
    counted = ", ".join(f"{name} {in_gb(size)}" for name, size in caches.items())
    check_available(
        export_peak_bytes(placed, caches),
        "the export",
        ExportError,
        counted=f"caches of {context} rows: {counted}",
        hint="take a smaller --max-context; `draftrt plan` shows what a pair takes",
    )


def export_peak_bytes(placed: Mapping[str, PlacedWeights], caches: Mapping[str, int]) -> int:
    """Return the peak resident memory of an export.

    Args:
        placed: graph name to its weights.
        caches: graph name to the bytes of its caches.
    """
    copied = next(iter(placed.values())).files.progress.total
    return (
        EXPORT_BYTES
        + max(_check_bytes(weights, caches[name]) for name, weights in placed.items())
        + min(copied, COPY_BYTES)
    )


def _check_bytes(weights: PlacedWeights, caches: int) -> int:
    is_twin = any(tensor.dtype == "bfloat16" for tensor in weights.tensors.values())
    held_caches = CACHE_COPIES * caches * (2 if is_twin else 1)
    if is_small(weights.tensors):
        return 2 * weights.num_bytes() + held_caches
    held: dict[str, int] = {}  # bytes by layer, of what surrounds them under ""
    widest = 0
    for name, tensor in weights.tensors.items():
        if not is_read_whole(name):
            continue
        match = LAYER.match(name)
        layer = match[2] if match else ""
        held[layer] = held.get(layer, 0) + _stored_bytes(name, tensor, weights)
        if match and is_quantised(name, weights.tensors, weights.quantization):
            count = num_bytes(tensor) // tensor.itemsize
            widest = max(widest, QUANTISE_BYTES + count * DEQUANTISED[tensor.dtype])
    surrounding = held.pop("", 0)
    of_a_layer = held_caches // max(1, len(held))
    tables = sum(num_bytes(t) for n, t in weights.tensors.items() if n.startswith(PREFIX))
    long = of_a_layer + ROW_COPIES * tables
    return surrounding + max(held.values(), default=0) + widest + long


def _stored_bytes(name: str, tensor: GraphTensor, weights: PlacedWeights) -> int:
    """Return the bytes of a weight that the check of a large graph reads, as they are stored."""
    size = num_bytes(tensor)
    if is_quantised(name, weights.tensors, weights.quantization):
        size = quantised_bytes(name, weights.tensors, weights.quantization)
    rows = tensor.shape[0] if tensor.shape else 1
    return size * min(rows, BLOCK_ROWS) // rows if name in TABLES else size
