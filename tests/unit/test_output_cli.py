"""Where a command is asked to write is looked at before the work begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group

# Nothing but the place is wrong for certain: a command that starts to work fails otherwise, with 1.
WORDS = {
    "bench --json": ["bench", "no-bundle", "--json"],
    "bench --svg": ["bench", "no-bundle", "--svg"],
    "report": ["report", "no-bundle", "-o"],
    "report --markdown": ["report", "no-bundle", "-o", "r.html", "--markdown"],
    "report --json": ["report", "no-bundle", "-o", "r.html", "--json"],
    "record-trajectories": [
        *["validate", "record-trajectories", "no-drafter", "--target", "no-target"],
        *["--prompts", "no-prompts", "-o"],
    ],
}


@pytest.mark.parametrize("name", WORDS)
def test_a_place_that_cannot_be_written_is_wrong_usage(name: str, tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "file"
    done = CliRunner().invoke(group, [*WORDS[name], str(absent)])
    assert done.exit_code == 2, done.output
    assert f"{absent}: no such folder: {absent.parent}" in done.stderr
    done = CliRunner().invoke(group, [*WORDS[name], str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert f"{tmp_path}: got a folder, expected the name of a file" in done.stderr
    done = CliRunner().invoke(group, [*WORDS[name], str(tmp_path / "file")])
    assert done.exit_code == 1, done.output
    assert list(tmp_path.iterdir()) == []
