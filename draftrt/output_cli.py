"""The file that a command is asked to write, looked at before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import click


class OutputFile(click.Path):
    """A path at which a file can be written: in a folder that exists, and no folder itself."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, or fail as wrong usage."""
        path = Path(value)
        if path.is_dir():
            self.fail(f"{path}: got a folder, expected the name of a file", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: no such folder: {path.parent}", param, ctx)
        return path
