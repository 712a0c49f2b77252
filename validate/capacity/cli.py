"""``draftrt plan``: what a pair takes and where it fits, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.bundle import MANIFEST, Verify
from draftrt.engines.devices import DEVICES, find_device
from draftrt.export.options import MOST_CONTEXT, ExportOptions
from draftrt.export.weights.places import WeightMode
from draftrt.family_cli import alignment_option, family_option, stated_family
from draftrt.ignore_cli import ignore_key_option
from draftrt.quantization import Part, Scheme
from draftrt.quantize_cli import quantize_option
from draftrt.spec import Precision
from draftrt.validate.capacity.capacity import fitting, plan_pair
from draftrt.validate.capacity.plan_report import as_record, as_text
from draftrt.verify_cli import no_verify_option

DOES_NOT_FIT = 3
OF_EXPORTS = (
    "max_context",
    "precision",
    "quantization",
    "target_graph",
    "weights",
    "sample_from_anchor",
    "family",
    "ignore_keys",
)


@click.command("plan")
@click.argument("draft", type=click.Path(path_type=Path))
@click.option("--target", type=click.Path(path_type=Path), help="Target checkpoint folder.")
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="Board or card to look at, or all of them. Repeatable.  [default: all]",
)
@click.option("--context", type=click.IntRange(min=1), help="Tokens to count caches for.")
@click.option(
    "--max-context", type=click.IntRange(4, MOST_CONTEXT), help="Rows of each cache, as exported."
)
@click.option(
    "--precision",
    type=click.Choice([p.value for p in Precision]),
    default="fp16",
    show_default=True,
)
@quantize_option
@click.option("--target-graph/--no-target-graph", default=None, help="As in draftrt export.")
@click.option(
    "--weights",
    type=click.Choice([mode.value for mode in WeightMode]),
    default="copy",
    show_default=True,
    help="As in draftrt export.",
)
@alignment_option
@family_option
@ignore_key_option
@no_verify_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def plan(
    ctx: click.Context,
    draft: Path,
    target: Path | None,
    names: tuple[str, ...],
    context: int | None,
    max_context: int | None,
    precision: str,
    quantization: dict[str, dict[Part, Scheme]],
    target_graph: bool | None,
    weights: str,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    verify: Verify,
    as_json: bool,
) -> None:
    """Tell memory, disk and break-even of drafter DRAFT and its target, or of the bundle DRAFT.

    Reads configs and tensor headers alone. With devices named, exit status 3 says that the pair
    fits on none of them.
    """
    if (draft / MANIFEST).is_file():
        _refuse_export_options(ctx, draft)
    options = ExportOptions(
        precision=Precision(precision),
        max_context=max_context,
        quantization=quantization,
        target_graph=target_graph,
        weights=WeightMode(weights),
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
        ignore_keys=frozenset(ignore_keys),
    )
    is_all = not names or "all" in names
    devices = list(DEVICES.values()) if is_all else [find_device(name) for name in names]
    found = plan_pair(draft, target, options, context, verify=verify)
    if as_json:
        click.echo(json.dumps(as_record(found, devices), indent=1))
    else:
        click.echo("\n".join(as_text(found, devices)))
    if not is_all and not any(fitting(found, devices).values()):
        ctx.exit(DOES_NOT_FIT)


def _refuse_export_options(ctx: click.Context, bundle: Path) -> None:
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in OF_EXPORTS
        and ctx.get_parameter_source(param.name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"{bundle} is a bundle: got {', '.join(given)}, which an export decides, expected "
            "none; give the drafter and --target to plan another export"
        )
