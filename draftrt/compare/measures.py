"""Whether two runners made the same of a round, and what a difference means to a decoder.

What a difference means to a decoder: choices, distributions, direction and size of vectors.

Counted over all rounds that are compared; the limits are those of `draftrt.tolerances`.
Knows arrays, not what made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.compare.arrays import Finding, compare_ids, compare_values
from draftrt.signature import CONFIDENCE, DRAFT_IDS
from draftrt.tolerances import IDS, LOGITS, Limit

ROW_OUTPUTS = (
    DRAFT_IDS,
    "draft_vocab_ids",
    "candidates",
    "candidate_ids",
    "candidate_scores",
    "logits",
    CONFIDENCE,
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
        rows = self._comparable_rows(want[DRAFT_IDS], got[DRAFT_IDS])
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
        exact = self.limits[DRAFT_IDS].agreement == 1.0
        if exact or not self.is_sequential or want.shape != got.shape or (want == got).all():
            return int(want.shape[-1])
        return int(np.flatnonzero(want[0] != got[0])[0]) + 1


TOP = 10
VECTORS = ("hidden", *LOGITS)
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure over all rounds. Its truth value is the verdict.

    Attributes:
        output: name of the output.
        name: what was measured.
        seen: the figure.
        limit: what it may be at most, or with ``is_least`` at least.
        is_least: whether ``seen`` must reach the limit instead of staying below it.
        unit: of the figure; empty for a pure number.
        num_rows: rows measured.
    """

    output: str
    name: str
    seen: float
    limit: float
    is_least: bool = False
    unit: str = ""
    num_rows: int = 0

    def __bool__(self) -> bool:
        return self.seen >= self.limit if self.is_least else self.seen <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return the measure as JSON data; what is no number becomes a text."""
        seen, limit = (x if np.isfinite(x) else str(x) for x in (self.seen, self.limit))
        return {
            "output": self.output,
            "measure": self.name,
            "seen": seen,
            "limit": limit,
            "at_least": self.is_least,
            "unit": self.unit,
            "rows": self.num_rows,
            "same": bool(self),
        }


def top_one(want: NDArray[Any], got: NDArray[Any]) -> Array:
    """Return for each row of logits [R, W] whether both sides would choose the same id, 1 or 0."""
    is_equal: NDArray[np.bool_] = want.argmax(axis=-1) == got.argmax(axis=-1)
    return is_equal.astype(np.float64)


def top_overlap(want: NDArray[Any], got: NDArray[Any], count: int = TOP) -> Array:
    """Return for each row the share of its ``count`` largest logits among the other's."""
    count = min(count, want.shape[-1])
    places = range(-count, 0)
    best = [np.argpartition(side, places, axis=-1)[:, -count:] for side in (want, got)]
    shared = [len(set(a) & set(b)) for a, b in zip(best[0].tolist(), best[1].tolist(), strict=True)]
    return np.array(shared, np.float64) / count


def divergence(want: NDArray[Any], got: NDArray[Any]) -> Array:
    """Return KL(softmax(want) || softmax(got)) of each row, in nats, at temperature 1."""
    p, q = (_log_softmax(side) for side in (want, got))
    found: Array = np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)  # rounding, not information
    return found


def cosine(want: NDArray[Any], got: NDArray[Any]) -> Array:
    """Return the cosine of each row; 1 where both rows are zero."""
    a, b = want.astype(np.float64), got.astype(np.float64)
    lengths = _norm(a) * _norm(b)
    is_zero = (_norm(a) == 0) & (_norm(b) == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = np.where(is_zero, 1.0, (a * b).sum(axis=-1) / lengths)
    return found


def norm_error(want: NDArray[Any], got: NDArray[Any]) -> Array:
    """Return how far the norm of each row is off, relative to the expected one."""
    a, b = _norm(want.astype(np.float64)), _norm(got.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = np.where(a == b, 0.0, np.abs(b / a - 1))
    return found


@dataclass(slots=True)
class Verdicts:
    """Sums up rounds.

    Attributes:
        limits: output to what it may differ by.
    """

    limits: Mapping[str, Limit]
    _seen: dict[tuple[str, str], list[Array]] = field(default_factory=dict)

    def add(self, want: Mapping[str, NDArray[Any]], got: Mapping[str, NDArray[Any]]) -> None:
        """Count the rows of one round, [1, R, W] or for confidences [1, R]; shapes must agree."""
        for name in (*VECTORS, CONFIDENCE):
            if name not in self.limits or name not in want or want[name].shape != got[name].shape:
                continue  # another shape is a difference already, and no row of it means anything
            a, b = want[name][0], got[name][0]
            if not a.size:
                continue
            if name == CONFIDENCE:
                self._keep(name, "error", np.abs(a.astype(np.float64) - b))
                continue
            if name in LOGITS:
                self._keep(name, "top-1", top_one(a, b))
                self._keep(name, "overlap", top_overlap(a, b))
                self._keep(name, "divergence", divergence(a, b))
            self._keep(name, "cosine", cosine(a, b))
            self._keep(name, "norm", norm_error(a, b))

    def measures(self) -> list[Measure]:
        """Return every figure, outputs in the order of `VECTORS`, confidences last."""
        return [self._measure(*key, np.concatenate(rows)) for key, rows in self._seen.items()]

    def _keep(self, output: str, name: str, rows: Array) -> None:
        self._seen.setdefault((output, name), []).append(rows)

    def _measure(self, output: str, name: str, rows: Array) -> Measure:
        limit = self.limits[output]
        mean, least, most = (float(f(rows)) for f in (np.mean, np.min, np.max))
        told: dict[str, tuple[str, float, float, bool, str]] = {
            "top-1": ("top-1 agreement", mean, limit.agreement, True, ""),
            "overlap": (f"top-{TOP} overlap, mean", mean, limit.overlap, True, ""),
            "divergence": ("KL divergence, largest", most, limit.divergence, False, "nats"),
            "cosine": ("cosine, smallest", least, limit.cosine, True, ""),
            "norm": ("norm off by, largest", most, limit.norm, False, ""),
            "error": ("error, largest", most, limit.atol + limit.rtol, False, ""),
        }
        what, seen, allowed, is_least, unit = told[name]
        return Measure(
            output=output,
            name=what,
            seen=seen,
            limit=allowed,
            is_least=is_least,
            unit=unit,
            num_rows=len(rows),
        )


def _log_softmax(logits: NDArray[Any]) -> Array:
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide = wide - wide.max(axis=-1, keepdims=True)
        found: Array = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return found


def _norm(rows: Array) -> Array:
    found: Array = np.sqrt((rows * rows).sum(axis=-1))
    return found
