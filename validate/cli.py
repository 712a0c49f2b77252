"""``draftrt validate``: golden cases, parity and bisection of a bundle, trajectories, ranges.

Exit status of all of them: 0 same, 3 different, 1 could not be checked, 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.backends import BACKENDS, ONNXRUNTIME
from draftrt.number_cli import FiniteRange
from draftrt.rounds_cli import rounds_option
from draftrt.validate.bisect.cli import bisect
from draftrt.validate.parity.cli import ranges
from draftrt.validate.records.cli import record, record_trajectories
from draftrt.validate.records.matrix_command import matrix

FOLDER = click.Path(path_type=Path)


@click.group()
def validate() -> None:
    """Compare what was exported with the original, and say where they differ.

    Exit status: 0 same, 3 different, 1 could not be checked, 2 usage.
    """


validate.add_command(bisect)
validate.add_command(ranges)
validate.add_command(matrix)
validate.add_command(record)
validate.add_command(record_trajectories)


@validate.command()
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
@click.option("--draft", type=FOLDER, help="Checkpoint of a case that holds only its hashes.")
@click.option(
    "--target", type=FOLDER, help="Target of a case that holds only hashes of its tables."
)
@click.option("--json", "is_json", is_flag=True, help="Print every comparison as JSON.")
def golden(
    cases: tuple[Path, ...],
    backend: str,
    precision: str,
    draft: Path | None,
    target: Path | None,
    is_json: bool,
) -> None:
    """Check drafters against what a trusted implementation computed (docs/records.md)."""
    from draftrt.spec import Precision
    from draftrt.validate.records.golden import PYTORCH, check_cases
    from draftrt.validate.records.report import as_json, as_text, failure

    backends = (ONNXRUNTIME, PYTORCH) if backend == "ort" else (PYTORCH,)
    reports = []
    for one in check_cases(
        cases, backends=backends, precision=Precision(precision), draft=draft, target=target
    ):
        click.echo(f"{one.name}: {one.verdict}", err=True)
        reports.append(one)
    if is_json:
        click.echo(json.dumps(as_json(reports), indent=1))
    else:
        click.echo("\n".join(as_text(reports, backends)))
    if (error := failure(reports)) is not None:
        raise error


@validate.command()
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
@click.option("--json", "is_json", is_flag=True, help="Print every comparison as JSON.")
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


@validate.command()
@click.argument("expected", metavar="EXPECTED.json", type=FOLDER)
@click.option("--draft", required=True, type=FOLDER, help="Drafter checkpoint.")
@click.option("--target", required=True, type=FOLDER, help="Target checkpoint, with tokenizer.")
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
@click.option("--json", "is_json", is_flag=True, help="Print every row as JSON.")
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
    from draftrt.validate.records.trajectories import check_trajectories
    from draftrt.validate.records.trajectory_report import HEADING, as_line

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
