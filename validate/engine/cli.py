"""``draftrt engine``: a drafter and its target to a checked bundle with a plan, in one go."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.cli_options import (
    CheckpointPath,
    OutputFolder,
    alignment_option,
    check_replaced,
    family_option,
    ignore_key_option,
    json_option,
    named_checkpoints,
    precision_option,
    prefer_option,
    quantize_option,
    stated_family,
)
from draftrt.engines.capabilities import FACTS, Backend
from draftrt.engines.cli import parse_sms
from draftrt.engines.pair import ALL, GRAPHS
from draftrt.errors import printable
from draftrt.hub.cli import DraftArgument
from draftrt.quantization import Part, Prefer, Scheme
from draftrt.runtime.prompt_options import TEXT, form_options
from draftrt.runtime.prompts import PLAIN, Form
from draftrt.spec import Precision
from draftrt.validate.compare.tables import limited, render
from draftrt.validate.engine.engine import (
    DEFAULT_PROMPT,
    DEFAULT_SMS,
    EngineOptions,
    EngineReport,
    make_engine,
)

TEXT_LINES = 6


@click.command()
@click.argument("draft", cls=DraftArgument, type=CheckpointPath())
@click.option(
    "--target", required=True, type=CheckpointPath(), help="Target checkpoint, with tokenizer."
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=OutputFolder(),
    help="Bundle folder to write; a bundle that is there is replaced.",
)
@precision_option(
    Precision.FP16,
    "Of the bundle and its plan. The CPU runs fp32 and fp16; for bf16 the checks use an fp32 "
    "export that is not kept.",
)
@quantize_option
@prefer_option
@alignment_option
@family_option
@ignore_key_option
@click.option(
    "--sm",
    "sms",
    metavar="SM,...",
    callback=parse_sms,
    help="SMs that the plan runs on.  "
    f"[default: {','.join(map(str, DEFAULT_SMS))}; with --backend tensorrt this machine's GPU]",
)
@click.option(
    "--backend",
    type=click.Choice([one.value for one in Backend]),
    default=Backend.TENSORRT_RTX.value,
    show_default=True,
    help="Builder of the plan.",
)
@click.option(
    "--graph",
    type=click.Choice(GRAPHS),
    default=ALL,
    show_default=True,
    help="Graphs that get a plan: the drafter's, the target's, or both.",
)
@click.option(
    "--prompt",
    default=DEFAULT_PROMPT,
    show_default=True,
    type=TEXT,
    help="What the sample run says to the target.",
)
@form_options
@click.option(
    "--run/--no-run",
    "with_run",
    default=True,
    help="Decode a sample on the CPU; the whole target is loaded for it.  [default: run]",
)
@json_option("Print the summary as JSON.")
@named_checkpoints("draft", "target")
def engine(
    draft: Path,
    target: Path,
    out: Path,
    precision: str,
    quantization: dict[str, dict[Part, Scheme]],
    prefer: str | None,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    sms: tuple[int, ...] | None,
    backend: str,
    graph: str,
    prompt: str,
    form: Form,
    with_run: bool,
    is_json: bool,
) -> None:
    """Take drafter DRAFT and its target to a bundle with a TensorRT plan.

    Both are folders, or names on the hub (OWNER/NAME[@REVISION]).
    Exports, builds the plan (no GPU needed with tensorrt-rtx), opens the graph in ONNX Runtime,
    compares it with PyTorch, and decodes a sample with and without the drafter.
    """
    check_replaced(out, inputs=(draft, target))
    chosen = Backend(backend)
    options = EngineOptions(
        precision=Precision(precision),
        quantization=quantization,
        prefer=Prefer(prefer) if prefer else None,
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
        ignore_keys=frozenset(ignore_keys),
        backend=chosen,
        graph=graph,
        sms=sms if sms is not None else (() if FACTS[chosen].needs_gpu else DEFAULT_SMS),
        prompt=prompt,
        form=form,
        with_run=with_run,
    )
    made = make_engine(
        draft, target, out, options, lambda line: click.echo(printable(line), err=True)
    )
    lines = [json.dumps(made.to_json(), indent=1)] if is_json else as_text(made, prompt)
    click.echo("\n".join(lines))


def as_text(made: EngineReport, prompt: str) -> list[str]:
    """Return the summary: steps with their seconds, paths with their sizes, the sample's text."""
    rows = [["step", "seconds", "result"]]
    rows += [[one.name, f"{one.seconds:.1f}", one.result] for one in made.steps]
    rows.append(["total", f"{sum(one.seconds for one in made.steps):.1f}", ""])
    lines = [*render(rows), "", f"bundle  {made.bundle}  {made.bundle_bytes / 1e6:.1f} MB"]
    for plan in made.plans.values():
        path, size = made.bundle / plan.file, plan.size_bytes
        lines.append(f"plan    {path}  {size / 1e6:.1f} MB, not run: that takes its GPU")
    if made.completion is not None:
        between = "" if made.form == PLAIN else "\n\n"
        text = (prompt + between + made.completion.text).split("\n")
        lines += ["", *(f"  {printable(line)[:96]}".rstrip() for line in limited(text, TEXT_LINES))]
    return [*lines, *(["", *made.next_lines] if made.next_lines else [])]
