"""Blocks and bytes of quantised weights."""

from __future__ import annotations

from draftrt.errors import UnsupportedError
from draftrt.quantization import BLOCK, Scheme


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
