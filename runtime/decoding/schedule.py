"""How many drafts of a round are worth verifying: prefix survival against measured costs.

A draft survives if it and all before it are kept; the confidence head says how probable that is.
Every further row makes verification dearer, so a block is cut where its next draft no longer brings
more tokens a millisecond (DSpark paper, Algorithm 1, for one sequence). Whether a draft is
verified depends on its own confidence and those before it, and a confidence depends on earlier
drafts only: cutting keeps decoding lossless. Searching behind the first draft that does not pay
would break that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftrt.backends import ONNXRUNTIME
from draftrt.bundle import write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.errors import BundleError

NOTE = "costs"  # manifest note: what runs the pair to its measured costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured times of a round's two calls.

    Attributes:
        draft_ms: one call of the drafter.
        verify_ms: rows of a target call to its time, 1 row among them.
        context: cached tokens they were measured behind.
    """

    draft_ms: float
    verify_ms: Mapping[int, float]
    context: int

    def __post_init__(self) -> None:
        """Refuse a table that cannot be read off.

        Raises:
            ValueError: no entry for 1 row, or a time that is not positive.
        """
        times = [self.draft_ms, *self.verify_ms.values()]
        if 1 not in self.verify_ms or min(self.verify_ms) < 1 or not all(t > 0 for t in times):
            raise ValueError(
                f"costs {self.draft_ms}, {dict(self.verify_ms)}: expected positive times, "
                "1 row among them"
            )

    def verify(self, rows: int) -> float:
        """Return milliseconds of a target call, between measured rows by straight lines."""
        known = sorted(self.verify_ms)
        if rows in self.verify_ms or len(known) == 1:
            return self.verify_ms.get(rows, self.verify_ms[known[0]])
        upper = next((i for i, size in enumerate(known) if size > rows), len(known) - 1)
        low, high = known[upper - 1], known[upper]
        slope = (self.verify_ms[high] - self.verify_ms[low]) / (high - low)
        return self.verify_ms[low] + slope * (rows - low)

    def rounds(self, num_drafts: int) -> tuple[float, ...]:
        """Return milliseconds of a round that verifies 0, 1, ... ``num_drafts`` drafts."""
        return tuple(self.draft_ms + self.verify(1 + count) for count in range(num_drafts + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain JSON data."""
        return {
            "draft_ms": self.draft_ms,
            "verify_ms": {str(rows): self.verify_ms[rows] for rows in sorted(self.verify_ms)},
            "context": self.context,
        }


def survival_length(confidences: Iterable[float], round_ms: Sequence[float]) -> int:
    """Return how many drafts to verify.

    Args:
        confidences: of each draft, the probability that it is kept if those before it are.
        round_ms: time of a round that verifies 0, 1, ... drafts; one entry more than confidences.
    """
    survival = expected = 1.0  # the bonus token comes in any case
    best = expected / round_ms[0]
    count = 0
    for confidence in confidences:
        survival *= confidence
        expected += survival
        rate = expected / round_ms[count + 1]
        if rate <= best:
            break
        best, count = rate, count + 1
    return count


def where(*, port: str, backend: str, device: str, threads: int, maps_weights: bool = False) -> str:
    """Return the name under which a bundle keeps the costs of one way to run it."""
    if backend != ONNXRUNTIME:
        return f"target {port}, {backend}"
    name = f"target {port}, {backend}, {device}, {threads} thread{'s' if threads > 1 else ''}"
    return f"{name}, mapped weights" if maps_weights else name


def write_costs(folder: Path, name: str, costs: Costs) -> None:
    """Keep costs in a bundle's manifest, beside those of other ways to run it."""
    manifest = read_manifest(folder)
    kept = manifest.notes.get(NOTE)
    tables = {**(kept if isinstance(kept, dict) else {}), name: costs.to_json()}
    write_manifest(folder, replace(manifest, notes={**manifest.notes, NOTE: tables}))


def read_costs(notes: Mapping[str, Any], name: str) -> Costs | None:
    """Return the costs that a manifest's notes hold under a name of `where`; None without any.

    Raises:
        BundleError: what is there is no table of costs.
    """
    found = notes.get(NOTE, {})
    table = found.get(name) if isinstance(found, dict) else found
    if table is None:
        return None
    try:
        return Costs(
            draft_ms=float(table["draft_ms"]),
            verify_ms={int(rows): float(time) for rows, time in table["verify_ms"].items()},
            context=int(table["context"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(
            f"manifest note {NOTE!r}, {name!r}: no table of costs: {error!r}",
            hint="measure them again with `draftrt bench BUNDLE --calibrate`",
        ) from error
