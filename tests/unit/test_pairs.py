"""The registry of published drafters: what it says, who it names, and that it decides nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.hub.pairs import candidates, drafters_of, published_pairs
from tests.unit.export.formats_page import support_rows


def test_the_registry_says_what_the_page_of_formats_says() -> None:
    page = {row[0]: row for row in support_rows()}
    for one in published_pairs():
        row = page.get(one.drafter)
        if row is None:
            assert one.tried == "refused"  # the page has several in one row
            continue
        assert (one.tried, one.note) == (row[2], row[3].replace("`", "")), one.drafter
        assert row[1] in ("", one.target)
        assert one.family.value in {"dflash", "dflash2", "dspark"}
    names = [one.drafter for one in published_pairs()]
    assert len(set(names)) == len(names) > 20


@pytest.mark.parametrize("target", ["Qwen/Qwen3-4B", "qwen3-4b", "Qwen/Qwen3-4B@main"])
def test_the_drafters_of_a_target_are_found_by_its_name(target: str) -> None:
    assert [one.drafter for one in drafters_of(target)] == [
        "z-lab/Qwen3-4B-DFlash-b16",
        "deepseek-ai/dspark_qwen3_4b_block7",
        "deepseek-ai/dflash_qwen3_4b_block7",
    ]
    assert drafters_of("Qwen/Qwen3-4B-Base") == []


def test_a_folder_and_a_snapshot_have_the_drafters_of_their_target(tmp_path: Path) -> None:
    plain = tmp_path / "Qwen3-8B"
    snapshot = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / ("0" * 40)
    for folder in (plain, snapshot):
        folder.mkdir(parents=True)
        assert "z-lab/Qwen3-8B-DFlash-b16" in candidates(folder)
    assert candidates(snapshot.parent) == candidates(None) == ""


def test_the_command_lists_all_or_those_of_a_target() -> None:
    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(group, ["pairs", *words])
        return done.exit_code, done.stdout, done.stderr

    code, everything, _ = run()
    assert code == 0
    assert len(everything.splitlines()) == len(published_pairs()) + 1
    code, text, _ = run("Kimi-K3", "--json")
    assert [(one["drafter"], one["acceptance"]) for one in json.loads(text)] == [
        ("RadixArk/Kimi-K3-DSpark", None),
        ("Inferact/Kimi-K3-DSpark", None),
    ]
    code, text, problem = run("nobody/knows")
    assert (code, text) == (2, "")
    assert "nobody/knows: no published drafter of it is known here" in problem


@pytest.mark.parametrize(
    "words",
    [
        ["engine", "-o", "out"],
        ["validate", "record-trajectories", "-o", "out", "--prompts", "x"],
        ["validate", "trajectories", "x"],
    ],
)
def test_a_command_that_misses_its_drafter_names_them_and_stops(words: list[str]) -> None:
    done = CliRunner().invoke(group, [*words, "--target", "Qwen/Qwen3-4B"])
    assert done.exit_code == 2
    assert "published drafters of Qwen3-4B: z-lab/Qwen3-4B-DFlash-b16, deepseek-ai" in done.stderr
    assert "Missing" in done.stderr
