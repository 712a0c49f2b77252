"""Where weights of a bundle lie, and how far their copying is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from draftrt.export.graph.quantize import QuantizedUse


class WeightMode(str, Enum):
    """Whether a bundle holds its weights or points to those of the checkpoint."""

    COPY = "copy"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file.

    Attributes:
        file: name in the bundle.
        offset: first byte.
        length: number of bytes.
    """

    file: str
    offset: int
    length: int


@dataclass(slots=True)
class Progress:
    """How far the copying is, in bytes; read while another thread counts."""

    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A quantised weight that is written.

    Attributes:
        use: the weight.
        codes: where its codes lie.
        scales: where its scales lie.
    """

    use: QuantizedUse
    codes: Place
    scales: Place
