"""What the rows of one call look like: positions, angles, who may look at whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.spec import LayerSpec, WindowEdge


@dataclass(frozen=True, slots=True)
class View:
    """Shared facts of one call of a graph.

    Attributes:
        start: [1] int64, first cache row that this call writes.
        valid: [1] int64, cache rows in use after this call.
        num_queries: rows that ask (the block, K), the last ones written.
        positions: [R] int64 of every row written by this call.
        cos: [1, R, rotary_dim / 2] float32.
        sin: as ``cos``.
        masks: visibility rule to [1, 1, K, L] bool; rules that need no mask are absent.
    """

    start: Tensor
    valid: Tensor
    num_queries: int
    positions: Tensor
    cos: Tensor
    sin: Tensor
    masks: dict[LayerSpec, Tensor]


def needs_mask(layer: LayerSpec) -> bool:
    """Whether some valid row is hidden from some query of this layer."""
    return layer.is_causal or layer.window is not None


def mask_of(layer: LayerSpec, positions: Tensor, num_queries: int, capacity: int) -> Tensor:
    """Return who sees whom, [1, 1, K, L] bool (REFERENCE: window edges by publisher).

    Cache row j holds the key of position j, context rows first, then the block.

    Args:
        layer: the rule.
        positions: [R] int64 of the rows written by this call, the K queries last.
        num_queries: K.
        capacity: rows of the cache, L.
    """
    query = positions[-num_queries:, None]  # [K, 1]
    key = torch.arange(capacity, device=positions.device)[None]  # [1, L]
    first, last = query[:1], query[-1:]  # block start s and its last position
    seen = key <= (query if layer.is_causal else last)
    if layer.window is not None and layer.window_edge is WindowEdge.QUERY:
        seen = seen & (query - key < layer.window)
        if not layer.is_causal:
            seen = seen & (key - query < layer.window)
    elif layer.window is not None:
        seen = seen & (key >= first - layer.window)
    return seen.expand(num_queries, capacity)[None, None]
