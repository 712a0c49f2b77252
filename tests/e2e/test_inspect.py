"""`draftrt inspect`: every fact with its source, for people and for scripts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from draftrt.spec import DrafterSpec
from tests.toys.models import REMOVED, Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytestmark = pytest.mark.e2e
FACTS = {field.name for field in dataclasses.fields(DrafterSpec)} - {"sources", "warnings"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


def inspect(*arguments: str | Path) -> Result:
    line = ["inspect", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(group, line, catch_exceptions=False)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
@pytest.mark.parametrize("alone", [False, True], ids=["with its target", "alone"])
def test_every_fact_is_shown_with_its_source(
    kind: Kind, alone: bool, tmp_path: Path, target: Path
) -> None:
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=kind))
    arguments = [draft] if alone else [draft, "--target", target]
    shown = inspect(*arguments)
    assert shown.exit_code == 0, shown.output
    for line in shown.stdout.splitlines():
        fact, *rest = (cell for cell in line.split("  ") if cell.strip())
        assert fact.strip()
        assert len(rest) >= 2, line
    told = inspect(*arguments, "--json")
    about = json.loads(told.stdout)
    assert set(about["facts"]) == FACTS
    assert set(about["sources"]) == FACTS
    assert all(about["sources"].values())
    assert about["facts"]["target_layer_ids"] == [1, 3, 4]
    anchored = kind in (Kind.DEEPSPEC_DFLASH, Kind.DEEPSPEC_DSPARK, Kind.DEEPSPEC_GEMMA4)
    anchored |= kind is Kind.SPECULATORS_DSPARK
    assert about["derived"]["num_draft_tokens"] == (4 if anchored else 3)
    borrows = not kind.value.startswith("deepspec")
    assert about["borrowed"] == (["embed_tokens.weight", "lm_head.weight"] if borrows else [])


def test_sizes_count_what_lies_in_the_file_and_what_is_borrowed(
    tmp_path: Path, target: Path
) -> None:
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH, dtype="bfloat16"))
    about = json.loads(inspect(draft, "--target", target, "--json").stdout)
    size = about["size"]
    layer = 40 * 64 * 2 + 40 * 32 * 2 + 3 * 40 * 56 + 2 * 16 + 2 * 40
    assert size["parameters"] == 2 * layer + 40 * 120 + 2 * 40
    assert size["bytes"] == 2 * size["parameters"]
    assert size["borrowed_parameters"] == 2 * 264 * 40
    assert size["borrowed_bytes"] == 4 * size["borrowed_parameters"]
    alone = inspect(draft)
    assert "pass --target to see them" in alone.stdout


def test_what_a_user_should_know_is_a_warning_and_no_error(tmp_path: Path, target: Path) -> None:
    kept = np.arange(100, 196, dtype=np.int64)
    mask = np.zeros(264, np.bool_)
    mask[kept] = True
    draft = write_drafter(
        tmp_path / "draft",
        ToyDrafter(
            kind=Kind.SPECULATORS_DSPARK,
            draft_vocab_size=96,
            sliding_window=5,
            overrides={"sliding_window_non_causal": REMOVED},
            extra={"d2t": kept, "t2d": mask, "verifier_norm.weight": np.ones(4, np.float32)},
        ),
    )
    result = inspect(draft, "--target", target)
    assert result.exit_code == 0, result.output
    assert "warning: d2t holds absolute target ids, not offsets" in result.stderr
    assert "warning: sliding_window_non_causal is not stated: taken as false" in result.stderr
    assert "window 5 from the anchor, causal" in result.stdout
    assert "tensor d2t, read as absolute" in result.stdout
    ignored = [line for line in result.stdout.splitlines() if line.startswith("ignored tensor")]
    assert [line.split()[2] for line in ignored] == ["verifier_norm.weight", "t2d"]
    about = json.loads(inspect(draft, "--target", target, "--json").stdout)
    assert len(about["warnings"]) == 2
    assert set(about["ignored"]) == {"verifier_norm.weight", "t2d"}


def test_an_unknown_key_can_be_declared_harmless(tmp_path: Path, target: Path) -> None:
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH, overrides={"surprise": 1, "dflash_config.other": 2})
    draft = write_drafter(tmp_path / "draft", toy)
    accepted = ("--ignore-key", "surprise", "--ignore-key", "dflash_config.other")
    assert inspect(draft, "--target", target).exit_code == 1
    assert inspect(draft, "--target", target, *accepted[:2]).exit_code == 1
    assert inspect(draft, "--target", target, *accepted).exit_code == 0
    for name in ("surprised", "other", "block_size", "dflash_config.mask_token_id"):
        wrong = inspect(draft, "--target", target, *accepted, "--ignore-key", name)
        assert wrong.exit_code == 2, wrong.output
        assert (
            f"--ignore-key {name}: expected keys that this version does not know, which are "
            "['surprise', 'dflash_config.other']"
        ) in wrong.stderr
    assert inspect(draft, "--target", target, *accepted, "--ignore-key", "seed").exit_code == 0


def test_a_flag_settles_what_a_config_leaves_open(tmp_path: Path, target: Path) -> None:
    toy = ToyDrafter(kind=Kind.SPECULATORS_DSPARK, overrides={"sample_from_anchor": REMOVED})
    draft = write_drafter(tmp_path / "draft", toy)
    assert inspect(draft, "--target", target).exit_code == 1
    told = inspect(draft, "--target", target, "--sample-from-anchor", "--json")
    about = json.loads(told.stdout)
    assert about["derived"]["num_draft_tokens"] == 4
    assert about["sources"]["sample_from_anchor"] == "--sample-from-anchor"


def test_a_missing_argument_is_a_usage_error() -> None:
    assert inspect().exit_code == 2


def test_what_is_no_folder_is_told_in_one_sentence(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place, what in (
        (file, "got a file, expected a folder"),
        (tmp_path / "a", "no such folder"),
    ):
        for words in ((place,), (place, "--target", target)):
            done = inspect(*words)
            assert done.exit_code == 1
            assert done.stderr.startswith(
                f"Error: {place}: {what}\n  Hint: give a checkpoint's folder"
            )
