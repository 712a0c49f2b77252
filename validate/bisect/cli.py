"""``draftrt validate bisect``: the first place where a graph leaves its reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from draftrt.cli_options import (
    CheckpointPath,
    InputPath,
    json_option,
    named_checkpoints,
    rounds_option,
)
from draftrt.spec import Precision
from draftrt.validate.bisect.bisect import BisectReport, GraphSearch
from draftrt.validate.bisect.search import Divergence
from draftrt.validate.compare.tables import limited, render

FOLDER = InputPath()


@click.command()
@click.argument("bundle", type=FOLDER)
@click.option(
    "--checkpoint",
    metavar="DRAFT",
    type=CheckpointPath(),
    help="Compare with this checkpoint, read anew, instead of the bundle's own module: finds a "
    "bundle that was made from wrong facts or damaged weights.",
)
@click.option(
    "--target",
    type=CheckpointPath(),
    help="The checkpoint's target.  [default: the folder the bundle was exported from]",
)
@rounds_option
@json_option("Print everything as JSON.")
@named_checkpoints("checkpoint", "target")
def bisect(
    bundle: Path,
    checkpoint: Path | None,
    target: Path | None,
    num_rounds: int,
    is_json: bool,
) -> None:
    """Name the first layer and node of BUNDLE's draft graph that differ (docs/doctor.md)."""
    from draftrt.errors import ParityError
    from draftrt.validate.bisect.bisect import bisect_bundle

    if target is not None and checkpoint is None:
        raise click.UsageError("--target goes with --checkpoint")
    report = bisect_bundle(bundle, checkpoint=checkpoint, target=target, num_rounds=num_rounds)
    click.echo(json.dumps(as_json(report), indent=1) if is_json else "\n".join(as_text(report)))
    if not report.is_same:
        raise ParityError(
            f"{bundle}: the graph is not its reference",
            hint="docs/doctor.md says what each place usually means",
        )


MAX_DIFFERENCES = 12
MAX_NODES = 8


def as_text(report: BisectReport) -> list[str]:
    """Return the report as lines: what is other in the checkpoint, then each graph."""
    against = "pytorch, from the bundle" if report.fresh is None else "pytorch, from the checkpoint"
    twin = ", as its float32 twin" if report.precision is Precision.BF16 else ""
    lines = [f"{report.bundle}: {report.precision.value} graph{twin} against {against}"]
    if report.fresh is not None:
        lines += _differences(report)
    if report.incomparable:
        lines.append(f"not compared value by value: {report.incomparable}")
    for one in report.searches:
        lines += _search(one)
    return lines


def _differences(report: BisectReport) -> list[str]:
    assert report.fresh is not None
    facts = [["fact", "bundle", "checkpoint"]]
    facts += [[one.name, one.bundle, one.checkpoint] for one in report.fresh.facts]
    lines = limited(render(facts), MAX_DIFFERENCES) if report.fresh.facts else []
    weights = [f"{one.name}: {one.bundle}" for one in report.fresh.weights]
    lines += limited([f"weight {line}" for line in weights], MAX_DIFFERENCES)
    return lines or ["facts and weights are the checkpoint's"]


def _search(one: GraphSearch) -> list[str]:
    found = one.divergence
    scope = f"{one.num_places} places, {one.num_rounds} rounds, {one.num_sessions} sessions"
    told = () if found is None else found.evidence
    others = [what for what in one.facts.sentences if what not in told]
    graph = [f"  graph      {what}" for what in limited(others, MAX_DIFFERENCES)]
    if one.facts.note:
        graph.append(f"  note       {one.facts.note}")
    if found is None and one.facts:
        return [f"{one.file}: same ({scope})", *graph]
    if found is None:
        what = "is not the graph of its facts, though no value shows it"
        return [f"{one.file}: {what} ({scope})", *graph]
    culprit = f"{found.node} ({found.op})" if found.node else "an input of the graph"
    lines = [
        f"{one.file}: leaves the reference at {found.place} ({scope})",
        f"  node       {culprit}",
        f"  error      {found.before:.1e} before, {found.after:.1e} here, limit "
        f"{found.allowed:.1e}; relative to the largest value",
        f"  seen       context {found.context_length} + {found.new_rows} rows: {found.problem}",
    ]
    lines += [f"  evidence   {sentence}" for sentence in found.evidence]
    names = [f"{name} ({op})" for name, op in found.nodes]
    rest = f" and {len(names) - MAX_NODES} more" if len(names) > MAX_NODES else ""
    if len(names) > 1:
        lines.append(f"  between    {', '.join(names[-MAX_NODES:])}{rest}")
    return [*lines, *graph, f"  usually    {found.usual}"]


def as_json(report: BisectReport) -> dict[str, Any]:
    """Return the report as JSON data."""
    fresh = report.fresh
    return {
        "bundle": str(report.bundle),
        "precision": report.precision.value,
        "reference": "module" if fresh is None else "checkpoint",
        "same": report.is_same,
        "facts": [] if fresh is None else [one.to_json() for one in fresh.facts],
        "weights": [] if fresh is None else [one.to_json() for one in fresh.weights],
        "incomparable": report.incomparable,
        "graphs": [
            {
                "file": one.file,
                "rounds": one.num_rounds,
                "places": one.num_places,
                "sessions": one.num_sessions,
                "same": one.is_same,
                "differences": list(one.facts.sentences),
                "divergence": None if one.divergence is None else _divergence(one.divergence),
            }
            for one in report.searches
        ],
    }


def _divergence(one: Divergence) -> dict[str, Any]:
    return {
        "place": str(one.place),
        "layer": one.place.layer,
        "step": one.place.step,
        "side": one.place.side,
        "value": one.value,
        "node": one.node,
        "op": one.op,
        "nodes": [{"name": name, "op": op} for name, op in one.nodes],
        "context_length": one.context_length,
        "new_rows": one.new_rows,
        "error_before": one.before,
        "error": one.after if np.isfinite(one.after) else str(one.after),
        "allowed": one.allowed,
        "problem": one.problem,
        "evidence": list(one.evidence),
        "usual": one.usual,
        "lost": list(one.lost),
    }
