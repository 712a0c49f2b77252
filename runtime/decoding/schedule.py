"""How many drafts of a round are worth verifying: prefix survival against measured costs.

A draft survives if it and all before it are kept; the confidence head says how probable that is.
Every further row makes verification dearer, so a block is cut where its next draft no longer brings
more tokens a millisecond (DSpark paper, Algorithm 1, for one sequence). Whether a draft is
verified depends on its own confidence and those before it, and a confidence depends on earlier
drafts only: cutting keeps decoding lossless. Searching behind the first draft that does not pay
would break that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from draftrt.backends import ONNXRUNTIME
from draftrt.bundle import write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.manifest import Costs


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
    write_manifest(folder, replace(manifest, costs={**manifest.costs, name: costs}))
