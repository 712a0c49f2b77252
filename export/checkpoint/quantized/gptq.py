"""GPTQ: codes packed along the inputs, zero points along the outputs, groups by ``g_idx``.

The first version of the format stores zero points minus one, the second as they are. AutoRound
writes both (`draftrt.export.checkpoint.quantized.autoround`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    wrong_groups,
)
from draftrt.export.checkpoint.quantized.packing import Array, matrix, unpack, widened
from draftrt.export.checkpoint.quantized.settings import Settings, matches, whole
from draftrt.export.checkpoint.tensors import TensorRef

BITS = (4, 8)
OFFSETS = {"gptq": 1, "gptq_v2": 0}  # what is added to a stored zero point


@dataclass(frozen=True, slots=True)
class Integers:
    """How a module's integers are packed.

    Attributes:
        layout: for people.
        bits: of a code.
        group: inputs that share a scale; -1 for all.
        is_symmetric: every zero point is in the middle.
        offset: what is added to a stored zero point.
        is_ordered: groups are not in order, ``g_idx`` says in which.
    """

    layout: str
    bits: int
    group: int
    is_symmetric: bool
    offset: int = 0
    is_ordered: bool = False


def reader(settings: Settings) -> Any:
    """Return what reads a module of a GPTQ checkpoint."""
    table = settings.table
    form = table.get("checkpoint_format") or "gptq"
    if form not in OFFSETS:
        raise UnsupportedError(
            f"{settings.where}.checkpoint_format: got {shown(form)}, expected one of "
            f"{list(OFFSETS)}",
            hint="save it in GPTQ's own format, or give the unquantised checkpoint",
        )
    general = Integers(
        "GPTQ" if form == "gptq" else "GPTQ v2",
        whole(settings, table, ("bits", "w_bit"), BITS),
        whole(settings, table, ("group_size", "q_group_size")),
        table.get("sym", True) is not False,
        OFFSETS[form],
        table.get("desc_act") is True,
    )

    def read(name: str, parts: Parts) -> StoredLinear:
        return read_gptq(name, parts, _dynamic(settings, name, general))

    return read


def _dynamic(settings: Settings, name: str, general: Integers) -> Integers:
    """Return a module's own settings, where GPTQModel's ``dynamic`` has some."""
    dynamic = settings.table.get("dynamic") or {}
    for pattern, own in dynamic.items() if isinstance(dynamic, dict) else ():
        if pattern.startswith("-:") or not matches(f"re:{pattern.removeprefix('+:')}", name):
            continue
        own = own if isinstance(own, Mapping) else {}
        return Integers(
            general.layout,
            whole(settings, own, ("bits",), BITS, general.bits),
            whole(settings, own, ("group_size",), default=general.group),
            own.get("sym", general.is_symmetric) is not False,
            general.offset,
            own.get("desc_act", general.is_ordered) is True,
        )
    return general


def read_gptq(name: str, parts: Parts, how: Integers) -> StoredLinear:
    """Read a module.

    Args:
        name: the module's.
        parts: its tensors.
        how: how its integers are packed.

    Raises:
        LinearError: tensors are missing, or disagree with each other or with the config.
    """
    codes, scales, zeros = integer_parts(name, parts, how)
    out = codes.shape[1]
    if scales.shape[1] != out:
        raise LinearError(
            "outputs", f"{scales.name} has {scales.shape[1]} columns, and {codes.name} {out}"
        )
    order = parts.get("g_idx")
    _check_bits(codes, zeros, None if order is None else order.shape, how)
    width = codes.shape[0] * 32 // how.bits
    group = checked_group(name, scales, zeros, width, how)
    middle = 1 << (how.bits - 1)
    constant = check_zeros(zeros, unpack(matrix(zeros), how.bits, 1), how, middle)
    words, factors = matrix(codes), matrix(scales)

    def integers(start: int, stop: int) -> Array:
        found: Array = unpack(words[:, start:stop], how.bits, 0).T
        return found if constant is None else around(found, constant)

    return StoredLinear(
        name,
        how.layout,
        (out, width),
        CodeKind.INT,
        how.bits,
        group,
        integers,
        lambda start, stop: widened(factors[:, start:stop].T, scales.dtype),
        _zeros(zeros, how) if constant is None else None,
        _order(name, order, how, width, group),
        *place(parts),
    )


def integer_parts(name: str, parts: Parts, how: Integers) -> tuple[TensorRef, TensorRef, TensorRef]:
    """Return a module's packed codes, its scales and its packed zero points, all matrices.

    Raises:
        LinearError: one is missing, or of another type or rank.
    """
    codes = of_type(part(name, parts, "qweight", how.layout, "codes"), "int32")
    scales = of_type(part(name, parts, "scales", how.layout, "scales"), *FLOAT_SCALES)
    zeros = of_type(part(name, parts, "qzeros", how.layout, "zero points"), "int32")
    if any(len(ref.shape) != 2 for ref in (codes, scales, zeros)):
        raise LinearError("rank", f"{name}: qweight, qzeros and scales: expected matrices")
    return codes, scales, zeros


def checked_group(name: str, scales: TensorRef, zeros: TensorRef, width: int, how: Integers) -> int:
    """Return the inputs that share a scale.

    Raises:
        LinearError: scales or zero points are for another number of groups.
    """
    group = width if how.group == -1 else how.group
    wanted = -(-width // group)
    for ref in (scales, zeros):
        if ref.shape[0] != wanted:
            raise wrong_groups(name, ref, [ref.shape[0]], width, group, wanted)
    return group


def _check_bits(
    codes: TensorRef, zeros: TensorRef, order: tuple[int, ...] | None, how: Integers
) -> None:
    """Refuse codes of another width than the config states."""
    rows, out = codes.shape
    if order is not None and len(order) == 1 and order[0]:
        width, held = order[0], rows * 32 / order[0]
    else:
        held = zeros.shape[1] * 32 / out if out else 0.0
        width = int(rows * 32 / held) if held else 0
    if held != how.bits or zeros.shape[1] * 32 != out * how.bits:
        raise LinearError(
            "bits",
            f"the config states {how.bits} bits; {codes.name} of {rows} rows for {width} inputs "
            f"holds {held:g}, {zeros.name} of {zeros.shape[1]} columns for {out} outputs "
            f"{zeros.shape[1] * 32 / max(out, 1):g}",
            "bits and the tensors disagree; nothing is guessed",
        )


def check_zeros(ref: TensorRef, stored: Array, how: Integers, middle: int) -> int | None:
    """Return the zero point that all have, where it is the middle; None where they differ.

    Raises:
        LinearError: one is out of range, or symmetric weights have others.
    """
    largest = (1 << how.bits) - 1
    low, high = int(stored.min(initial=largest)), int(stored.max(initial=0))
    if high + how.offset > largest:
        raise LinearError(
            "zero points",
            f"{ref.name}: stored {high} means zero point {high + how.offset}, which {how.bits} "
            f"bits do not hold (0 ... {largest})",
            "readers disagree on it; checkpoint_format may be gptq_v2, which stores zero points "
            "as they are",
        )
    if low == high == middle - how.offset:
        return middle
    if how.is_symmetric:
        other = high if high + how.offset != middle else low
        raise LinearError(
            "symmetric",
            f"{ref.name}: zero point {other + how.offset}, and symmetric weights (sym) of "
            f"{how.bits} bits have {middle}",
            "sym and the tensors disagree: kernels for symmetric weights ignore zero points, "
            "others do not; checkpoint_format says how they are stored",
        )
    return None


def around(codes: Array, middle: int) -> Array:
    """Return codes with the middle of their range subtracted, int8."""
    found: Array = np.subtract(codes, np.uint8(middle)).view(np.int8)  # wraps as it should
    return found


def _zeros(ref: TensorRef, how: Integers) -> Rows:
    """Return zero points [n, groups], unpacked when asked for."""

    def rows(start: int, stop: int) -> Array:
        found = unpack(matrix(ref), how.bits, 1)[:, start:stop].T
        zeros: Array = np.add(found, how.offset, dtype=np.int16)
        return zeros

    return rows


def _order(
    name: str, ref: TensorRef | None, how: Integers, width: int, group: int
) -> NDArray[np.int64] | None:
    """Return the group of each input; None where they are in order."""
    if ref is None:
        if how.is_ordered and group < width:
            raise LinearError(
                "no g_idx",
                f"{name} has codes in the order of activations (desc_act) and no {name}.g_idx",
                "download it again, or take the publisher's own files",
            )
        return None
    return group_order(ref, width, group, is_ordered=how.is_ordered)


def group_order(
    ref: TensorRef, width: int, group: int, *, is_ordered: bool
) -> NDArray[np.int64] | None:
    """Return the group of each input as a tensor says; None where they are in order.

    Raises:
        LinearError: it does not give every group its inputs.
    """
    of_type(ref, "int32", "int64")
    found = matrix(ref).astype(np.int64)
    count = -(-width // group)
    if found.shape != (width,):
        raise LinearError("g_idx", f"{ref.name} has shape {list(ref.shape)}, expected [{width}]")
    beyond = found[(found < 0) | (found >= count)]
    if len(beyond):
        raise LinearError("g_idx", f"{ref.name}: got group {beyond[0]}, expected 0 to {count - 1}")
    plain = np.arange(width) // group
    if bool((found == plain).all()):
        return None
    wanted = np.bincount(plain, minlength=count)
    wrong = np.nonzero(np.bincount(found, minlength=count) != wanted)[0]
    if len(wrong):
        raise LinearError(
            "g_idx",
            f"{ref.name} gives group {wrong[0]} other than {wanted[wrong[0]]} inputs: not a "
            f"permutation of groups of {group}",
        )
    if not is_ordered:
        raise LinearError(
            "g_idx",
            f"{ref.name} puts inputs out of order, and the config says that they are in order "
            "(desc_act, actorder)",
            "some kernels would follow g_idx and some would not; nothing is guessed",
        )
    return found
