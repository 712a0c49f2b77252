"""``draftrt bench``: speculation against plain decoding, on one machine and in one process."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.backends import BACKENDS
from draftrt.bundle_files import Verify
from draftrt.cli_options import (
    CheckpointPath,
    InputPath,
    OutputFile,
    check_places,
    device_option,
    ignore_memory_option,
    named_checkpoints,
    no_verify_option,
    threads_option,
    write_output,
)
from draftrt.errors import printable
from draftrt.runtime.decoding.options import SCHEDULES, ScheduleKind
from draftrt.runtime.load import PORTS
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form
from draftrt.validate.bench.run import BUILT_IN, BenchSettings, Texts, run_bench
from draftrt.validate.bench.section import to_svg


@click.command()
@click.argument("bundle", type=InputPath())
@click.option(
    "--prompts",
    type=InputPath(),
    help=f"{FILE_HELP}  [default: a few built-in ones]",
)
@click.option(
    "--texts",
    type=click.Choice([*BUILT_IN]),
    help="Which built-in prompts: general ones, some on which drafts are useless, or some whose "
    "answers copy their prompt.  [default: general]",
)
@form_options
@click.option(
    "--num-prompts", type=click.IntRange(1), default=8, show_default=True, help="Take the first N."
)
@click.option(
    "--max-tokens", type=click.IntRange(2), default=128, show_default=True, help="Of each prompt."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Decode each N times."
)
@threads_option
@click.option("--target", type=CheckpointPath(), help="Target's Hugging Face folder.")
@click.option("--target-port", type=click.Choice(PORTS), help="As in draftrt run.")
@click.option("--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], show_default=True)
@device_option
@click.option("--schedule", type=click.Choice(SCHEDULES), default="auto", show_default=True)
@click.option(
    "--rivals", is_flag=True, help="Time transformers and z-lab's loop too, where installed."
)
@click.option("--draft", type=CheckpointPath(), help="Drafter's checkpoint, for z-lab's.")
@click.option(
    "--calibrate", is_flag=True, help="Keep the costs in the bundle, for --schedule of run."
)
@ignore_memory_option
@no_verify_option
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures.")
@click.option("--svg", "svg_file", type=OutputFile(), help="Write a picture.")
@named_checkpoints("draft", "target")
def bench(
    bundle: Path,
    prompts: Path | None,
    texts: Texts | None,
    form: Form,
    num_prompts: int,
    max_tokens: int,
    repeats: int,
    threads: int,
    target: Path | None,
    target_port: str | None,
    backend: str,
    device: str,
    schedule: ScheduleKind,
    rivals: bool,
    draft: Path | None,
    calibrate: bool,
    ignore_memory: bool,
    verify: Verify,
    json_file: Path | None,
    svg_file: Path | None,
) -> None:
    """Time the pair in BUNDLE with its drafter and without, greedily and without end tokens.

    Prompts go through the target's chat template where its tokenizer has one.
    Figures go to standard output, progress to standard error.
    """
    if texts is not None and prompts is not None:
        raise click.UsageError("--texts names built-in prompts, --prompts a file: give one of them")
    if draft is not None and not rivals:
        raise click.UsageError("--draft goes with --rivals")
    check_places(
        {"--json": json_file, "--svg": svg_file}, inputs=(prompts, target, draft), bundle=bundle
    )
    settings = BenchSettings(
        bundle=bundle,
        prompts=prompts,
        texts=texts or "general",
        form=form,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        repeats=repeats,
        schedule=schedule,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
        rivals=rivals,
        draft=draft,
        calibrate=calibrate,
        ignore_memory=ignore_memory,
        verify=verify,
    )
    found = run_bench(settings, lambda line: click.echo(printable(line), err=True))
    click.echo(found.to_text())
    if json_file is not None:
        write_output(json_file, json.dumps(found.to_json(), indent=1) + "\n")
    if svg_file is not None:
        write_output(svg_file, to_svg(found.to_json()))
