"""compressed-tensors: every layer by its own group of the config, packed or one code an element."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftrt.codec import shown
from draftrt.errors import UnsupportedError
from draftrt.export.checkpoint.quantized.float_codes import read_e2m1, read_fp8
from draftrt.export.checkpoint.quantized.gptq import around, group_order
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
from draftrt.export.checkpoint.quantized.packing import Array, matrix, unpack
from draftrt.export.checkpoint.quantized.settings import Settings, matches

PACKED, INTEGERS, FLOATS = "pack-quantized", ("int-quantized", "naive-quantized"), "float-quantized"
NVFP4, MXFP4 = "nvfp4-pack-quantized", "mxfp4-pack-quantized"
FORMATS = (PACKED, *INTEGERS, FLOATS, NVFP4, MXFP4)
MIXED = "mixed-precision"  # of a config whose groups have formats of their own
STRATEGIES = ("channel", "tensor", "group", "block", "tensor_group")
LINEAR = "Linear"


@dataclass(frozen=True, slots=True)
class Group:
    """One of the config's groups.

    Attributes:
        name: its key.
        targets: modules: names, patterns, or ``Linear``.
        form: how they are stored.
        bits: of a code.
        is_float: codes are floats.
        strategy: what has a scale of its own.
        group: inputs that share a scale; 0 where none is stated.
        block: rows and inputs of a block; empty where none is stated.
        is_symmetric: there are no zero points.
        is_ordered: ``weight_g_idx`` says which group an input is in.
    """

    name: str
    targets: tuple[str, ...]
    form: str
    bits: int
    is_float: bool
    strategy: str
    group: int
    block: tuple[int, ...]
    is_symmetric: bool
    is_ordered: bool


def reader(settings: Settings) -> Any:
    """Return what reads a module of a compressed-tensors checkpoint."""
    table = settings.table
    for key in ("transform_config", "sparsity_config"):
        inner = table.get(key)
        if isinstance(inner, Mapping) and any(inner.values()) and inner.get("format") != "dense":
            raise UnsupportedError(
                f"{settings.where}.{key}: got {shown(inner)}, expected none",
                hint="the layers compute something else with it; give a checkpoint without",
            )
    stated = table.get("config_groups")
    if not isinstance(stated, Mapping) or not stated:
        raise UnsupportedError(
            f"{settings.where}.config_groups: got {shown(stated)}, expected one group or more"
        )
    groups = [_group(settings, name, own) for name, own in stated.items()]

    def read(name: str, parts: Parts) -> StoredLinear:
        return read_compressed(name, parts, _group_of(name, groups))

    return read


def _group(settings: Settings, name: str, stated: Any) -> Group:
    where = f"{settings.where}.config_groups.{name}"
    table = stated if isinstance(stated, Mapping) else {}
    weights = table.get("weights")
    if not isinstance(weights, Mapping):
        raise UnsupportedError(f"{where}.weights: got {shown(weights)}, expected an object")
    form = table.get("format") or settings.table.get("format")
    strategy = weights.get("strategy")
    strategy = getattr(strategy, "value", strategy)
    bits, kind = weights.get("num_bits", 0), weights.get("type", "int")
    size, block = weights.get("group_size"), _block(weights.get("block_structure"))
    good = {
        "format": form in FORMATS,
        "weights.strategy": strategy in STRATEGIES,
        "weights.num_bits": bits in (4, 8) and not isinstance(bits, bool),
        "weights.type": kind in ("int", "float"),
        "weights.group_size": size is None
        or (isinstance(size, int) and not isinstance(size, bool) and (size > 0 or size == -1)),
        "weights.block_structure": block is None
        or (isinstance(block, list) and len(block) == 2 and all(_is_size(one) for one in block)),
        "weights.dynamic": weights.get("dynamic") in (None, False),
    }
    found = {"format": form, **{f"weights.{key}": value for key, value in weights.items()}}
    for key, is_good in good.items():
        if not is_good:
            expected = f", expected one of {list(FORMATS)}" if key == "format" else ""
            raise UnsupportedError(
                f"{where}.{key}: got {shown(found.get(key))}{expected}",
                hint="give the publisher's unquantised checkpoint (bf16), or one in such a format",
            )
    targets = table.get("targets")
    return Group(
        name,
        tuple(one for one in targets if isinstance(one, str)) if isinstance(targets, list) else (),
        str(form),
        int(bits),
        kind == "float",
        str(strategy),
        size if isinstance(size, int) and size > 0 else 0,
        tuple(block or ()),
        weights.get("symmetric", True) is not False,
        weights.get("actorder") in ("group", True),
    )


def _block(stated: Any) -> Any:
    """Return the sizes of a block, which older releases wrote as ``128x128``."""
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})", stated) if isinstance(stated, str) else None
    return [int(one) for one in found.groups()] if found else stated


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _group_of(module: str, groups: list[Group]) -> Group:
    """Return the group of a module: by its name, by a pattern, or as a linear.

    Raises:
        LinearError: none is meant, or two that differ.
    """
    ranks: dict[int, list[Group]] = {}
    for group in groups:
        ways = [
            0 if target == module else 1 if target != LINEAR and matches(target, module) else 2
            for target in group.targets
            if target == LINEAR or matches(target, module)
        ]
        if ways:
            ranks.setdefault(min(ways), []).append(group)
    if not ranks:
        raise LinearError(
            "no group",
            f"{module} has codes, and no group of config_groups has it among its targets",
            "the config describes another model",
        )
    best = ranks[min(ranks)]
    if any(
        (one.form, one.bits, one.group, one.strategy)
        != (best[0].form, best[0].bits, best[0].group, best[0].strategy)
        for one in best
    ):
        raise LinearError(
            "two groups",
            f"{module} is a target of config_groups {', '.join(one.name for one in best)}, of "
            f"{' and '.join(str(one.bits) for one in best)} bits",
        )
    return best[0]


def read_compressed(name: str, parts: Parts, how: Group) -> StoredLinear:
    """Read a module.

    Args:
        name: the module's.
        parts: its tensors.
        how: its group of the config.

    Raises:
        LinearError: tensors are missing, or disagree with each other or with the config.
    """
    layout = f"compressed-tensors {how.form}"
    if how.form == NVFP4:
        scale = part(name, parts, "weight_global_scale", layout, "global scale")
        return read_e2m1(name, parts, layout, 16, overall=scale, divides=True)
    if how.form == MXFP4:
        return read_e2m1(name, parts, layout, 32)
    if how.form == FLOATS or (how.is_float and how.bits == 8):
        if how.bits != 8:
            raise LinearError("bits", f"{name}: {how.form} of {how.bits} bits, expected 8")
        return read_fp8(name, parts, layout, "weight_scale", how.block, how.group)
    if how.is_float:
        raise LinearError("form", f"{name}: floats of {how.bits} bits as {how.form}")
    return _integers(name, parts, layout, how)


def _integers(name: str, parts: Parts, layout: str, how: Group) -> StoredLinear:
    """Read integers, packed into words or one a byte."""
    shape, codes = (
        _packed(name, parts, layout, how) if how.form == PACKED else _plain(name, parts, layout)
    )
    width = shape[1]
    group = how.group or width
    if how.strategy in ("group", "tensor_group") and not how.group:
        raise LinearError("group_size", f"{name}: config_groups.{how.name} states no group_size")
    scales = of_type(part(name, parts, "weight_scale", layout, "scales"), *FLOAT_SCALES)
    factors = scales_by_group(name, scales, shape, group)
    zeros = _zeros(name, parts, layout, how, shape, group)
    order = None
    if "weight_g_idx" in parts:
        order = group_order(parts["weight_g_idx"], width, group, is_ordered=how.is_ordered)
    elif how.is_ordered and group < width:
        part(name, parts, "weight_g_idx", layout, "order of groups")
    return StoredLinear(
        name,
        layout,
        shape,
        CodeKind.INT,
        how.bits,
        group,
        codes,
        factors,
        zeros,
        order,
        *place(parts),
    )


def _packed(name: str, parts: Parts, layout: str, how: Group) -> tuple[tuple[int, int], Rows]:
    """Return the shape, and the codes around zero, of integers packed along the inputs."""
    packed = of_type(part(name, parts, "weight_packed", layout, "codes"), "int32")
    shape = of_type(part(name, parts, "weight_shape", layout, "shape"), "int64", "int32")
    sizes = [int(one) for one in matrix(shape).reshape(-1)]
    if len(sizes) != 2 or len(packed.shape) != 2 or packed.shape[0] != sizes[0]:
        raise LinearError(
            "shape", f"{packed.name} is {list(packed.shape)}, and {shape.name} says {sizes}"
        )
    out, width = sizes
    if packed.shape[1] != -(-width * how.bits // 32):
        raise LinearError(
            "bits",
            f"the config states {how.bits} bits; {packed.name} of {packed.shape[1]} columns for "
            f"{width} inputs holds {packed.shape[1] * 32 / max(width, 1):g}",
            "num_bits and the tensors disagree; nothing is guessed",
        )
    words, middle = matrix(packed), 1 << (how.bits - 1)

    def codes(start: int, stop: int) -> Array:
        found = unpack(words[start:stop], how.bits, 1)[:, :width]
        return around(found, middle)

    return (out, width), codes


def _plain(name: str, parts: Parts, layout: str) -> tuple[tuple[int, int], Rows]:
    """Return the shape, and the codes around zero, of one integer a byte."""
    stored = of_type(part(name, parts, "weight", layout, "codes"), "int8")
    if len(stored.shape) != 2:
        raise LinearError("shape", f"{stored.name} is {list(stored.shape)}, expected a matrix")
    content = matrix(stored)
    return (stored.shape[0], stored.shape[1]), lambda start, stop: content[start:stop]


def _zeros(
    name: str, parts: Parts, layout: str, how: Group, shape: tuple[int, int], group: int
) -> Rows | None:
    """Return zero points around zero, [n, groups]; None where all are zero."""
    if "weight_zero_point" not in parts:
        if not how.is_symmetric:
            part(name, parts, "weight_zero_point", layout, "zero points")
        return None
    ref, wanted = parts["weight_zero_point"], -(-shape[1] // group)
    middle = 1 << (how.bits - 1)
    content = matrix(of_type(ref, "int8", "int32"))
    if ref.dtype == "int32":
        if content.shape != (-(-shape[0] * how.bits // 32), wanted):
            raise _wrong_zeros(ref, shape, wanted)
        found = unpack(content, how.bits, 0)[: shape[0]].astype(np.int16) - middle
    else:
        if content.size not in (1, shape[0] * wanted):
            raise _wrong_zeros(ref, shape, wanted)
        flat = content.reshape(-1, 1 if content.size == 1 else wanted)
        found = np.broadcast_to(flat, (shape[0], wanted)).astype(np.int16)
    if bool((abs(found + 0.5) > middle).any()):
        raise LinearError(
            "zero points",
            f"{ref.name}: zero point {found[abs(found + 0.5) > middle][0]}, which {how.bits} bits "
            f"do not hold ({-middle} ... {middle - 1})",
        )
    if not found.any():
        return None
    if how.is_symmetric:
        raise LinearError(
            "symmetric",
            f"{ref.name} has zero points other than 0, and config_groups.{how.name} says symmetric",
            "some kernels would ignore them and some would not; nothing is guessed",
        )
    return lambda start, stop: found[start:stop]


def _wrong_zeros(ref: Any, shape: tuple[int, int], wanted: int) -> LinearError:
    return LinearError(
        "zero points",
        f"{ref.name} is {ref.dtype} {list(ref.shape)}, expected one for each of {shape[0]} outputs "
        f"and {wanted} groups",
    )
