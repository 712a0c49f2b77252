"""``draftrt pairs``, and commands that miss their drafter."""

from __future__ import annotations

import json
from typing import Any

import click

from draftrt.cli_options import json_option
from draftrt.codec import to_json
from draftrt.errors import ChoiceError
from draftrt.hub.pairs import as_rows, candidates, drafters_of, published_pairs


@click.command()
@click.argument("target", required=False)
@json_option("Print a JSON list instead of a table.")
def pairs(target: str | None, is_json: bool) -> None:
    """List published drafters, or those of TARGET: a name on the hub, or a folder.

    `tried` says what was tried with each (docs/formats.md): dimensions, form, refused. Of a
    checkpoint nothing is taken from this list.
    """
    found = list(published_pairs()) if target is None else drafters_of(target)
    if target is not None and not found:
        known = sorted({one.target for one in published_pairs()}, key=str.lower)
        raise ChoiceError(
            f"{target}: no published drafter of it is known here, expected one of "
            f"{', '.join(known)}",
            hint="a drafter that is not listed may do as well: `draftrt inspect` says so",
        )
    if is_json:
        click.echo(json.dumps(to_json(found), indent=1))
        return
    rows = as_rows(found)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


class _NamesDrafters(click.Parameter):
    """A drafter that a command needs: without it the target's published ones are named."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            if known := candidates(ctx.params.get("target")):
                told = f"{known} (`draftrt pairs` lists more)"
                raise click.MissingParameter(told, ctx, self) from error
            raise


class DraftArgument(_NamesDrafters, click.Argument):
    """The argument DRAFT of a command that needs it."""


class DraftOption(_NamesDrafters, click.Option):
    """The option ``--draft`` of a command that needs it."""
