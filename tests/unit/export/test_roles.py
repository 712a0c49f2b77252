"""A drafter where a target goes, a target where a drafter goes, both swapped, and one for both."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.errors import SpecError
from draftrt.export.checkpoint.target_files import DRAFTER, TARGET, check_roles, role_of
from tests.toys.models import Kind


def test_every_format_of_drafters_is_told_from_targets(
    toys: Mapping[Kind, Path], target_folder: Path
) -> None:
    assert {kind: role_of(folder) for kind, folder in toys.items()} == dict.fromkeys(toys, DRAFTER)
    assert role_of(target_folder) == TARGET


@pytest.mark.parametrize(
    ("config", "role"),
    [
        ('{"architectures": ["Gemma4ForConditionalGeneration"]}', TARGET),
        ('{"architectures": ["DeepseekV4ForCausalLM"], "n_mtp_layers": 3}', TARGET),
        ('{"architectures": ["Qwen9DFlash2DraftModel"]}', DRAFTER),
        ('{"dflash_config": {}, "architectures": []}', DRAFTER),
        ('{"architectures": ["Eagle3Model"]}', ""),
        ('{"architectures": 3}', ""),
        ("{", ""),
    ],
)
def test_a_config_tells_what_it_is_of(config: str, role: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    assert role_of(tmp_path) == role


def test_what_is_wrong_is_one_sentence(
    toys: Mapping[Kind, Path], target_folder: Path, tmp_path: Path
) -> None:
    draft, other = toys[Kind.ZLAB_DFLASH], toys[Kind.DEEPSPEC_DSPARK]
    copy = Path(shutil.copytree(target_folder, tmp_path / "copy"))
    link = tmp_path / "link"
    link.symlink_to(draft)
    check_roles(draft, target_folder)
    check_roles(None, target_folder)
    check_roles(draft, None)
    for first, second, says in (
        (target_folder, draft, "--target is a drafter: swapped"),
        (draft, draft, "drafter and target are one folder"),
        (draft, link, "drafter and target are one folder"),
        (target_folder, target_folder, "drafter and target are one folder"),
        (draft, other, "--target .* holds a drafter, expected the model it drafts for"),
        (target_folder, copy, ".* holds a target, expected a drafter"),
        (target_folder, None, ".* holds a target, expected a drafter"),
        (None, draft, "--target .* holds a drafter"),
    ):
        with pytest.raises(SpecError, match=says):
            check_roles(first, second)


@pytest.mark.parametrize(
    "words",
    [
        ["export", "DRAFT", "--target", "TARGET", "-o", "OUT"],
        ["inspect", "DRAFT", "--target", "TARGET"],
        ["plan", "DRAFT", "--target", "TARGET"],
        ["engine", "DRAFT", "--target", "TARGET", "-o", "OUT", "--no-run"],
        ["validate", "record", "DRAFT", "--target", "TARGET", "-o", "OUT"],
        [
            "validate",
            "record-trajectories",
            "DRAFT",
            "--target",
            "TARGET",
            "-o",
            "OUT",
            "--prompts",
            "P",
        ],
        ["validate", "matrix", "--draft", "DRAFT", "--target", "TARGET"],
    ],
    ids=lambda words: " ".join(words[:2]).lower(),
)
def test_every_command_that_takes_both_says_that_they_are_swapped(
    words: list[str], toys: Mapping[Kind, Path], target_folder: Path, tmp_path: Path
) -> None:
    places = {
        "DRAFT": target_folder,
        "TARGET": toys[Kind.ZLAB_DFLASH],
        "OUT": tmp_path / "out",
        "P": tmp_path / "prompts.txt",
    }
    (tmp_path / "prompts.txt").write_text("abc\n")
    done = CliRunner().invoke(group, [str(places.get(word, word)) for word in words])
    assert done.exit_code in (1, 2), done.output
    assert "--target is a drafter: swapped" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_draft", [True, False])
def test_a_bundle_in_place_of_a_checkpoint_is_one_finding(
    is_draft: bool, toys: Mapping[Kind, Path], target_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    draft, target = (tmp_path, target_folder) if is_draft else (toys[Kind.ZLAB_DFLASH], tmp_path)
    words = ["export", str(draft), "--target", str(target), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 1
    assert f"{tmp_path} is a bundle, expected the folder of" in " ".join(done.stderr.split())
    assert "problems found" not in done.stderr


def test_inspect_of_a_target_alone_says_what_it_is(target_folder: Path) -> None:
    done = CliRunner().invoke(group, ["inspect", str(target_folder)])
    assert done.exit_code == 1
    assert "holds a target, expected a drafter" in done.stderr
