"""``draftrt validate golden``, ``trajectories``, ``matrix`` and those that write records."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.backends import ONNXRUNTIME
from draftrt.cli_options import (
    MOST_ROUNDS,
    CheckpointPath,
    FiniteRange,
    InputPath,
    OutputFile,
    OutputFolder,
    alignment_option,
    check_places,
    family_option,
    json_option,
    named_checkpoints,
    parse_layers,
    parse_limits,
    rounds_option,
    stated_family,
)
from draftrt.export.options import MOST_CONTEXT
from draftrt.hub.cli import DraftArgument, DraftOption

MOST_TOKENS = 1 << 14  # the drafter in PyTorch has caches for all of them
NUM_SPLITS = 8
MOST_PROMPTS = 16  # of a target's case
FOLDER = InputPath()


@click.command()
@click.argument("draft", required=False, type=CheckpointPath())
@click.option("--target", required=True, type=CheckpointPath(), help="Target checkpoint.")
@click.option("-o", "--out", required=True, type=OutputFolder(), help="Folder of the case to make.")
@click.option(
    "--prompts",
    type=FOLDER,
    help=f"Without DRAFT: file with a prompt a line, of which {MOST_PROMPTS} are taken.",
)
@click.option(
    "--taps",
    metavar="LAYERS",
    callback=parse_layers,
    help="Without DRAFT: layers whose outputs are recorded, as 1,3,6; -1 is the embedding.",
)
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
    help="Rounds of the one sequence; without DRAFT of each prompt.",
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
@alignment_option
@family_option
@named_checkpoints("draft", "target")
def record(
    draft: Path | None,
    target: Path,
    out: Path,
    prompts: Path | None,
    taps: tuple[int, ...] | None,
    prompt: str | None,
    num_rounds: int,
    weights: str,
    about: str,
    sample_from_anchor: bool | None,
    family: str | None,
) -> None:
    """Write a golden case from DRAFT, computed by its PyTorch module (docs/records.md).

    `draftrt validate golden` and `draftrt validate matrix` check it on any machine. Without DRAFT
    the case is one of the target, computed by transformers from each whole text: what it says
    about --prompts, and about rounds behind them; `draftrt validate golden` checks it.
    """
    from draftrt.runtime.prompts import read_texts
    from draftrt.validate.records.record import RecordOptions, record_case
    from draftrt.validate.records.target_record import TargetRecordOptions, record_target_case

    def say(line: str) -> None:
        click.echo(line, err=True)

    if draft is not None:
        if prompts is not None or taps is not None:
            raise click.UsageError("--prompts and --taps are for a target's case, without DRAFT")
        options = RecordOptions(
            prompt=prompt,
            num_rounds=num_rounds,
            weights=weights,
            about=about,
            sample_from_anchor=sample_from_anchor,
            family=stated_family(family),
        )
        record_case(draft, target, out, options, say)
        return
    if prompt is not None or prompts is None or taps is None:
        raise click.UsageError(
            "got no DRAFT, so a case of the target is written: expected --prompts FILE and --taps, "
            "and no --prompt"
        )
    if family is not None or sample_from_anchor is not None:
        raise click.UsageError("--family and --sample-from-anchor are for a drafter, with DRAFT")
    wanted = TargetRecordOptions(
        prompts=read_texts(prompts, MOST_PROMPTS),
        taps=taps,
        num_rounds=num_rounds,
        weights=weights,
        about=about,
    )
    record_target_case(target, out, wanted, say)


@click.command("record-trajectories")
@click.argument("draft", cls=DraftArgument, type=CheckpointPath())
@click.option(
    "--target", required=True, type=CheckpointPath(), help="Target checkpoint, with tokenizer."
)
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
@named_checkpoints("draft", "target")
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
    from draftrt.runtime.prompts import read_texts
    from draftrt.validate.records.record import TrajectoryOptions, record_trajectories

    check_places({"--out": out}, inputs=(draft, target, prompts))
    options = TrajectoryOptions(
        prompts=read_texts(prompts, num_prompts),
        max_tokens=max_tokens,
        thresholds=thresholds or (0.0,),
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
    )
    record_trajectories(draft, target, out, options, lambda line: click.echo(line, err=True))


@click.command()
@click.argument("cases", metavar="[CASE_DIR]...", nargs=-1, type=FOLDER)
@click.option(
    "--draft",
    "drafts",
    multiple=True,
    type=CheckpointPath(),
    help="Drafter checkpoint; repeat. One that a CASE_DIR holds the hashes of is checked with that "
    "case.",
)
@click.option(
    "--target",
    type=CheckpointPath(),
    help="Target checkpoint of every --draft, and of cases without tables.",
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
@json_option("Print every comparison as JSON.")
@named_checkpoints("drafts", "target")
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
    from draftrt.validate.records.matrix import MatrixSettings, Source, check_matrix, sources_of
    from draftrt.validate.records.report import matrix_failure, matrix_json, matrix_text

    if not cases and not drafts:
        raise click.UsageError("nothing to check: give CASE_DIR..., or --draft with --target")
    sources, others = sources_of(cases, drafts, target)
    if others and target is None:
        raise click.UsageError(
            f"--draft needs --target: got {', '.join(map(str, others))}, which no CASE_DIR was "
            "made from"
        )
    sources += [Source(draft=draft, target=target) for draft in others]
    settings = MatrixSettings(
        precisions=tuple(map(Precision, precisions)) or tuple(Precision),
        num_rounds=num_rounds,
        max_context=max_context,
    )
    rows = []
    for row in check_matrix(sources, settings, jobs=jobs):
        click.echo(f"{row.name} {row.precision.value}: {row.verdict}", err=True)
        rows.append(row)
    click.echo(json.dumps(matrix_json(rows), indent=1) if is_json else "\n".join(matrix_text(rows)))
    if (error := matrix_failure(rows)) is not None:
        raise error


@click.command()
@click.argument("cases", metavar="CASE_DIR...", nargs=-1, required=True, type=FOLDER)
@click.option(
    "--backend",
    type=click.Choice(["ort", "pytorch"]),
    default="ort",
    show_default=True,
    help="ort: the exported graph, with the PyTorch module beside it; pytorch: the module alone, "
    "without an export.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32"]),
    default="fp32",
    show_default=True,
    help="Element type of the graph; records are float32.",
)
@click.option(
    "--draft", type=CheckpointPath(), help="Checkpoint of a case that holds only its hashes."
)
@click.option(
    "--target",
    type=CheckpointPath(),
    help="Target of a case that holds only hashes of its tables; checkpoint of a target case that "
    "does not hold it.",
)
@click.option(
    "--atol",
    "atols",
    multiple=True,
    callback=parse_limits,
    metavar="NAME=NUMBER",
    help="Target cases: largest difference of logits or features; repeat.  [default: logits=2e-4, "
    "features=2e-3, or ten times what the record states of its own float32]",
)
@click.option(
    "--margin",
    type=FiniteRange(0),
    help="Target cases: where the largest logit leads by more, it must be the recorded one.  "
    "[default: 1e-3, or twice the logits' limit]",
)
@click.option(
    "--splits",
    type=click.IntRange(0, 10_000),
    help="Target cases: random ways to cut each prompt into calls, beside the fixed ones.  "
    f"[default: {NUM_SPLITS}]",
)
@click.option(
    "--as-run",
    is_flag=True,
    help="Say too how far the runtime's own kernels are, which round activations to int8.",
)
@json_option("Print every comparison as JSON.")
@named_checkpoints("draft", "target")
def golden(
    cases: tuple[Path, ...],
    backend: str,
    precision: str,
    draft: Path | None,
    target: Path | None,
    atols: dict[str, float],
    margin: float | None,
    splits: int | None,
    as_run: bool,
    is_json: bool,
) -> None:
    """Check drafters or targets against what a trusted implementation computed (docs/records.md).

    A CASE_DIR with prefill.npz or rounds.json is a target case: its target is exported, fed every
    prompt whole, token by token and in other splits, and verifies and rolls back the rounds.
    """
    from draftrt.spec import Precision
    from draftrt.validate.records import report as told
    from draftrt.validate.records.golden import PYTORCH, check_cases
    from draftrt.validate.records.quantized import AS_RUN
    from draftrt.validate.records.target_cases import is_target_case
    from draftrt.validate.records.target_golden import TargetOptions, check_target_cases

    targets = [case for case in cases if is_target_case(case)]
    drafters = [case for case in cases if case not in targets or (case / "case.json").exists()]
    if not targets and (atols or margin is not None or splits is not None):
        raise click.UsageError("--atol, --margin and --splits are for target cases, none is given")
    if targets and backend == PYTORCH:
        raise click.UsageError(f"--backend {PYTORCH}: got {targets[0]}, expected drafter cases")
    backends = (ONNXRUNTIME, PYTORCH) if backend == "ort" else (PYTORCH,)
    backends = (*backends, AS_RUN) if as_run else backends
    options = TargetOptions(
        splits=NUM_SPLITS if splits is None else splits,
        margin=margin,
        logits=atols.get("logits"),
        features=atols.get("features"),
    )
    of_drafters, of_targets = [], []
    for one in check_cases(
        drafters, backends=backends, precision=Precision(precision), draft=draft, target=target
    ):
        click.echo(f"{one.name}: {one.verdict}", err=True)
        of_drafters.append(one)
    for other in check_target_cases(targets, options, target):
        click.echo(f"{other.name}: {other.verdict}", err=True)
        of_targets.append(other)
    if is_json:
        content = told.golden_json(of_drafters)
        content["cases"] += told.target_json(of_targets)
        click.echo(json.dumps(content, indent=1))
    else:
        lines = told.golden_text(of_drafters, backends) if of_drafters else []
        click.echo("\n".join([*lines, *(told.target_text(of_targets) if of_targets else [])]))
    if (error := told.golden_failure([*of_drafters, *of_targets])) is not None:
        raise error


@click.command()
@click.argument("expected", metavar="EXPECTED.json", type=FOLDER)
@click.option(
    "--draft", cls=DraftOption, required=True, type=CheckpointPath(), help="Drafter checkpoint."
)
@click.option(
    "--target", required=True, type=CheckpointPath(), help="Target checkpoint, with tokenizer."
)
@click.option(
    "--target-port",
    type=click.Choice(["hf", "graph"]),
    default="graph",
    show_default=True,
    help="What runs the target: hf, transformers; graph, its own exported graph.",
)
@click.option(
    "--threshold",
    type=FiniteRange(0, 1),
    help="Replay only rows recorded with this confidence threshold.",
)
@json_option("Print every row as JSON.")
@named_checkpoints("draft", "target")
def trajectories(
    expected: Path,
    draft: Path,
    target: Path,
    target_port: str,
    threshold: float | None,
    is_json: bool,
) -> None:
    """Replay greedy decoding and compare ids and accepted drafts with a publisher's own loop."""
    from draftrt.errors import ParityError
    from draftrt.validate.records.trajectories import HEADING, as_line, check_trajectories

    reports = []
    for one in check_trajectories(
        draft,
        target,
        expected,
        target_port=target_port,
        threshold=threshold,
        report=lambda line: click.echo(line, err=True),
    ):
        reports.append(one)
        if not is_json:
            click.echo(as_line(one) if len(reports) > 1 else f"{HEADING}\n{as_line(one)}")
    if is_json:
        click.echo(json.dumps({"rows": [one.to_json() for one in reports]}, indent=1))
    different = [one for one in reports if not one.is_same]
    if different:
        raise ParityError(
            f"{len(different)} of {len(reports)} rows differ",
            hint="check the drafter with `draftrt validate golden` first; docs/accuracy.md",
        )
