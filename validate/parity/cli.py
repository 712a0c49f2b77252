"""``draftrt validate ranges``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.backends import BACKENDS, ONNXRUNTIME
from draftrt.cli_options import MOST_ROUNDS, FiniteRange, InputPath, json_option, rounds_option
from draftrt.errors import printable
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form
from draftrt.tolerances import LARGEST_FEATURE

FOLDER = InputPath()


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
@json_option("Print the report as JSON.")
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
    from draftrt.runtime.prompts import read_prompts
    from draftrt.validate.parity.ranges import as_json, as_text, check_ranges

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


@click.command()
@click.argument("bundle", type=FOLDER)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=ONNXRUNTIME,
    show_default=True,
    help="What runs the graph; the two TensorRTs run the bundle's plan, on a machine with a GPU.",
)
@click.option(
    "--graph",
    type=click.Choice(["draft", "target"]),
    help="Compare one of the graphs.  [default: both, where the bundle has both]",
)
@rounds_option
@json_option("Print every comparison as JSON.")
def parity(bundle: Path, backend: str, graph: str | None, num_rounds: int, is_json: bool) -> None:
    """Compare the graphs in BUNDLE with their PyTorch modules, the drafter's through Polygraphy.

    Nodes and rotary tables are compared with those that the manifest's facts give, values round by
    round. Needs nothing but the bundle. A bf16 graph runs as its float32 twin on ONNX Runtime,
    which has no bfloat16 kernels on the CPU.
    """
    from draftrt.errors import ParityError
    from draftrt.validate.parity.pair import as_json, as_text, check_pair

    report = check_pair(bundle, graph=graph, backend=backend, num_rounds=num_rounds)
    click.echo(json.dumps(as_json(report), indent=1) if is_json else "\n".join(as_text(report)))
    if not report.is_same:
        raise ParityError(
            f"{bundle}: {backend} and pytorch differ",
            hint="docs/accuracy.md says how to find where",
        )
