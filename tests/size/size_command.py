"""``python -m tests.size.size_command``: exports and builds at published dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.cli_options import OutputFile, OutputFolder, write_output
from draftrt.codec import to_json
from draftrt.failure_cli import Ending
from draftrt.provenance import command_line, now, tool_versions
from tests.size.rows import GB, Row
from tests.size.run import GROUPS, run_rows

MISSED = 3


@click.command(cls=Ending)
@click.option("--out", required=True, type=OutputFolder(), help="Scratch folder.")
@click.option("--only", multiple=True, type=click.Choice(GROUPS), help="Repeatable. [default: all]")
@click.option("--rivals", is_flag=True, help="Run TensorRT-Edge-LLM's exporter too.")
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures.")
@click.pass_context
def main(
    ctx: click.Context, out: Path, only: tuple[str, ...], rivals: bool, json_file: Path | None
) -> None:
    """Export and build random checkpoints of published size and compare with the bars.

    Exit status 3 says that a bar was missed.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in run_rows(
        out, frozenset(only), rivals=rivals, report=lambda line: click.echo(line, err=True)
    ):
        rows.append(row)
        click.echo("\n".join(as_text(row)))
    if json_file is not None:
        facts = {"command": command_line(), "created": now(), "tools": tool_versions()}
        record = {**facts, "rows": [to_json(row) for row in rows]}
        write_output(json_file, json.dumps(record, indent=1) + "\n")
    if not all(all(row.bars.values()) for row in rows):
        ctx.exit(MISSED)


def as_text(row: Row) -> list[str]:
    """Return a row as lines."""
    lines = [
        f"{row.name}: {row.seconds:.1f} s, {row.peak_bytes / GB:.2f} GB peak, load {row.load:.1f}"
        + (f"; {row.note}" if row.note else "")
    ]
    return lines + [f"  {'met   ' if met else 'MISSED'}  {bar}" for bar, met in row.bars.items()]


if __name__ == "__main__":
    main()
