"""`draftrt export` and `draftrt inspect`, and the progress that they show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic

import click

from draftrt.bundle import Bundle
from draftrt.bundle_files import MANIFEST, Verify
from draftrt.cli_options import (
    CheckpointPath,
    OutputFolder,
    alignment_option,
    check_replaced,
    family_option,
    ignore_key_option,
    json_option,
    kept_for_option,
    named_checkpoints,
    no_verify_option,
    precision_option,
    prefer_option,
    quantize_option,
    stated_family,
)
from draftrt.codec import to_json
from draftrt.errors import printable
from draftrt.export.checkpoint.decoder import read_decoder, say_left_out, try_decoder
from draftrt.export.checkpoint.describe import (
    bundle_table,
    decoder_table,
    describe_bundle,
    describe_drafter,
    stored_table,
    table,
    target_table,
)
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import read_target
from draftrt.export.checkpoint.target_files import check_target_files
from draftrt.export.config.keys import of_draft, of_target
from draftrt.export.models.signature import EXTRA_OUTPUTS
from draftrt.export.options import DEFAULT_CONTEXT, MOST_CONTEXT, ExportOptions, WeightMode
from draftrt.export.pipeline import export_bundle
from draftrt.export.weights.storage import Progress
from draftrt.quantization import Part, Prefer, Scheme
from draftrt.spec import Precision, Profile


@click.command("export")
@click.argument("draft", required=False, type=CheckpointPath())
@click.option("--target", required=True, type=CheckpointPath(), help="Target checkpoint.")
@click.option("-o", "--out", required=True, type=OutputFolder(), help="Bundle folder to write.")
@precision_option(
    Precision.FP32, "Element type of weights and caches; sensitive parts stay in float32."
)
@click.option(
    "--graph",
    "profile",
    type=click.Choice([p.value for p in Profile]),
    default="fixed",
    show_default=True,
    help="fixed: opset 24, caches written in place; compat: opset 20 operators.",
)
@click.option(
    "--max-context",
    type=click.IntRange(4, MOST_CONTEXT),
    help=f"Rows of each cache.  [default: the models' positions, at most {DEFAULT_CONTEXT}]",
)
@click.option(
    "--outputs",
    multiple=True,
    type=click.Choice(EXTRA_OUTPUTS),
    help="Further outputs of the graph.",
)
@click.option(
    "--sampled",
    is_flag=True,
    help="Let drafts be drawn at a temperature too (run --proposal sampled).",
)
@alignment_option
@family_option
@ignore_key_option
@quantize_option
@kept_for_option
@prefer_option
@click.option(
    "--target-graph/--no-target-graph",
    default=None,
    help="Export the target's graph too; by default where its architecture is supported.",
)
@click.option(
    "--weights",
    type=click.Choice([mode.value for mode in WeightMode]),
    default="copy",
    show_default=True,
    help="copy: the bundle stands alone; link: it points into the checkpoint's own files where "
    "type and layout allow, on the same file system.",
)
@click.option(
    "--hash",
    "hashed",
    type=click.Choice(["sampled", "full"]),
    default="sampled",
    show_default=True,
    help="How the manifest identifies the checkpoint's weight files: by samples, or by every byte.",
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@named_checkpoints("draft", "target")
def export(
    draft: Path | None,
    target: Path,
    out: Path,
    precision: str,
    profile: str,
    max_context: int | None,
    outputs: tuple[str, ...],
    sampled: bool,
    quantization: dict[str, dict[Part, Scheme]],
    sms: tuple[int, ...] | None,
    prefer: str | None,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    target_graph: bool | None,
    weights: str,
    hashed: str,
    force: bool,
) -> None:
    """Trace drafter DRAFT and its target into a bundle; or the target alone.

    Both are folders, or names on the hub (OWNER/NAME[@REVISION]).
    """
    if draft is None:
        of_drafters = {
            "--outputs": outputs,
            "--sampled": sampled,
            "--sample-from-anchor": sample_from_anchor is not None,
            "--family": family,
            "--ignore-key": of_draft(ignore_keys),
            "--no-target-graph": target_graph is False,
        }
        if given := [name for name, value in of_drafters.items() if value]:
            raise click.UsageError(
                f"got {', '.join(given)} without DRAFT: the target alone is exported; expected "
                "none of them, or a drafter's folder"
            )
    check_replaced(out, inputs=(draft, target))
    options = ExportOptions(
        precision=Precision(precision),
        profile=Profile(profile),
        max_context=max_context,
        extra_outputs=outputs,
        sampled=sampled,
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
        ignore_keys=frozenset(ignore_keys),
        quantization=quantization,
        target_graph=target_graph,
        force=force,
        weights=WeightMode(weights),
        hash_all=hashed == "full",
        sms=sms or (),
        prefer=Prefer(prefer) if prefer else None,
    )
    bar = ProgressBar()
    export_bundle(draft, target, out, options, bar.report, bar.show)
    click.echo(str(out))


@click.command("inspect")
@click.argument("draft", required=False, type=CheckpointPath())
@click.option(
    "--target",
    type=CheckpointPath(),
    help="Check it against this target; without DRAFT, show the target.",
)
@alignment_option
@family_option
@ignore_key_option
@no_verify_option
@json_option("Print JSON instead of a table.")
@named_checkpoints("draft", "target", headers_only=True)
def inspect(
    draft: Path | None,
    target: Path | None,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    verify: Verify,
    is_json: bool,
) -> None:
    """Show every fact of drafter DRAFT, a folder or a name on the hub, and where each was read.

    Of a bundle: its graphs, what of them is quantised, and its plans. Of a target alone: its
    layers, and how its weights are stored.
    """
    if draft is None:
        of_drafters = sample_from_anchor is not None or family or of_draft(ignore_keys)
        if target is None or of_drafters:
            raise click.UsageError("expected DRAFT, a bundle, or --target alone")
        _show_target(target, of_target(ignore_keys), is_json=is_json)
        return
    if (draft / MANIFEST).is_file():
        if target is not None or sample_from_anchor is not None or family or ignore_keys:
            raise click.UsageError(f"{draft} is a bundle: it was checked when it was made")
        _show_bundle(Bundle.open(draft, verify=verify), is_json=is_json)
        return
    if target is None and of_target(ignore_keys):
        raise click.UsageError("got --ignore-key target:... without --target")
    model = read_target(target, draft=draft) if target is not None else None
    loaded = load_drafter(
        draft,
        model,
        sample_from_anchor=sample_from_anchor,
        ignore_keys=of_draft(ignore_keys),
        family=stated_family(family),
    )
    warnings = list(loaded.spec.warnings)
    decoder = None
    if target is not None and model is not None:
        findings, remarks = check_target_files(target, model.spec)
        warnings += [finding.message for finding in findings] + remarks
        decoder, problem = try_decoder(model, of_target(ignore_keys))
        warnings += [f"target: {note}" for note in model.decoded.notes]
        warnings += [] if problem is None else [say_left_out(problem)]
    if is_json:
        about = describe_drafter(loaded) | {"warnings": warnings}
        if model is not None:
            about["target_graph"] = None if decoder is None else to_json(decoder)
            about["target_stored"] = model.decoded.layouts()
        click.echo(json.dumps(about, indent=1))
        return
    rows = [*table(loaded), *(() if decoder is None else decoder_table(decoder))]
    _show([*rows, *(() if model is None else stored_table(model.decoded))])
    for line in warnings:
        click.echo(printable(f"warning: {line}"), err=True)


def _show_target(target: Path, ignore: frozenset[str], *, is_json: bool) -> None:
    """Show a target alone: its facts, its layers, and how its weights are stored."""
    model = read_target(target)
    findings, warnings = check_target_files(target, model.spec)
    decoder = read_decoder(model, ignore)
    warnings += [finding.message for finding in findings]
    warnings += model.decoded.notes
    if is_json:
        about = {
            "target": str(target),
            "facts": to_json(model.spec),
            "target_graph": to_json(decoder),
            "target_stored": model.decoded.layouts(),
            "warnings": warnings,
        }
        click.echo(json.dumps(about, indent=1))
        return
    rows = [*target_table(model.spec), *decoder_table(decoder), *stored_table(model.decoded)]
    _show(rows)
    for line in warnings:
        click.echo(printable(f"warning: {line}"), err=True)


def _show_bundle(bundle: Bundle, *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(describe_bundle(bundle), indent=1))
    else:
        _show(list(bundle_table(bundle)))


def _show(rows: list[tuple[str, str, str]]) -> None:
    widths = [min(60, max(len(row[column]) for row in rows)) for column in (0, 1)]
    for fact, value, source in rows:
        line = f"{fact:<{widths[0]}}  {value:<{widths[1]}}  {source}"
        click.echo(printable(line).replace("\n", "\\n"))


WIDTH = 30
ERASE = "\r\033[K"


class ProgressBar:
    """What an export shows while it works."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._is_shown = False

    def report(self, line: str) -> None:
        """Show a line; a bar that is there gives way."""
        self._erase()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def show(self, progress: Progress) -> None:
        """Show how far the copying is, with the time that is left."""
        if not sys.stderr.isatty() or not progress.total:
            return
        now = monotonic()
        self._started = now if self._started is None else self._started
        sys.stderr.write(ERASE + bar(progress, now - self._started))
        sys.stderr.flush()
        self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown:
            sys.stderr.write(ERASE)
            self._is_shown = False


def bar(progress: Progress, seconds: float) -> str:
    """Return the bar as text: ``[####    ] 1.2 of 8.0 GB, 40 s left``."""
    share = min(1.0, progress.done / progress.total)
    filled = round(WIDTH * share)
    text = f"[{'#' * filled}{' ' * (WIDTH - filled)}] "
    text += f"{progress.done / 1e9:.1f} of {progress.total / 1e9:.1f} GB"
    if seconds >= 1 and share > 0:
        text += f", {seconds / share - seconds:.0f} s left"
    return text
