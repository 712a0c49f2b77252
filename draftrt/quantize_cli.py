"""The option ``--quantize`` of every command that exports."""

from __future__ import annotations

import click

from draftrt.errors import SpecError, UnsupportedError
from draftrt.quantization import Part, Scheme, parse_quantization


def parse_option(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, dict[Part, Scheme]]:
    """Return what each graph's parts are stored in, or fail as wrong usage."""
    try:
        return parse_quantization(values)
    except (SpecError, UnsupportedError) as error:
        raise click.BadParameter(str(error), ctx, param) from error


quantize_option = click.option(
    "--quantize",
    "quantization",
    metavar="[GRAPH:][PART=]SCHEME",
    multiple=True,
    callback=parse_option,
    help="Store weights in int8, int4 or fp8. PART is linear, head or embedding (int8 alone); a "
    "scheme without one is for linears and head. GRAPH is draft or target; without one it is for "
    "both. Repeatable.",
)
