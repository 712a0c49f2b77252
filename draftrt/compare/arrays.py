"""Whether one array is another, within a limit. NaN, a wrong shape or a lost infinity never is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.tolerances import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the comparison of one output showed. Its truth value is the verdict.

    Attributes:
        output: name of the output.
        is_same: whether it is within the limit.
        worst: largest absolute difference; infinite where a value is missing or no number.
        allowed: what it may be at most.
        num_equal: ids that agree; for arrays of values 0.
        num_compared: ids or values compared.
        problem: what is wrong, for people; empty when nothing is.
    """

    output: str
    is_same: bool
    worst: float = 0.0
    allowed: float = 0.0
    num_equal: int = 0
    num_compared: int = 0
    problem: str = ""

    def __bool__(self) -> bool:
        return self.is_same

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON data; a difference that is no number becomes a text."""
        worst = self.worst if np.isfinite(self.worst) else str(self.worst)
        return {
            "output": self.output,
            "same": self.is_same,
            "worst": worst,
            "allowed": self.allowed,
            "equal": self.num_equal,
            "compared": self.num_compared,
            "problem": self.problem,
        }


def compare_values(
    output: str, want: NDArray[Any], got: NDArray[Any] | None, limit: Limit
) -> Finding:
    """Compare floating-point arrays element by element.

    Equal infinities are equal; an infinity against anything else, and NaN on either side even
    against NaN, is a difference.
    """
    if (lost := _shape_problem(want, got)) or got is None:
        return Finding(output=output, is_same=False, worst=float("inf"), problem=lost)
    wanted, found = want.astype(np.float64), got.astype(np.float64)
    allowed = limit.allowed(wanted)
    with np.errstate(invalid="ignore"):
        gap = np.where(wanted == found, 0.0, np.abs(wanted - found))
    worst = float("inf") if np.isnan(gap).any() else float(gap.max(initial=0.0))
    is_same = worst <= allowed
    problem = ""
    if not is_same:
        place = np.unravel_index(int(np.nan_to_num(gap, nan=np.inf).argmax()), gap.shape)
        problem = (
            f"differs by {worst:.1e}, limit {allowed:.1e}; at {[int(i) for i in place]} got "
            f"{found[place]:.6g}, expected {wanted[place]:.6g}"
        )
    return Finding(
        output=output,
        is_same=is_same,
        worst=worst,
        allowed=allowed,
        num_compared=int(want.size),
        problem=problem,
    )


def compare_ids(output: str, want: NDArray[Any], got: NDArray[Any] | None, limit: Limit) -> Finding:
    """Compare ids: the share of equal ones against ``limit.agreement``."""
    if (lost := _shape_problem(want, got)) or got is None:
        return Finding(output=output, is_same=False, worst=float("inf"), problem=lost)
    equal = int((want == got).sum())
    share = equal / want.size if want.size else 0.0
    is_same = share >= limit.agreement
    problem = "" if is_same else f"got {_shown(got)}, expected {_shown(want)}"
    if not is_same and limit.agreement < 1:
        problem = f"{equal} of {want.size} ids agree, expected {limit.agreement:.0%}; {problem}"
    return Finding(
        output=output,
        is_same=is_same,
        num_equal=equal,
        num_compared=int(want.size),
        problem=problem,
    )


def compare_choices(
    want: NDArray[np.int64], lead: NDArray[Any], got: NDArray[np.int64], margin: float
) -> Finding:
    """Compare the most probable ids of rows; where the lead is within the margin any may be it."""
    counts = lead > margin
    if want.shape != got.shape:
        wrong = f"got {got.size} ids, expected {want.size}"
        return Finding(output="argmax", is_same=False, worst=float("inf"), problem=wrong)
    differs = np.flatnonzero((want != got) & counts)
    problem = ""
    if differs.size:
        row = int(differs[0])
        problem = (
            f"row {row} got {got[row]}, expected {want[row]}, which leads by {lead[row]:.1e}; "
            f"{differs.size} of {int(counts.sum())} rows differ"
        )
    return Finding(
        output="argmax",
        is_same=not differs.size,
        num_equal=int(counts.sum()) - int(differs.size),
        num_compared=int(counts.sum()),
        problem=problem,
    )


def compare_top(
    output: str,
    ids: NDArray[np.int64],
    want: NDArray[Any],
    logits: NDArray[Any] | None,
    limit: Limit,
) -> Finding:
    """Compare the largest logits of rows: those at the recorded ids, and those largest now.

    Args:
        output: name of the output.
        ids: [T, k] where they were.
        want: [T, k] what they were, largest first.
        logits: [T, V] now.
        limit: what they may differ by.
    """
    if logits is None or ids.max() >= logits.shape[-1] or ids.min() < 0:
        return compare_values(output, want, None, limit)
    there = np.take_along_axis(logits, ids, axis=-1)
    largest = -np.sort(-logits, axis=-1)[:, : ids.shape[1]]
    both = np.concatenate((there, largest), axis=-1)
    return compare_values(output, np.concatenate((want, want), axis=-1), both, limit)


def worst_of(findings: Mapping[str, Finding]) -> list[tuple[str, Finding]]:
    """Return the findings that are differences, largest excess over the limit first."""
    failed = [(name, one) for name, one in findings.items() if not one]
    return sorted(failed, key=lambda item: item[1].allowed - item[1].worst)


def _shape_problem(want: NDArray[Any], got: NDArray[Any] | None) -> str:
    if got is None:
        return "the graph has no such output"
    if want.shape != got.shape:
        return f"got shape {list(got.shape)}, expected {list(want.shape)}"
    return ""


def _shown(ids: NDArray[Any]) -> str:
    text = str(ids.tolist())
    return text if len(text) <= 80 else text[:77] + "..."
