"""Predictions fitted to measurements: the size of a bundle.

Weights are counted exactly. What lies beside them in a bundle is a straight line through the
measurements in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Sequence

GRAPH_BYTES, LAYER_BYTES = 7_500, 17_300  # of the two ONNX files of a graph
MANIFEST_BYTES = 14_000


def bundle_bytes(weights: int, layers: Sequence[int], tokenizer: int) -> int:
    """Return the size of a bundle without plans.

    Args:
        weights: bytes of its data files.
        layers: of each graph.
        tokenizer: bytes of the tokenizer's files.
    """
    graphs = sum(GRAPH_BYTES + LAYER_BYTES * count for count in layers)
    return weights + graphs + tokenizer + MANIFEST_BYTES
