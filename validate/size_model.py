"""Predictions fitted to measurements: size of a bundle, memory of an export.

Weights are counted exactly. What lies beside them in a bundle is a straight line through the
measurements in docs/log.md. What an export holds is what its check holds
(`draftrt.export.check_sampled`): of a large model one layer, what surrounds the layers, and two
of a layer's weights widened to float32, or a wider one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftrt.engines.memory import GraphMemory
from draftrt.export.check_sampled import TABLES, is_small
from draftrt.export.layers import WEIGHT
from draftrt.export.weight_files import PlacedWeights
from draftrt.export.weight_slices import is_read_whole, num_bytes

GRAPH_BYTES, LAYER_BYTES = 7_500, 17_300  # of the two ONNX files of a graph
MANIFEST_BYTES = 14_000
COPY_BYTES = 50 * 10**6  # slices on their way
EXPORT_BYTES = 360 * 10**6  # PyTorch, ONNX, ONNX Runtime: 330 to 392 by installation


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
    layers = {int(match[2]) for name in weights.tensors if (match := WEIGHT.match(name))}
    held = {
        name: tensor
        for name, tensor in weights.tensors.items()
        if is_read_whole(name)
        and name not in TABLES
        and ((match := WEIGHT.match(name)) is None or match[2] == "0")
    }
    wide = {name: num_bytes(t) // t.itemsize * 4 for name, t in held.items()}
    widest = max(
        2 * max(size for name, size in wide.items() if WEIGHT.match(name)), max(wide.values())
    )
    is_wide = all(tensor.itemsize == 4 for tensor in held.values())
    caches = memory.caches // max(1, len(layers)) * (1 if is_wide else 2)
    return sum(map(num_bytes, held.values())) + (0 if is_wide else widest) + 3 * caches
