"""The rows of `make bench-size`: what is exported and built, the bars, and the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import click

from draftrt.cli_options import OutputFile, OutputFolder, write_output
from draftrt.codec import to_json
from draftrt.engines.memory import BUILD_BYTES, BUILD_FACTOR
from draftrt.errors import DraftrtError
from draftrt.failure_cli import Ending
from draftrt.provenance import available_memory, command_line, now, tool_versions
from tests.size.rows import (
    GB,
    Row,
    build_row,
    checkpoints,
    copy_seconds,
    export_row,
    limit,
    rival_row,
    run_export,
    weights_of,
)

SMALL, MIDDLE, LARGE = "qwen3-4b-dflash", "qwen3-8b-dspark-reduced", "dflash2-interleaved-target"
TURNS = 5  # of what is compared with copying
GROUPS = ("draft", "target", "int4", "dspark", "dflash2")
Report = Callable[[str], None]


def run_rows(folder: Path, only: frozenset[str], *, rivals: bool, report: Report) -> Iterator[Row]:
    """Yield the rows, writing checkpoints and bundles below ``folder``.

    Args:
        folder: scratch folder; needs about 30 GB for all rows.
        only: those of `GROUPS` to run; empty for all.
        rivals: run TensorRT-Edge-LLM's exporter on the same checkpoint too.
        report: gets one line a step.
    """
    groups = (_draft, _target, _int4, _dspark, _dflash2)
    for name, rows in zip(GROUPS, groups, strict=True):
        if only and name not in only:
            continue
        report(f"{name} ...")
        try:
            yield from rows(folder, rivals, report)
        except DraftrtError as error:
            yield Row(
                name=name, seconds=0, peak_bytes=0, bars={"runs": False}, note=str(error), load=0
            )
        finally:
            shutil.rmtree(folder / "bundle", ignore_errors=True)


def _words(folder: Path, *more: str, whole_target: bool = False, system: str = SMALL) -> list[str]:
    found = checkpoints(system, folder, whole_target=whole_target)
    pair = [str(found.draft), "--target", str(found.target)]
    return [*pair, "-o", str(folder / "bundle"), "--force", "--no-target-graph", *more]


def _draft(folder: Path, rivals: bool, report: Report) -> Iterator[Row]:
    bundle = folder / "bundle"
    words = _words(folder, "--precision", "bf16", whole_target=True)
    run_export([*words, "--weights", "link"])  # the first one reads Python's own files
    yield export_row(
        "Qwen3-4B DFlash, export --weights link",
        [*words, "--weights", "link"],
        lambda s, p: [limit("time", s, 15, "s"), limit("peak", p / GB, 1.0, "GB")],
    )
    yield build_row(
        "Qwen3-4B DFlash, plan",
        bundle,
        lambda s, p, size: [
            limit("time", s, 60, "s"),
            limit("peak", p / weights_of(bundle), 2.5, "x weights"),
        ],
    )
    copied = _copied(words, bundle)
    yield copied
    if rivals:
        shutil.rmtree(bundle)
        yield rival_row(folder, checkpoints(SMALL, folder, whole_target=True), copied, report)


def _copied(words: list[str], bundle: Path) -> Row:
    """Export and copy the same bytes in turns; compare the medians.

    A copy counts as done when the disk has it, and so does an export.
    """
    exports, copies = [], []
    for _ in range(TURNS):
        shutil.rmtree(bundle, ignore_errors=True)
        exports.append(export_row("Qwen3-4B DFlash, export", words, lambda s, p: []))
        copies.append(copy_seconds(bundle / "draft.onnx.data"))
    seconds, plain = median(row.seconds for row in exports), median(copies)
    peak = max(row.peak_bytes for row in exports)
    size = (bundle / "draft.onnx.data").stat().st_size
    return Row(
        name=exports[0].name,
        seconds=seconds,
        peak_bytes=peak,
        bars=dict(
            [
                limit("time", seconds / plain, 1.3, f"x copying the file ({plain:.1f} s)"),
                limit("peak", peak / GB, 1.0, "GB"),
            ]
        ),
        note=f"{size / GB:.2f} GB of weights, medians of {TURNS} turns",
        load=exports[0].load,
    )


def _target(folder: Path, rivals: bool, report: Report) -> Iterator[Row]:
    found = checkpoints(SMALL, folder, whole_target=True)
    words = ["--target", str(found.target), "-o", str(folder / "bundle"), "--force"]
    yield export_row(
        "Qwen3-4B target, 36 layers, export --weights link",
        [*words, "--precision", "bf16", "--weights", "link"],
        lambda s, p: [limit("time", s, 60, "s"), limit("peak", p / GB, 1.5, "GB")],
    )


def _int4(folder: Path, rivals: bool, report: Report) -> Iterator[Row]:
    words = _words(folder, "--precision", "bf16", "--quantize", "draft:int4", whole_target=True)
    yield export_row("Qwen3-4B DFlash, bf16, export --quantize int4", words, lambda s, p: [])
    yield build_row(
        "Qwen3-4B DFlash, int4 plan",
        folder / "bundle",
        lambda s, p, size: [limit("plan", size / GB, 1.4, "GB")],
    )


def _dspark(folder: Path, rivals: bool, report: Report) -> Iterator[Row]:
    words = _words(folder, "--precision", "bf16", system=MIDDLE)
    yield export_row("Qwen3-8B DSpark, export", words, lambda s, p: [("exports and checks", True)])
    yield build_row("Qwen3-8B DSpark, plan", folder / "bundle", lambda s, p, n: [("builds", True)])
    shutil.rmtree(folder / MIDDLE)


def _dflash2(folder: Path, rivals: bool, report: Report) -> Iterator[Row]:
    words = _words(folder, "--precision", "bf16", system=LARGE)
    yield export_row(
        "DFlash2 at 27B dimensions, export", words, lambda s, p: [("exports and checks", True)]
    )
    shutil.rmtree(folder / LARGE)
    bundle = folder / "bundle"
    wanted = BUILD_BYTES + BUILD_FACTOR * weights_of(bundle)
    free = available_memory()
    if free is not None and wanted > free:
        needed = f"{wanted / GB:.1f} GB of memory"
        report(f"not built: it takes about {needed}, {free / GB:.1f} GB are free")
        return
    yield build_row("DFlash2 at 27B dimensions, plan", bundle, lambda s, p, n: [("builds", True)])


MISSED = 3


@click.command(cls=Ending)
@click.option("--out", required=True, type=OutputFolder(), help="Scratch folder.")
@click.option("--only", multiple=True, type=click.Choice(GROUPS), help="Repeatable. [default: all]")
@click.option("--rivals", is_flag=True, help="Run TensorRT-Edge-LLM's exporter too.")
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures.")
@click.pass_context
def main(
    ctx: click.Context, out: Path, only: tuple[str, ...], rivals: bool, json_file: Path | None
) -> None:
    """Export and build random checkpoints of published size and compare with the bars.

    Exit status 3 says that a bar was missed.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in run_rows(
        out, frozenset(only), rivals=rivals, report=lambda line: click.echo(line, err=True)
    ):
        rows.append(row)
        click.echo("\n".join(as_text(row)))
    if json_file is not None:
        facts = {"command": command_line(), "created": now(), "tools": tool_versions()}
        record = {**facts, "rows": [to_json(row) for row in rows]}
        write_output(json_file, json.dumps(record, indent=1) + "\n")
    if not all(all(row.bars.values()) for row in rows):
        ctx.exit(MISSED)


def as_text(row: Row) -> list[str]:
    """Return a row as lines."""
    lines = [
        f"{row.name}: {row.seconds:.1f} s, {row.peak_bytes / GB:.2f} GB peak, load {row.load:.1f}"
        + (f"; {row.note}" if row.note else "")
    ]
    return lines + [f"  {'met   ' if met else 'MISSED'}  {bar}" for bar, met in row.bars.items()]


if __name__ == "__main__":
    main()
