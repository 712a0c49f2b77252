"""What a user may choose about a build, and the range of shapes that its plan accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftrt.engines.capabilities import Backend
from draftrt.errors import BuildError, ChoiceError, DraftrtError, collect
from draftrt.signature import DimRange, Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """One build.

    Attributes:
        backend: the builder.
        sms: compute capabilities of one plan, as 86, 89, 120; sorted, without repeats. Empty: the
            GPU of this machine (classic TensorRT only).
        graph: graph of the bundle.
        dimensions: ranges of symbolic sizes that replace those of the signature.
        workspace_bytes: most device memory a layer may use for scratch; None: TensorRT's default.
        device: what the SM was taken from, for messages; empty where it was given.
        strip: leave the weights out of the plan; they are put back when it is loaded.
        timeout_s: seconds after which the build is stopped; it leaves no trace in the plan.
    """

    backend: Backend
    sms: tuple[int, ...] = ()
    graph: str = "draft"
    dimensions: Mapping[str, DimRange] = field(default_factory=dict)
    workspace_bytes: int | None = None
    device: str = ""
    strip: bool = False
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        """Sort the SMs and refuse limits that are not positive.

        Raises:
            BuildError: a limit is zero or negative.
        """
        object.__setattr__(self, "sms", tuple(sorted(set(self.sms))))
        for name in ("workspace_bytes", "timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise BuildError(f"{name} must be positive, got {value}")

    def stem(self) -> str:
        """Return the plan's file name without its ending: graph, backend and SMs."""
        name = f"{self.graph}.{self.backend.value}.sm{'-'.join(str(sm) for sm in self.sms)}"
        return f"{name}.stripped" if self.strip else name

    def as_text(self) -> dict[str, str]:
        """Return what shapes the plan, as the manifest records it."""
        workspace = "default" if self.workspace_bytes is None else str(self.workspace_bytes)
        ranges = {
            f"dimension.{name}": f"{size.min}:{size.opt}:{size.max}"
            for name, size in sorted(self.dimensions.items())
        }
        stripped = {"weights": "stripped"} if self.strip else {}
        return {"workspace_bytes": workspace, "tf32": "off", **stripped, **ranges}


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
