"""AutoRound: the packings of GPTQ and AWQ under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftrt.codec import shown
from draftrt.errors import UnsupportedError
from draftrt.export.checkpoint.quantized.awq import read_awq
from draftrt.export.checkpoint.quantized.gptq import BITS, Integers, read_gptq
from draftrt.export.checkpoint.quantized.linear import LinearError, Parts, StoredLinear
from draftrt.export.checkpoint.quantized.settings import Settings, matches, whole

# what a packing is, and what is added to its stored zero points
PACKINGS = {
    "auto_round:auto_gptq": ("gptq", 1),
    "auto_round:gptq": ("gptq", 1),
    "auto_gptq": ("gptq", 1),
    "auto_round": ("gptq", 0),
    "auto_round:gptqmodel": ("gptq", 0),
    "auto_round:auto_awq": ("awq", 0),
    "auto_round:awq": ("awq", 0),
    "auto_awq": ("awq", 0),
}


def reader(settings: Settings) -> Any:
    """Return what reads a module of an AutoRound checkpoint."""
    table = settings.table
    packing = table.get("packing_format") or table.get("backend")
    if packing not in PACKINGS:
        raise UnsupportedError(
            f"{settings.where}.packing_format: got {shown(packing)}, expected one of "
            f"{list(PACKINGS)}",
            hint="it says how zero points are stored; save the model in one of these packings",
        )
    if table.get("data_type", "int") != "int":
        raise UnsupportedError(
            f"{settings.where}.data_type: got {shown(table['data_type'])}, expected 'int'",
            hint="give the unquantised checkpoint, or one in integers",
        )
    kind, offset = PACKINGS[packing]
    general = Integers(
        f"AutoRound ({packing})",
        whole(settings, table, ("bits",), BITS if kind == "gptq" else (4,)),
        whole(settings, table, ("group_size",)),
        table.get("sym", True) is not False,
        offset,
    )

    def read(name: str, parts: Parts) -> StoredLinear:
        how = _own(settings, name, general)
        return (read_gptq if kind == "gptq" else read_awq)(name, parts, how)

    return read


def _own(settings: Settings, name: str, general: Integers) -> Integers:
    """Return a module's own settings, where ``extra_config`` has some."""
    extra = settings.table.get("extra_config") or {}
    for pattern, own in extra.items() if isinstance(extra, Mapping) else ():
        if not isinstance(own, Mapping) or not (pattern == name or matches(f"re:{pattern}$", name)):
            continue
        if own.get("data_type", "int") != "int":
            raise LinearError(
                "data_type", f"extra_config.{pattern}: data_type {own['data_type']}, expected int"
            )
        return Integers(
            general.layout,
            whole(settings, own, ("bits",), BITS, general.bits),
            whole(settings, own, ("group_size",), default=general.group),
            own.get("sym", general.is_symmetric) is not False,
            general.offset,
        )
    return general
