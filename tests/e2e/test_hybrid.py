"""The hybrid pair that ships: a target of linear attention decodes with its drafter, losslessly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import draftrt
from draftrt.cli import group
from draftrt.runtime.decoding.options import DecodeOptions

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TESTS = Path(__file__).resolve().parent.parent
DRAFT, TARGET = TESTS / "assets" / "tiny-hybrid-dflash", TESTS / "assets" / "tiny-hybrid"
EXPECTED = TESTS / "golden-targets" / "tiny-hybrid" / "expected-dflash.json"


def call(*words: object) -> str:
    done = CliRunner().invoke(group, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid") / "bundle"
    call("export", DRAFT, "--target", TARGET, "-o", folder, "--precision", "fp32")
    return folder


def test_zlabs_loop_over_whole_texts_has_the_same_ids_and_rounds() -> None:
    words = ("--draft", DRAFT, "--target", TARGET, EXPECTED, "--json")
    rows = json.loads(call("validate", "trajectories", *words))["rows"]
    assert [one["row"] for one in rows] == [0, 1, 2, 3]
    assert all(one["same"] and one["tokens"] == 96 for one in rows)
    assert all(one["rounds"] - one["compared_rounds"] <= 6 for one in rows)
    assert sum(one["accepted"] for one in rows) > 200


def test_turns_of_a_chat_equal_plain_decoding_and_the_publishers_ids(bundle: Path) -> None:
    told = json.loads(EXPECTED.read_text())[0]
    options = {
        count: DecodeOptions(max_tokens=count, stop_ids=frozenset(), schedule="all")
        for count in (96, 30)
    }
    with draftrt.load(bundle) as pair:
        first = pair.generate(told["prompt_ids"], options[96])
        assert list(first.token_ids) == told["output_ids"]
        longer = [*told["prompt_ids"], *first.token_ids[:40]]
        drafted = pair.generate(longer, options[30])
        plain = pair.generate(longer, options[30], speculate=False)
    assert first.stats.num_rounds < 30
    assert drafted.token_ids == plain.token_ids


def test_prompts_behind_other_texts_have_the_ids_of_prompts_computed_whole(bundle: Path) -> None:
    words = ("--cases", 5, "--longest", 16, "--max-tokens", 3, "--json")
    found = json.loads(call("validate", "reuse", bundle, *words))
    assert found["same"]
    assert found["reused_tokens"] > found["prompt_tokens"] / 3


def test_a_saved_prefix_brings_the_states_back(bundle: Path, tmp_path: Path) -> None:
    told = json.loads(EXPECTED.read_text())[0]
    ids, few = told["prompt_ids"], DecodeOptions(max_tokens=30, stop_ids=frozenset())
    with draftrt.load(bundle) as pair:
        pair.generate(ids, DecodeOptions(max_tokens=1))
        pair.save_prefix(tmp_path / "a.prefix")
    with draftrt.load(bundle, prefix=tmp_path / "a.prefix") as pair:
        warm = pair.generate(ids, few)
    assert list(warm.token_ids) == told["output_ids"][:30]
    assert warm.stats.reused_tokens == len(ids) - 1


def test_a_plan_tells_the_bytes_of_a_snapshot(bundle: Path, assets: Path) -> None:
    words = (assets / "tiny-hybrid-dflash", "--target", assets / "tiny-hybrid")
    told = json.loads(call("plan", *words, "--precision", "fp32", "--json"))
    with draftrt.load(bundle) as pair:
        pair.generate((1, 2, 3), DecodeOptions(max_tokens=2))
        taken = pair.target.snapshot().num_bytes
    assert told["graphs"]["target"]["snapshot"] == taken > 0
    assert told["graphs"]["draft"]["snapshot"] == 0
