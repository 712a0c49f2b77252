"""``draftrt validate``: golden cases, parity of a bundle, trajectories.

Exit status of all of them: 0 same, 3 different, 1 could not be checked, 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)


@click.group()
def validate() -> None:
    """Compare what was exported with the original, and say where they differ.

    Exit status: 0 same, 3 different, 1 could not be checked, 2 usage.
    """


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
@click.option("--json", "is_json", is_flag=True, help="Print every comparison as JSON.")
def golden(cases: tuple[Path, ...], backend: str, precision: str, is_json: bool) -> None:
    """Check drafters against what the publishers' own code computed (docs/records.md)."""
    from draftrt.spec import Precision
    from draftrt.validate.golden import ONNXRUNTIME, PYTORCH, check_cases
    from draftrt.validate.golden_report import as_json, as_text, failure

    backends = (ONNXRUNTIME, PYTORCH) if backend == "ort" else (PYTORCH,)
    reports = []
    for one in check_cases(cases, backends=backends, precision=Precision(precision)):
        click.echo(f"{one.name}: {one.verdict}", err=True)
        reports.append(one)
    if is_json:
        click.echo(json.dumps(as_json(reports), indent=1))
    else:
        click.echo("\n".join(as_text(reports, backends)))
    if (error := failure(reports)) is not None:
        raise error
