"""``draftrt validate record`` and ``record-trajectories``: what a drafter does, into files."""

from __future__ import annotations

from pathlib import Path

import click

from draftrt.cli_options import OutputFile, OutputFolder, check_places
from draftrt.family_cli import alignment_option, family_option, stated_family
from draftrt.number_cli import FiniteRange
from draftrt.rounds_cli import MOST_ROUNDS

MOST_TOKENS = 1 << 14  # the drafter in PyTorch has caches for all of them
FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("draft", type=FOLDER)
@click.option("--target", required=True, type=FOLDER, help="Target checkpoint.")
@click.option("-o", "--out", required=True, type=OutputFolder(), help="Folder of the case to make.")
@click.option(
    "--prompt",
    help="Text that the target decodes, in transformers: features and anchors are its own.  "
    "[default: they are drawn, and the target does not run]",
)
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(1, MOST_ROUNDS),
    default=4,
    show_default=True,
    help="Rounds of the one sequence.",
)
@click.option(
    "--weights",
    type=click.Choice(["auto", "copy", "hash"]),
    default="auto",
    show_default=True,
    help="Store checkpoint and borrowed tables in the case, or only their hashes; auto: up to "
    "64 MB are stored.",
)
@click.option("--about", default="", help="What the case is for, in words.")
def record(
    draft: Path,
    target: Path,
    out: Path,
    prompt: str | None,
    num_rounds: int,
    weights: str,
    about: str,
) -> None:
    """Write a golden case from DRAFT, computed by its PyTorch module (docs/records.md).

    `draftrt validate golden` and `draftrt validate matrix` check it on any machine.
    """
    from draftrt.validate.records.record import RecordOptions, record_case

    options = RecordOptions(prompt=prompt, num_rounds=num_rounds, weights=weights, about=about)
    record_case(draft, target, out, options, lambda line: click.echo(line, err=True))


@click.command("record-trajectories")
@click.argument("draft", type=FOLDER)
@click.option("--target", required=True, type=FOLDER, help="Target checkpoint, with tokenizer.")
@click.option("-o", "--out", required=True, type=OutputFile(), help="JSON file to write.")
@click.option("--prompts", required=True, type=FOLDER, help="File with a prompt a line.")
@click.option(
    "--num-prompts", type=click.IntRange(1), default=8, show_default=True, help="Take the first N."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2, MOST_TOKENS),
    default=96,
    show_default=True,
    help="Of each prompt.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=FiniteRange(0, 1),
    help="Confidence threshold; repeat, and every prompt is decoded with each.  [default: 0]",
)
@alignment_option
@family_option
def record_trajectories(
    draft: Path,
    target: Path,
    out: Path,
    prompts: Path,
    num_prompts: int,
    max_tokens: int,
    thresholds: tuple[float, ...],
    sample_from_anchor: bool | None,
    family: str | None,
) -> None:
    """Decode prompts with DRAFT in PyTorch and its target in transformers, and write every round.

    `draftrt validate trajectories` replays the file through exported graphs.
    """
    from draftrt.runtime.prompt_files import read_texts
    from draftrt.validate.records.record_trajectories import TrajectoryOptions, record_trajectories

    check_places({"--out": out}, inputs=(draft, target, prompts))
    options = TrajectoryOptions(
        prompts=read_texts(prompts, num_prompts),
        max_tokens=max_tokens,
        thresholds=thresholds or (0.0,),
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
    )
    record_trajectories(draft, target, out, options, lambda line: click.echo(line, err=True))
