"""What a user may choose about a build; together with the graph it identifies the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftrt.engines.capabilities import Backend
from draftrt.errors import BuildError
from draftrt.signature import DimRange


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
