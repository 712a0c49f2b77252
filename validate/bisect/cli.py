"""``draftrt validate bisect``: the first place where a graph leaves its reference."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.rounds_cli import rounds_option

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=FOLDER)
@click.option(
    "--checkpoint",
    metavar="DRAFT",
    type=FOLDER,
    help="Compare with this checkpoint, read anew, instead of the bundle's own module: finds a "
    "bundle that was made from wrong facts or damaged weights.",
)
@click.option(
    "--target",
    type=FOLDER,
    help="The checkpoint's target.  [default: the folder the bundle was exported from]",
)
@rounds_option
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
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
    from draftrt.validate.bisect.bisect_report import as_json, as_text

    if target is not None and checkpoint is None:
        raise click.UsageError("--target goes with --checkpoint")
    report = bisect_bundle(bundle, checkpoint=checkpoint, target=target, num_rounds=num_rounds)
    click.echo(json.dumps(as_json(report), indent=1) if is_json else "\n".join(as_text(report)))
    if not report.is_same:
        raise ParityError(
            f"{bundle}: the graph is not its reference",
            hint="docs/doctor.md says what each place usually means",
        )
