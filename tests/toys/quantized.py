"""Quantised linears in the publishers' layouts, packed slowly and from the layouts' descriptions.

Each maker returns a module's tensors by the last part of their names, and the weight [out, in] that
they stand for in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Made = tuple[dict[str, tuple[str, Array]], Array]  # name to safetensors type and bytes
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # column that nibble 0, 1, ... of a word holds
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def words(codes: Array, bits: int) -> Array:
    """Return codes [rows, n] as 32-bit words [rows, ceil(n / codes a word)]."""
    each = 32 // bits
    rows, count = codes.shape
    out = np.zeros((rows, -(-count // each)), np.uint32)
    for column in range(count):
        out[:, column // each] |= codes[:, column].astype(np.uint32) << np.uint32(
            column % each * bits
        )
    return out.view(np.int32)


def to_bf16(content: Array) -> tuple[Array, Array]:
    """Return float32 cut to bfloat16: its bits, and what they stand for."""
    bits = content.astype(np.float32).view(np.uint32) >> 16
    return bits.astype(np.uint16), (bits << 16).astype(np.uint32).view(np.float32)


def from_e4m3(code: int) -> float:
    """Return what an FP8 code stands for."""
    code = int(code)
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * size


def spread(scales: Array, order: Array) -> Array:
    """Return the scale of each input: [out, groups] by each input's group."""
    return scales[:, order]


