"""How much of a graph the check at export computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftrt.export.checkpoint.tensors import GraphTensor

FULL_CHECK_BYTES = 1 << 28  # weights of a graph up to which it is computed whole
TABLES = ("lm_head.weight", "markov_head.markov_w2.weight", "d2t")
BLOCK_ROWS = 2048  # of the vocabulary
BLOCK_ELEMENTS = 1 << 20  # of a weight; widened they stay in a processor's cache


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows, ``start`` to ``stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}..{self.stop - 1}"


def is_small(tensors: Mapping[str, GraphTensor]) -> bool:
    """Return whether a graph's weights are few enough to compute all of it."""
    return sum(tensor.source.num_bytes for tensor in tensors.values()) <= FULL_CHECK_BYTES


def row_blocks(rows: int) -> list[Rows]:
    """Return the first and the last block of a table's rows."""
    width = min(rows, BLOCK_ROWS)
    return [Rows(start, start + width) for start in (0, rows - width)]


def product_blocks(rows: int, width: int) -> list[Rows]:
    """Return the blocks of a weight's rows that a product by it takes one after the other."""
    step = max(1, BLOCK_ELEMENTS // width)
    return [Rows(first, min(first + step, rows)) for first in range(0, rows, step)]
