"""Packed numbers to arrays: several codes of a word, and the element types that NumPy lacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.checkpoint.tensors import TensorRef

WORD_BITS = 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
NATIVE = {"float32", "float16", "int64", "int32", "int8", "uint8"}
SAME_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e8m0fnu": "uint8"}
Array = NDArray[Any]


def matrix(ref: TensorRef) -> Array:
    """Return a tensor's elements, a large one mapped; bits where NumPy lacks the type."""
    kind = ref.dtype if ref.dtype in NATIVE else SAME_BITS[ref.dtype]
    return ref.read_bytes().view(kind).reshape(ref.shape)


def widened(content: Array, dtype: str) -> NDArray[np.float32]:
    """Return elements as float32, exactly.

    Args:
        content: what `matrix` returned, or a part of it.
        dtype: the tensor's.
    """
    if dtype == "bfloat16":
        return (content.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float8_e4m3fn":
        return e4m3()[content]
    if dtype in ("float8_e8m0fnu", "uint8"):
        return powers()[content]
    return content.astype(np.float32)


def unpack(words: Array, bits: int, axis: int, order: Sequence[int] | None = None) -> Array:
    """Return the codes of 32-bit words, uint8, the lowest bits first.

    Args:
        words: int32, packed along ``axis``.
        bits: of a code, 4 or 8.
        axis: 0 or 1 of a matrix.
        order: place in a word of the codes in turn; None: as they are.
    """
    each, (rows, columns) = WORD_BITS // bits, words.shape
    content = np.ascontiguousarray(words).view(np.uint8).reshape(rows, columns, 4)
    shape = (rows, each, columns) if axis == 0 else (rows, columns, each)
    out: Array = np.empty(shape, np.uint8)
    for index, place in enumerate(order or range(each)):
        into = out[:, index] if axis == 0 else out[:, :, index]
        if bits == 8:
            into[...] = content[:, :, place]
        elif place % 2:
            np.right_shift(content[:, :, place // 2], 4, out=into)
        else:
            np.bitwise_and(content[:, :, place // 2], 0xF, out=into)
    found: Array = out.reshape(rows * each, columns) if axis == 0 else out.reshape(rows, -1)
    return found


def nibbles(content: Array) -> Array:
    """Return the 4-bit codes of bytes [..., n] as [..., 2n] uint8, the lower half first."""
    found: Array = np.empty((*content.shape, 2), np.uint8)
    np.bitwise_and(content, 0xF, out=found[..., 0])
    np.right_shift(content, 4, out=found[..., 1])
    return found.reshape(*content.shape[:-1], -1)


@cache
def e2m1() -> NDArray[np.float32]:
    """Return what the 16 codes of a 4-bit float stand for."""
    return np.concatenate((E2M1, -E2M1))


@cache
def e4m3() -> NDArray[np.float32]:
    """Return what the 256 codes of an 8-bit float stand for; two are no number."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    small = mantissa * 2.0**-9
    value = np.where(exponent == 0, small, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[127] = np.nan
    return np.concatenate((value, -value)).astype(np.float32)


@cache
def powers() -> NDArray[np.float32]:
    """Return what the 256 exponents of a block's scale stand for; the last is no number."""
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)