def integers(
    rng: np.random.Generator, out: int, width: int, bits: int, group: int, *, sym: bool
) -> tuple[Array, Array, Array]:
    """Return codes [out, in], zero points and half-precision scales [out, groups]."""
    groups = -(-width // group)
    codes = rng.integers(0, 1 << bits, (out, width))
    middle = 1 << (bits - 1)
    low, high = (middle, middle + 1) if sym else (1, 1 << bits)
    zeros = rng.integers(low, high, (out, groups))
    scales = (rng.random((out, groups)) * 0.01 + 0.001).astype(np.float16)
    return codes, zeros, scales


def gptq(
    rng: np.random.Generator,
    out: int,
    width: int,
    *,
    bits: int = 4,
    group: int = 32,
    sym: bool = True,
    offset: int = 1,
    scattered: bool = False,
    with_order: bool = True,
) -> Made:
    """Return a module of GPTQ; ``offset`` 1 stores zero points minus one."""
    group = width if group == -1 else group
    codes, zeros, scales = integers(rng, out, width, bits, group, sym=sym)
    order = np.arange(width) // group
    if scattered:
        order = rng.permutation(order)
    weight = (codes - zeros[:, order]).astype(np.float32) * scales.astype(np.float32)[:, order]
    parts = {
        "qweight": ("I32", words(codes, bits).T),
        "qzeros": ("I32", words((zeros - offset).T, bits)),
        "scales": ("F16", scales.T),
    }
    if with_order:
        parts["g_idx"] = ("I32", order.astype(np.int32))
    return parts, weight


def awq(rng: np.random.Generator, out: int, width: int, *, group: int = 32) -> Made:
    """Return a module of AWQ; outputs are a multiple of 8."""
    codes, zeros, scales = integers(rng, out, width, 4, group, sym=False)

    def packed(content: Array) -> Array:
        turned = content.T.reshape(content.shape[1], -1, 8)[:, :, AWQ_COLUMNS]
        return words(turned.reshape(content.shape[1], -1), 4)

    order = np.arange(width) // group
    weight = (codes - zeros[:, order]).astype(np.float32) * scales.astype(np.float32)[:, order]
    parts = {
        "qweight": ("I32", packed(codes)),
        "qzeros": ("I32", packed(zeros)),
        "scales": ("F16", scales.T),
    }
    return parts, weight


def compressed(
    rng: np.random.Generator,
    out: int,
    width: int,
    *,
    bits: int = 4,
    group: int = 32,
    sym: bool = True,
    packed: bool = True,
    scattered: bool = False,
) -> Made:
    """Return a module of compressed-tensors in integers, ``packed`` or one a byte."""
    group = width if group == -1 else group
    codes, zeros, scales = integers(rng, out, width, bits, group, sym=sym)
    raw, scales = to_bf16(scales)
    order = np.arange(width) // group
    if scattered:
        order = rng.permutation(order)
    middle = 1 << (bits - 1)
    weight = (codes - zeros[:, order]).astype(np.float32) * scales[:, order]
    parts: dict[str, tuple[str, Array]] = {"weight_scale": ("BF16", raw)}
    if packed:
        parts["weight_packed"] = ("I32", words(codes, bits))
        parts["weight_shape"] = ("I64", np.array([out, width], np.int64))
    else:
        parts["weight"] = ("I8", (codes - middle).astype(np.int8))
    if not sym and packed:
        parts["weight_zero_point"] = ("I32", words(zeros.T, bits).T)
    elif not sym:
        parts["weight_zero_point"] = ("I8", (zeros - middle).astype(np.int8))
    if scattered:
        parts["weight_g_idx"] = ("I32", order.astype(np.int32))
    return parts, weight


def fp8(
    rng: np.random.Generator,
    out: int,
    width: int,
    *,
    key: str = "weight_scale_inv",
    block: tuple[int, int] | None = (128, 128),
    scales: str = "BF16",
    shape: tuple[int, ...] | None = None,
) -> Made:
    """Return a module in FP8: in blocks, or with a scale a row or tensor as ``shape`` says."""
    codes = rng.integers(0, 256, (out, width)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    values = np.vectorize(from_e4m3)(codes).astype(np.float32)
    rows, columns = block or (1, width)
    count = (-(-out // rows), -(-width // columns))
    if shape is not None and np.prod(shape, dtype=int) == 1:
        count, rows = (1, 1), out
    found = (rng.random(count) * 0.01 + 0.001).astype(np.float32)
    raw, factors = to_bf16(found) if scales == "BF16" else (found, found)
    if scales == "F8_E8M0":
        raw = rng.integers(110, 125, count).astype(np.uint8)
        factors = np.ldexp(1.0, raw.astype(int) - 127).astype(np.float32)
    wide = factors[np.arange(out) // rows][:, np.arange(width) // columns]
    stored = raw if shape is None else raw.reshape(shape)
    return {"weight": ("F8_E4M3", codes), key: (scales, stored)}, values * wide


def fp4(
    rng: np.random.Generator, out: int, width: int, *, layout: str, key: str = "weight_packed"
) -> Made:
    """Return a module in FP4: ``nvfp4`` (global scale divides), ``modelopt``, or ``mxfp4``."""
    codes = rng.integers(0, 16, (out, width)).astype(np.uint8)
    values = np.array([*E2M1, *(-one for one in E2M1)], np.float32)[codes]
    parts: dict[str, tuple[str, Array]] = {key: ("U8", codes[:, 0::2] | codes[:, 1::2] << 4)}
    group = 32 if layout == "mxfp4" else 16
    raw = rng.integers(110, 125, (out, width // group)).astype(np.uint8)
    if layout == "mxfp4":
        parts["weight_scale"] = ("U8", raw)
        factors = np.ldexp(1.0, raw.astype(int) - 127).astype(np.float32)
    else:
        raw = rng.integers(1, 0x7F, raw.shape).astype(np.uint8)
        overall = np.float32(0.37 if layout == "modelopt" else 411.0)
        factors = np.vectorize(from_e4m3)(raw).astype(np.float32)
        factors = factors * overall if layout == "modelopt" else factors / overall
        parts["weight_scale"] = ("F8_E4M3", raw)
        last = "weight_scale_2" if layout == "modelopt" else "weight_global_scale"
        parts[last] = ("F32", np.array(overall) if layout == "modelopt" else np.array([overall]))
    return parts, values * np.repeat(factors, group, axis=1)
