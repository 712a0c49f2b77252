"""``python -m tests.size.published_command``: write random checkpoints of published size."""

from __future__ import annotations

from pathlib import Path

import click

from draftrt.cli_options import OutputFolder
from draftrt.failure_cli import Ending
from tests.size.published import write_system
from tests.size.systems import SYSTEMS


@click.command(cls=Ending)
@click.argument("names", nargs=-1, required=True, type=click.Choice(sorted(SYSTEMS)))
@click.option("--out", required=True, type=OutputFolder(), help="Folder to write into.")
@click.option("--whole-target", is_flag=True, help="Write the target's layers too.")
def main(names: tuple[str, ...], out: Path, whole_target: bool) -> None:
    """Write random checkpoints of the systems NAMES."""
    for name in names:
        draft, target = write_system(name, out, whole_target=whole_target)
        click.echo(f"{name}: {draft} {target}")


if __name__ == "__main__":
    main()
