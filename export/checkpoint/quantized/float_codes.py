"""Weights in small floats: FP8 by tensor, row or block, and FP4 with a scale for 16 or 32 inputs.

`quant_method: fp8`, ModelOpt's checkpoints and the experts of gpt-oss are read here whole;
compressed-tensors' floats share the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftrt.codec import shown
from draftrt.errors import UnsupportedError
from draftrt.export.checkpoint.quantized.linear import (
    FLOAT_SCALES,
    CodeKind,
    LinearError,
    Parts,
    Rows,
    StoredLinear,
    of_type,
    part,
    place,
    scales_by_group,
)
from draftrt.export.checkpoint.quantized.packing import Array, matrix, nibbles, widened
from draftrt.export.checkpoint.quantized.settings import Settings
from draftrt.export.checkpoint.tensors import TensorRef

E8M0 = "float8_e8m0fnu"
NOT_KEPT = "give the publisher's unquantised checkpoint (bf16), or one in FP8 or NVFP4"
EXPERTS = ("_blocks", "_scales")  # of gpt-oss: NAME_blocks [experts, out, in / 32, 16]


def read_fp8(
    name: str,
    parts: Parts,
    layout: str,
    key: str,
    block: tuple[int, ...] = (),
    group: int = 0,
) -> StoredLinear:
    """Read a weight in FP8 (E4M3).

    Args:
        name: the module's.
        parts: its tensors.
        layout: for people.
        key: of the tensor of scales.
        block: rows and inputs that share a scale; empty for a scale a tensor, row or group.
        group: inputs of a row that share a scale; 0 for all.

    Raises:
        LinearError: a tensor is missing or of another shape.
    """
    stored = of_type(part(name, parts, "weight", layout, "codes"), "float8_e4m3fn")
    scales = of_type(part(name, parts, key, layout, "scales"), *FLOAT_SCALES, E8M0)
    if len(stored.shape) != 2:
        raise LinearError("shape", f"{stored.name} is {list(stored.shape)}, expected a matrix")
    shape = (stored.shape[0], stored.shape[1])
    width = block[1] if block else (group or shape[1])
    factors = (
        _by_block(name, scales, shape, block)
        if block
        else scales_by_group(name, scales, shape, width)
    )
    codes = matrix(stored)
    return StoredLinear(
        name,
        layout,
        shape,
        CodeKind.E4M3,
        8,
        width,
        lambda start, stop: codes[start:stop],
        factors,
        None,
        None,
        *place(parts),
    )


def _by_block(name: str, ref: TensorRef, shape: tuple[int, int], block: tuple[int, ...]) -> Rows:
    """Return scales of blocks of rows and inputs; the last blocks may be partial."""
    wanted = tuple(-(-size // length) for size, length in zip(shape, block, strict=True))
    content = matrix(ref)
    if content.size != wanted[0] * wanted[1] or [one for one in ref.shape if one != 1] != [
        one for one in wanted if one != 1
    ]:
        raise LinearError(
            "groups",
            f"{ref.name} is {list(ref.shape)}, and {name} of {list(shape)} in blocks of "
            f"{list(block)} needs {list(wanted)}",
            "the block size and the tensors disagree; nothing is guessed",
        )
    content = content.reshape(wanted)

    def rows(start: int, stop: int) -> Array:
        return widened(content[np.arange(start, stop) // block[0]], ref.dtype)

    return rows


def read_e2m1(
    name: str,
    parts: Parts,
    layout: str,
    group: int,
    key: str = "weight_packed",
    overall: TensorRef | None = None,
    *,
    divides: bool = False,
) -> StoredLinear:
    """Read a weight in FP4 (E2M1), two codes a byte.

    Args:
        name: the module's.
        parts: its tensors.
        layout: for people.
        group: inputs that share a scale: 16 with scales in E4M3, 32 with exponents.
        key: of the tensor of codes.
        overall: the scale of the whole tensor, where there is one.
        divides: it divides.

    Raises:
        LinearError: a tensor is missing or of another shape.
    """
    packed = of_type(part(name, parts, key, layout, "codes"), "uint8")
    kinds = ("float8_e4m3fn",) if group == 16 else ("uint8", E8M0)
    scales = of_type(part(name, parts, "weight_scale", layout, "scales"), *kinds)
    if len(packed.shape) != 2:
        raise LinearError("shape", f"{packed.name} is {list(packed.shape)}, expected a matrix")
    shape = (packed.shape[0], packed.shape[1] * 2)
    factors = scales_by_group(name, scales, shape, group)
    if overall is not None:
        factors = _times(factors, of_type(overall, "float32"), divides=divides)
    codes = matrix(packed)
    return StoredLinear(
        name,
        layout,
        shape,
        CodeKind.E2M1,
        4,
        group,
        lambda start, stop: nibbles(codes[start:stop]),
        factors,
        None,
        None,
        *place(parts),
    )


def _times(factors: Rows, overall: TensorRef, *, divides: bool) -> Rows:
    """Return scales times, or divided by, that of the whole tensor."""
    content = matrix(overall).reshape(-1)
    if len(content) != 1 or not np.isfinite(content[0]) or content[0] == 0:
        raise LinearError(
            "global scale", f"{overall.name}: got {shown(content.tolist())}, expected one number"
        )
    one = np.float32(content[0])

    def rows(start: int, stop: int) -> Array:
        found = factors(start, stop)
        product: Array = np.divide(found, one) if divides else np.multiply(found, one)
        return product

    return rows


def fp8_reader(settings: Settings) -> Any:
    """Return what reads a module of a checkpoint of ``quant_method: fp8``."""
    table = settings.table
    if table.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedError(f"{settings.where}.fmt: got {shown(table['fmt'])}, expected 'e4m3'")
    block = table.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list)
        and len(block) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in block)
    ):
        raise UnsupportedError(
            f"{settings.where}.weight_block_size: got {shown(block)}, expected two sizes"
        )

    def read(name: str, parts: Parts) -> StoredLinear:
        both = [key for key in ("weight_scale_inv", "weight_scale") if key in parts]
        if len(both) == 2:
            raise LinearError("two scales", f"{name} has scales twice: {' and '.join(both)}")
        key = both[0] if both else "weight_scale_inv"
        return read_fp8(name, parts, "FP8", key, tuple(block or ()))

    return read


ALGORITHMS = ("FP8", "NVFP4", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
MIXED = "MIXED_PRECISION"


def modelopt_reader(settings: Settings) -> Any:
    """Return what reads a module of a ModelOpt checkpoint."""
    table = settings.table
    general = table.get("quant_algo")
    layers = table.get("quantized_layers")
    layers = layers if isinstance(layers, Mapping) else {}
    if general not in ALGORITHMS and not (general == MIXED and layers):
        raise UnsupportedError(
            f"{settings.where}.quant_algo: got {shown(general)}, expected one of "
            f"{list(ALGORITHMS)}",
            hint=NOT_KEPT,
        )

    def read(name: str, parts: Parts) -> StoredLinear:
        own = layers.get(name) if general == MIXED else None
        algorithm = own.get("quant_algo") if isinstance(own, Mapping) else general
        if "pre_quant_scale" in parts:
            raise LinearError(
                "pre_quant_scale",
                f"{name} scales its inputs (pre_quant_scale), which is not read",
                NOT_KEPT,
            )
        layout = f"ModelOpt {algorithm}"
        if algorithm == "NVFP4":
            scale = part(name, parts, "weight_scale_2", layout, "scale of the whole tensor")
            return read_e2m1(name, parts, layout, 16, "weight", scale)
        if algorithm not in ALGORITHMS:
            raise LinearError(
                "algorithm", f"{name}: quant_algo {shown(algorithm)} is not read", NOT_KEPT
            )
        block = (128, 128) if algorithm == "FP8_PB_WO" else ()
        return read_fp8(name, parts, layout, "weight_scale", block)

    return read


def read_experts(name: str, blocks: TensorRef, scales: TensorRef) -> StoredLinear:
    """Read the experts of gpt-oss, [experts x out, in].

    Args:
        name: without its ending.
        blocks: [experts, out, in / 32, 16] uint8.
        scales: [experts, out, in / 32] uint8, exponents.

    Raises:
        LinearError: one is of another type or shape.
    """
    of_type(blocks, "uint8")
    of_type(scales, "uint8")
    if len(blocks.shape) != 4 or blocks.shape[3] != 16 or scales.shape != blocks.shape[:3]:
        raise LinearError(
            "shape",
            f"{blocks.name} is {list(blocks.shape)} and {scales.name} {list(scales.shape)}, "
            "expected [experts, out, in / 32, 16] and the same without the last",
        )
    rows, count = blocks.shape[0] * blocks.shape[1], blocks.shape[2]
    codes = matrix(blocks).reshape(rows, count * 16)
    exponents = matrix(scales).reshape(rows, count)
    return StoredLinear(
        name,
        "gpt-oss MXFP4",
        (rows, count * 32),
        CodeKind.E2M1,
        4,
        32,
        lambda start, stop: nibbles(codes[start:stop]),
        lambda start, stop: widened(exponents[start:stop], "uint8"),
        None,
        None,
        *place({"blocks": blocks, "scales": scales}),
    )
