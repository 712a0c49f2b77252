"""AWQ: codes and zero points packed along the outputs, each word's in an order of its own."""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.errors import UnsupportedError
from draftrt.export.checkpoint.quantized.gptq import (
    Integers,
    around,
    check_zeros,
    checked_group,
    integer_parts,
)
from draftrt.export.checkpoint.quantized.linear import (
    CodeKind,
    LinearError,
    Parts,
    StoredLinear,
    place,
)
from draftrt.export.checkpoint.quantized.packing import Array, matrix, unpack, widened
from draftrt.export.checkpoint.quantized.settings import Settings, whole

BITS = 4
IN_A_WORD = 32 // BITS
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of a word that holds its output 0, 1, 2, ...


def reader(settings: Settings) -> Any:
    """Return what reads a module of an AWQ checkpoint."""
    table = settings.table
    version = str(table.get("version") or "gemm").lower()
    if version != "gemm" or table.get("zero_point") is False:
        got = f"version {shown(version)}" if version != "gemm" else "zero_point false"
        raise UnsupportedError(
            f"{settings.where}: got {got}, expected version gemm with zero points",
            hint="save it in the gemm order, or give the unquantised checkpoint",
        )
    how = Integers(
        "AWQ",
        whole(settings, table, ("bits", "w_bit"), (BITS,)),
        whole(settings, table, ("group_size", "q_group_size")),
        is_symmetric=False,
    )
    return lambda name, parts: read_awq(name, parts, how)


def read_awq(name: str, parts: Parts, how: Integers) -> StoredLinear:
    """Read a module.

    Args:
        name: the module's.
        parts: its tensors.
        how: its bits and groups.

    Raises:
        LinearError: tensors are missing, or disagree with each other or with the config.
    """
    codes, scales, zeros = integer_parts(name, parts, how)
    width, out = codes.shape[0], scales.shape[1]
    for ref in (codes, zeros):
        if ref.shape[1] * 32 != out * how.bits:
            raise LinearError(
                "bits",
                f"the config states {how.bits} bits; {ref.name} of {ref.shape[1]} columns for "
                f"{out} outputs holds {ref.shape[1] * 32 / max(out, 1):g}",
                "bits and the tensors disagree; nothing is guessed",
            )
    group = checked_group(name, scales, zeros, width, how)
    words, zero_words, factors = matrix(codes), matrix(zeros), matrix(scales)
    middle = 1 << (how.bits - 1)
    constant = check_zeros(zeros, unpack(zero_words, how.bits, 1), how, middle)

    def outputs(packed: Array, start: int, stop: int) -> Array:
        first, last = start // IN_A_WORD, -(-stop // IN_A_WORD)
        found: Array = unpack(packed[:, first:last], how.bits, 1, PLACES)
        found = found[:, start - first * IN_A_WORD : stop - first * IN_A_WORD].T
        return found

    def integers(start: int, stop: int) -> Array:
        found = outputs(words, start, stop)
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
        None if constant is not None else lambda start, stop: outputs(zero_words, start, stop),
        None,
        *place(parts),
    )
