"""Keys of a target's config on the command line: told, ignored when told to, and what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytestmark = pytest.mark.e2e


def draftrt(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))


def target_with(folder: Path, **keys: Any) -> Path:
    target = write_target(folder / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | keys))
    return target


def test_a_target_graph_that_is_left_out_is_the_exports_last_word(
    draft: Path, tmp_path: Path
) -> None:
    target = target_with(tmp_path, surprise=1)
    out = tmp_path / "bundle"
    done = draftrt("export", draft, "--target", target, "-o", out)
    assert done.exit_code == 0, done.output
    last = done.stderr[done.stderr.index("bundle: ") :]
    assert "warning: no target graph: config.json: keys that this version does not know" in last
    for text in ("--ignore-key target:NAME", "PyTorch with transformers", "with no plan"):
        assert text in last
    assert set(Bundle.open(out).manifest.graphs) == {"draft"}

    line = ("export", draft, "--target", target, "-o", tmp_path / "other")
    refused = draftrt(*line, "--target-graph")
    assert (refused.exit_code, (tmp_path / "other").exists()) == (1, False)
    done = draftrt(*line, "--ignore-key", "target:surprise")
    assert done.exit_code == 0, done.output
    assert "warning: no target graph" not in done.stderr
    assert set(Bundle.open(tmp_path / "other").manifest.graphs) == {"draft", "target"}


def test_inspect_and_plan_know_the_target_and_its_keys(draft: Path, tmp_path: Path) -> None:
    target = target_with(tmp_path, surprise=1)
    for command in ("inspect", "plan"):
        told = draftrt(command, draft, "--target", target)
        assert told.exit_code == 0
        assert "--ignore-key target:NAME" in told.output
        told = draftrt(command, draft, "--target", target, "--ignore-key", "target:surprise")
        assert told.exit_code == 0, told.output
        assert "no target graph" not in told.output
        assert any(line.startswith("target ") for line in told.stdout.splitlines())
        for wrong in ("target:rope_theta", "target:nothing", "surprise"):
            told = draftrt(command, draft, "--target", target, "--ignore-key", wrong)
            assert told.exit_code == 2, told.output
            assert f"--ignore-key {wrong}" in told.stderr
    about = json.loads(draftrt("inspect", draft, "--target", target, "--json").stdout)
    assert about["target_graph"] is None


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--no-target-graph", "-o", "b", "--target"),
        ("plan", "--no-target-graph", "--target"),
    ],
)
def test_a_key_of_a_target_that_is_not_exported_is_wrong_usage(
    words: tuple[str, ...], draft: Path, tmp_path: Path
) -> None:
    target = target_with(tmp_path, surprise=1)
    line = [words[0], draft, *words[1:], target, "--ignore-key", "target:surprise"]
    told = draftrt(*[tmp_path / word if word == "b" else word for word in line])
    assert told.exit_code == 2, told.output
    assert "the target's graph is not exported" in told.stderr


def test_a_target_alone_takes_its_own_keys(tmp_path: Path) -> None:
    target = target_with(tmp_path, surprise=1)
    line = ("export", "--target", target, "-o", tmp_path / "bundle", "--ignore-key")
    assert draftrt(*line, "surprise").exit_code == 2
    assert draftrt(*line, "target:surprise").exit_code == 0
