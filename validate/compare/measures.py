"""Whether two runners made the same of one round, and what all rounds together say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.tolerances import IDS, Limit
from draftrt.validate.compare.arrays import Finding, compare_ids, compare_values
from draftrt.validate.compare.verdicts import Measure, Verdicts

ROW_OUTPUTS = (
    "draft_ids",
    "draft_vocab_ids",
    "candidates",
    "candidate_ids",
    "candidate_scores",
    "logits",
    "confidence",
)


@dataclass(slots=True)
class Judge:
    """Compares what two runners made of one round; called by Polygraphy's comparator.

    A single 16-bit flip must not fail a round of seven drafts, so ids that need not all agree are
    only counted here and judged over all rounds (`shares`). In a sequential head every draft is
    conditioned on the one before it: rows behind the first flip say nothing and are left out.

    Attributes:
        limits: output to what it may differ by.
        is_sequential: whether a draft depends on the draft before it.
        suffix: appended to the outputs' names in what is found.
    """

    limits: Mapping[str, Limit]
    is_sequential: bool
    suffix: str = ""
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        self._verdicts = Verdicts(self.limits)

    def __call__(
        self, want: Mapping[str, NDArray[Any]], got: Mapping[str, NDArray[Any]]
    ) -> dict[str, Finding]:
        """Return output to finding for one round; outputs that the graph lacks are left out."""
        rows = self._comparable_rows(want["draft_ids"], got["draft_ids"])
        findings: dict[str, Finding] = {}
        compared: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]] = ({}, {})
        for name, limit in self.limits.items():
            if name not in got:
                continue
            a, b = want[name], got[name]
            if a.shape == b.shape and name in ROW_OUTPUTS:
                a, b = a[:, :rows], b[:, :rows]
            compared[0][name], compared[1][name] = a, b
            findings[name] = self._finding(name, limit, a, b)
        self._verdicts.add(*compared)
        return {name + self.suffix: one for name, one in findings.items()}

    def shares(self) -> dict[str, Finding]:
        """Return the verdict over all rounds on ids that need not all agree."""
        return {
            name + self.suffix: self._share(name, *counts) for name, counts in self._counts.items()
        }

    def measures(self) -> list[Measure]:
        """Return what all rounds together say about choices, distributions and directions."""
        found = self._verdicts.measures()
        return [replace(one, output=one.output + self.suffix) for one in found]

    def _finding(self, name: str, limit: Limit, want: NDArray[Any], got: NDArray[Any]) -> Finding:
        if name not in IDS:
            return compare_values(name, want, got, limit)
        if limit.agreement == 1.0:
            return compare_ids(name, want, got, limit)
        counted = compare_ids(name, want, got, Limit(agreement=0.0, reason=limit.reason))
        equal, total = self._counts.get(name, (0, 0))
        self._counts[name] = (equal + counted.num_equal, total + counted.num_compared)
        return counted

    def _share(self, name: str, equal: int, total: int) -> Finding:
        share, least = equal / max(total, 1), self.limits[name].agreement
        return Finding(
            output=name,
            is_same=share >= least,
            num_equal=equal,
            num_compared=total,
            problem="" if share >= least else f"{equal} of {total} agree, expected {least:.0%}",
        )

    def _comparable_rows(self, want: NDArray[Any], got: NDArray[Any]) -> int:
        exact = self.limits["draft_ids"].agreement == 1.0
        if exact or not self.is_sequential or want.shape != got.shape or (want == got).all():
            return int(want.shape[-1])
        return int(np.flatnonzero(want[0] != got[0])[0]) + 1
