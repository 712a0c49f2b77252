"""``draftrt validate matrix``: drafters times precisions, one table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.export.options import MOST_CONTEXT
from draftrt.rounds_cli import rounds_option

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("cases", metavar="[CASE_DIR]...", nargs=-1, type=FOLDER)
@click.option(
    "--draft",
    "drafts",
    multiple=True,
    type=FOLDER,
    help="Drafter checkpoint; repeat. One that a CASE_DIR holds the hashes of is checked with that "
    "case.",
)
@click.option(
    "--target", type=FOLDER, help="Target checkpoint of every --draft, and of cases without tables."
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "fp16", "bf16"]),
    help="Element type of the graphs; repeat.  [default: all three]",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@rounds_option
@click.option(
    "--max-context",
    type=click.IntRange(8, MOST_CONTEXT),
    default=96,
    show_default=True,
    help="Rows of the caches; choose more than the longest sliding window.",
)
@click.option("--json", "is_json", is_flag=True, help="Print every comparison as JSON.")
def matrix(
    cases: tuple[Path, ...],
    drafts: tuple[Path, ...],
    target: Path | None,
    precisions: tuple[str, ...],
    jobs: int,
    num_rounds: int,
    max_context: int,
    is_json: bool,
) -> None:
    """Check golden cases and drafters in several precisions on ONNX Runtime.

    Every graph is exported, and compared with its PyTorch module; that of a golden case
    (docs/records.md) with the recorded answers too.
    """
    from draftrt.spec import Precision
    from draftrt.validate.records.matrix import Settings, Source, check_matrix
    from draftrt.validate.records.matrix_report import as_json, as_text, failure
    from draftrt.validate.records.matrix_sources import sources_of

    if not cases and not drafts:
        raise click.UsageError("nothing to check: give CASE_DIR..., or --draft with --target")
    sources, others = sources_of(cases, drafts, target)
    if others and target is None:
        raise click.UsageError(
            f"--draft needs --target: got {', '.join(map(str, others))}, which no CASE_DIR was "
            "made from"
        )
    sources += [Source(draft=draft, target=target) for draft in others]
    settings = Settings(
        precisions=tuple(map(Precision, precisions)) or tuple(Precision),
        num_rounds=num_rounds,
        max_context=max_context,
    )
    rows = []
    for row in check_matrix(sources, settings, jobs=jobs):
        click.echo(f"{row.name} {row.precision.value}: {row.verdict}", err=True)
        rows.append(row)
    click.echo(json.dumps(as_json(rows), indent=1) if is_json else "\n".join(as_text(rows)))
    if (error := failure(rows)) is not None:
        raise error
