"""The range of shapes a plan accepts, from the signature of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftrt.errors import BuildError, ChoiceError, DraftrtError, collect
from draftrt.signature import DimRange, Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """Shapes of one input.

    Attributes:
        min: smallest accepted shape.
        opt: shape that kernels are chosen for.
        max: largest accepted shape.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


def narrow(signature: Signature, overrides: Mapping[str, DimRange]) -> dict[str, DimRange]:
    """Return the signature's size ranges with the overrides in place.

    A range may be narrowed, not widened: the graph was checked within the signature's range only.

    Raises:
        ChoiceError: an unknown name.
        BuildError: a range outside the signature's. Either lists every finding.
    """
    known = signature.dimensions
    findings: list[DraftrtError] = []
    for name, size in overrides.items():
        if name not in known:
            findings.append(
                ChoiceError(
                    f"no dimension {name!r} in the graph's signature, it has {sorted(known)}",
                    hint="leave it out, or name one of those with --dim",
                )
            )
        elif size.min < known[name].min or size.max > known[name].max:
            findings.append(
                BuildError(
                    f"dimension {name}: got {size.min}..{size.max}, expected a range within "
                    f"{known[name].min}..{known[name].max}",
                    hint="export the bundle with another --max-context for larger sizes",
                )
            )
    collect(findings)
    return {**known, **overrides}


def shape_ranges(signature: Signature, dimensions: Mapping[str, DimRange]) -> dict[str, ShapeRange]:
    """Return the shape range of every input, static ones included.

    Args:
        signature: the graph's table.
        dimensions: range of each symbolic size.
    """

    def shape(sizes: tuple[int | str, ...], which: str) -> tuple[int, ...]:
        return tuple(
            size if isinstance(size, int) else getattr(dimensions[size], which) for size in sizes
        )

    return {
        tensor.name: ShapeRange(
            min=shape(tensor.shape, "min"),
            opt=shape(tensor.shape, "opt"),
            max=shape(tensor.shape, "max"),
        )
        for tensor in signature.inputs
    }
