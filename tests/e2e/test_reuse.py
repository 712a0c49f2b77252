"""Prefix reuse at length: random prompts on targets that crop and on one that keeps states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.xdist_group("reuse")]

PAIRS = {"tiny-dflash": "tiny-target", "tiny-dspark": "tiny-target"}
PAIRS |= {"tiny-hybrid-dflash": "tiny-hybrid"}


@pytest.mark.parametrize("draft", PAIRS)
def test_three_hundred_random_prompts_have_the_ids_of_prompts_computed_whole(
    draft: str, assets: Path, tmp_path: Path
) -> None:
    words = ["export", assets / draft, "--target", assets / PAIRS[draft], "-o", tmp_path / "bundle"]
    words += ["--precision", "fp32", "--max-context", 512]
    done = CliRunner().invoke(group, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    words = ["validate", "reuse", tmp_path / "bundle", "--cases", 300, "--seed", 15]
    done = CliRunner().invoke(group, [str(word) for word in [*words, "--longest", 240, "--json"]])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["prompts"] > 400
    assert found["reused_tokens"] > 0.6 * found["prompt_tokens"]
    assert min(found["closed"], found["broken_off"]) > 15
