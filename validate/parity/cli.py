"""``draftrt validate ranges``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.number_cli import FiniteRange
from draftrt.printable import printable
from draftrt.rounds_cli import MOST_ROUNDS
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form
from draftrt.tolerances import LARGEST_FEATURE

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=FOLDER)
@click.option(
    "--features",
    type=FiniteRange(min=0, min_open=True),
    default=LARGEST_FEATURE,
    show_default=True,
    help="Magnitude that the largest feature is scaled to.",
)
@click.option(
    "--prompts",
    type=FOLDER,
    help="Take the features of these prompts from the bundle's target graph.  "
    f"{FILE_HELP}  [default: random features]",
)
@form_options
@click.option(
    "--most", type=click.IntRange(min=1), default=4, show_default=True, help="Prompts used."
)
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(1, MOST_ROUNDS),
    default=4,
    show_default=True,
    help="Rounds of each sequence.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every tensor.")
@click.option("--json", "is_json", is_flag=True, help="Print the report as JSON.")
def ranges(
    bundle: Path,
    features: float,
    prompts: Path | None,
    form: Form,
    most: int,
    num_rounds: int,
    show_all: bool,
    is_json: bool,
) -> None:
    """Show how much of float16's range the fp16 drafter in BUNDLE uses, tensor by tensor.

    PyTorch computes it on the CPU, where ONNX Runtime would hide an overflow.
    """
    from draftrt.errors import ParityError
    from draftrt.runtime.prompt_files import read_prompts
    from draftrt.validate.parity.range_report import as_json, as_text
    from draftrt.validate.parity.ranges import check_ranges

    if prompts is None and form != Form():
        raise click.UsageError("--chat, --raw, --system and --template-var go with --prompts")
    report = check_ranges(
        bundle,
        features=features,
        num_rounds=num_rounds,
        prompts=() if prompts is None else read_prompts(prompts, most),
        form=form,
        report=lambda line: click.echo(printable(line), err=True),
    )
    click.echo(
        json.dumps(as_json(report), indent=1)
        if is_json
        else "\n".join(as_text(report, show_all=show_all))
    )
    if not report.is_finite:
        raise ParityError(
            f"{bundle}: float16 overflows with features up to {features:g}",
            hint="export with --precision bf16 for GPUs of SM80 and later, or fp32",
        )
