"""The bundle that the tests of running and talking share."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group


@pytest.fixture(scope="session")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DSpark pair of tests/golden-pairs, exported by the command line, 160 rows a cache."""
    pair, out = root / "tests" / "golden-pairs", tmp_path_factory.mktemp("run") / "bundle"
    words = ["--target", pair / "tiny-target", "-o", out, "--max-context", 160]
    done = CliRunner().invoke(group, [str(w) for w in ("export", pair / "tiny-dspark", *words)])
    assert done.exit_code == 0, done.output
    return out
