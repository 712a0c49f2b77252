"""``draftrt verify``: every byte of a bundle against its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.bundle import examine, problem_lines
from draftrt.errors import ParityError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def verify(bundle: Path, as_json: bool) -> None:
    """Hash every file of BUNDLE and compare with its manifest; for after a copy to a device.

    Exit status 3 says that a file is not as it was written, and which.
    """
    manifest, expected, problems = examine(bundle)
    unknown = sorted(name for name, one in expected.items() if not one.sha256)
    num_bytes = sum((bundle / name).stat().st_size for name in expected.keys() - problems.keys())
    if as_json:
        record = {
            "bundle": str(bundle),
            "ok": not problems,
            "files": len(expected),
            "bytes": num_bytes,
            "problems": dict(problems),
            "without_hash": unknown,
            "created": manifest.created,
        }
        click.echo(json.dumps(record, indent=1))
    if problems:
        lines = "; ".join(problem_lines(expected, problems))
        raise ParityError(
            f"{bundle}: {len(problems)} of {len(expected)} files are not as they were written: "
            f"{lines}",
            hint="copy the bundle again, or export it again",
        )
    if not as_json:
        click.echo(f"{bundle}: {len(expected)} files, {num_bytes / 1e6:.1f} MB, all as written")
        if unknown:
            click.echo(
                f"of {', '.join(unknown)} the manifest has no hash of every byte; a bundle that "
                "is exported or built again has"
            )
