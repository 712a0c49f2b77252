"""The graphs of a bundle against their PyTorch modules: the drafter's, the target's, or both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftrt.backends import ONNXRUNTIME
from draftrt.bundle import Bundle
from draftrt.errors import BackendError
from draftrt.quantization import DRAFT, TARGET
from draftrt.validate.parity import report as parity_report
from draftrt.validate.parity import target as target_parity
from draftrt.validate.parity.parity import ParityReport, check_parity
from draftrt.validate.parity.target import TargetReport, check_target_parity
from draftrt.validate.rounds.plan import DEFAULT_ROUNDS

GRAPHS = (DRAFT, TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What the comparison of a bundle's graphs showed.

    Attributes:
        draft: of the draft graph; None where it was not compared.
        target: of the target graph; None where it was not compared.
    """

    draft: ParityReport | None
    target: TargetReport | None

    @property
    def is_same(self) -> bool:
        """Whether something was compared, and all of it is the same."""
        found = [one.is_same for one in (self.draft, self.target) if one is not None]
        return bool(found) and all(found)


def check_pair(
    path: Path | str,
    *,
    graph: str | None = None,
    backend: str = ONNXRUNTIME,
    num_rounds: int = DEFAULT_ROUNDS,
) -> PairReport:
    """Compare a bundle's graphs with their PyTorch modules.

    Args:
        path: the bundle.
        graph: one of `GRAPHS`; None for all that the bundle has and the backend can compare, a
            TensorRT only the drafter's.
        backend: what runs the draft graph.
        num_rounds: rounds of each of the two sequences of the drafter.

    Raises:
        DraftrtError: something could not be compared.
    """
    there = Bundle.open(path).manifest.graphs
    is_cpu = backend == ONNXRUNTIME
    if graph == TARGET and not is_cpu:
        raise BackendError(
            f"the target graph is compared on {ONNXRUNTIME}, not on {backend}",
            hint="leave --backend out",
        )
    wanted = [graph] if graph else [one for one in GRAPHS if one in there]
    draft = TARGET not in wanted or DRAFT in wanted
    return PairReport(
        draft=check_parity(path, backend=backend, num_rounds=num_rounds) if draft else None,
        target=check_target_parity(path) if TARGET in wanted and is_cpu else None,
    )


def as_text(report: PairReport) -> list[str]:
    """Return the lines of each graph."""
    draft = [] if report.draft is None else parity_report.as_text(report.draft)
    target = [] if report.target is None else target_parity.as_text(report.target)
    return draft + target


def as_json(report: PairReport) -> dict[str, Any]:
    """Return the drafter's report as JSON data, the target's under ``target``."""
    target = None if report.target is None else target_parity.as_json(report.target)
    if report.draft is None:
        assert target is not None
        return {"bundle": target["bundle"], "same": report.is_same, "target": target}
    return parity_report.as_json(report.draft) | {"same": report.is_same, "target": target}
