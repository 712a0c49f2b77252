"""Predictions fitted to measurements: size of a bundle, memory of an export.

Weights are counted exactly. What lies beside them in a bundle is a straight line through the
measurements in docs/log.md. What an export holds is what its check holds
(`draftrt.export.check_sampled`): of a large model one layer and what surrounds the layers, as they
are stored, and of a layer's quantised weights one that is dequantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftrt.engines.memory import GraphMemory
from draftrt.export.check_extent import BLOCK_ROWS, TABLES, is_small
from draftrt.export.graph_tensors import GraphTensor
from draftrt.export.layers import WEIGHT
from draftrt.export.quantized_sizes import is_quantised, quantised_bytes
from draftrt.export.weight_files import PlacedWeights
from draftrt.export.weight_slices import is_read_whole, num_bytes

GRAPH_BYTES, LAYER_BYTES = 7_500, 17_300  # of the two ONNX files of a graph
MANIFEST_BYTES = 14_000
COPY_BYTES = 50 * 10**6  # slices on their way
EXPORT_BYTES = 360 * 10**6  # PyTorch, ONNX, ONNX Runtime: 330 to 392 by installation
QUANTISE_BYTES = 80 * 10**6  # slices that are quantised, and their search
DEQUANTISED = {"float32": 4, "bfloat16": 4, "float16": 11}  # bytes an element, of all copies


def bundle_bytes(weights: int, layers: Sequence[int], tokenizer: int) -> int:
    """Return the size of a bundle without plans.

    Args:
        weights: bytes of its data files.
        layers: of each graph.
        tokenizer: bytes of the tokenizer's files.
    """
    graphs = sum(GRAPH_BYTES + LAYER_BYTES * count for count in layers)
    return weights + graphs + tokenizer + MANIFEST_BYTES


def export_peak_bytes(
    placed: Mapping[str, PlacedWeights], memory: Mapping[str, GraphMemory]
) -> int:
    """Return the peak resident memory of an export.

    Args:
        placed: graph name to its weights.
        memory: graph name to what the graph takes, its caches at their largest.
    """
    copied = next(iter(placed.values())).files.progress.total
    return (
        EXPORT_BYTES
        + max(_check_bytes(weights, memory[name]) for name, weights in placed.items())
        + min(copied, COPY_BYTES)
    )


def _check_bytes(weights: PlacedWeights, memory: GraphMemory) -> int:
    if is_small(weights.tensors):
        return 2 * memory.weights
    held: dict[str, int] = {}  # bytes by layer, of what surrounds them under ""
    widest = 0
    for name, tensor in weights.tensors.items():
        if not is_read_whole(name):
            continue
        match = WEIGHT.match(name)
        layer = match[2] if match else ""
        held[layer] = held.get(layer, 0) + _stored_bytes(name, tensor, weights)
        if match and is_quantised(name, weights.tensors, weights.quantization):
            count = num_bytes(tensor) // tensor.itemsize
            widest = max(widest, QUANTISE_BYTES + count * DEQUANTISED[tensor.dtype])
    surrounding = held.pop("", 0)
    is_twin = any(tensor.dtype == "bfloat16" for tensor in weights.tensors.values())
    caches = memory.caches // max(1, len(held)) * (2 if is_twin else 1)
    return surrounding + max(held.values(), default=0) + widest + 3 * caches


def _stored_bytes(name: str, tensor: GraphTensor, weights: PlacedWeights) -> int:
    """Return the bytes of a weight that the check of a large graph reads, as they are stored."""
    size = num_bytes(tensor)
    if is_quantised(name, weights.tensors, weights.quantization):
        size = quantised_bytes(name, tensor, weights.quantization)
    rows = tensor.shape[0] if tensor.shape else 1
    return size * min(rows, BLOCK_ROWS) // rows if name in TABLES else size
