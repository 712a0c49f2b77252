"""One value of a graph against the reference's, whatever form the graph has it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.tracing.names import CHOICE
from draftrt.tolerances import Limit
from draftrt.validate.bisect.module import CACHES, INTO, OUT, RecordedPlace
from draftrt.validate.bisect.rounds import ReferenceRound

CANDIDATES = RecordedPlace("candidate_selector.successor_codebook", 0, INTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far a value is from the reference's. Its truth value is whether that is near enough.

    Attributes:
        relative: largest difference over the largest value; infinite for another shape, another
            id, or no number.
        allowed: what that may be.
        round: number of the round.
        problem: what is wrong; empty when nothing is.
        want: the reference's array.
        got: the graph's array, in the same form where it has as many values.
    """

    relative: float
    allowed: float
    round: int
    problem: str
    want: NDArray[Any]
    got: NDArray[Any]

    def __bool__(self) -> bool:
        return not self.problem

    @property
    def excess(self) -> float:
        """How far it is beyond what is allowed; orders gaps, differences first."""
        return self.relative / self.allowed if self.problem else -1.0 + self.relative

    @staticmethod
    def none() -> Gap:
        """Return the gap of a place that no round shows."""
        empty = np.zeros(0)
        return Gap(relative=0.0, allowed=1.0, round=0, problem="", want=empty, got=empty)


def gap_at(
    place: RecordedPlace,
    one: ReferenceRound,
    got: NDArray[Any],
    limit: Limit,
    *,
    number: int,
) -> Gap:
    """Compare the value of a place in one round.

    Args:
        place: where.
        one: the reference's round.
        got: the graph's array.
        limit: what floating-point numbers may differ by.
        number: of the round.
    """
    want = one.values[place]
    if place.step in CACHES:
        want, got = want[:, :, : one.valid], got[:, :, : one.valid]
    if got.dtype.kind == "f":
        got = got.astype(np.float32)
    if want.size == got.size and want.shape != got.shape:
        got = got.reshape(want.shape)
    if want.shape != got.shape:
        problem = f"got shape {list(got.shape)}, expected {list(want.shape)}"
        return Gap(
            relative=np.inf, allowed=limit.rtol, round=number, problem=problem, want=want, got=got
        )
    return _compared(want, got, limit, number)


def is_tie(
    place: RecordedPlace, values: Mapping[RecordedPlace, NDArray[Any]], gap: Gap, limit: Limit
) -> bool:
    """Whether a place differs only because scores were closer than the limit.

    True for choices themselves, the best id of a row or its best candidates; what depends on them
    is not looked at any more.
    """
    if place == CANDIDATES:
        source = RecordedPlace("lm_head", 0, OUT)
    elif place.path == CHOICE and place.side == OUT:
        source = RecordedPlace(CHOICE, place.number, INTO)
    else:
        return False
    if gap.want.shape != gap.got.shape or source not in values:
        return False
    scores = values[source].reshape(-1, values[source].shape[-1])
    near = 2 * (limit.atol + limit.rtol * float(np.abs(scores[np.isfinite(scores)]).max()))
    rows = zip(scores, *(ids.reshape(len(scores), -1) for ids in (gap.want, gap.got)), strict=True)
    for row, want, got in rows:
        if (got < 0).any() or (got >= len(row)).any():
            return False
        if (np.abs(row[want] - row[got]) > near).any():
            return False
    return True


def _compared(want: NDArray[Any], got: NDArray[Any], limit: Limit, number: int) -> Gap:
    if want.dtype.kind != "f":
        wrong = np.flatnonzero((want != got).ravel())
        problem = "" if not wrong.size else _listed(want, got, wrong)
        relative = np.inf if wrong.size else 0.0
        return Gap(
            relative=relative, allowed=1.0, round=number, problem=problem, want=want, got=got
        )
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max()) if finite.any() else 0.0
    allowed = limit.atol + limit.rtol * scale
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where(want == got, 0.0, np.abs(want.astype(np.float64) - got))
    worst = np.inf if np.isnan(gaps).any() else float(gaps.max(initial=0.0))
    problem = ""
    if not worst <= allowed:
        at = int(np.nan_to_num(gaps, nan=np.inf).argmax())
        place = [int(i) for i in np.unravel_index(at, want.shape)]
        problem = f"at {place} got {got.ravel()[at]:.6g}, expected {want.ravel()[at]:.6g}"
    unit = max(scale, 1e-30)
    return Gap(
        relative=worst / unit,
        allowed=allowed / unit,
        round=number,
        problem=problem,
        want=want,
        got=got,
    )


def _listed(want: NDArray[Any], got: NDArray[Any], wrong: NDArray[Any]) -> str:
    if want.dtype.kind == "b":
        return f"{wrong.size} of {want.size} entries differ"
    shown = [f"{got.ravel()[i]} for {want.ravel()[i]}" for i in wrong[:6]]
    rest = " ..." if wrong.size > 6 else ""
    return f"{wrong.size} of {want.size} ids differ: {', '.join(shown)}{rest}"
