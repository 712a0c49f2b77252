"""From a checkpoint that ships with the project to a TensorRT-RTX plan, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group

pytestmark = [pytest.mark.e2e, pytest.mark.trt, pytest.mark.slow]


def test_the_shipped_drafter_becomes_one_plan_for_three_sms(assets: Path, tmp_path: Path) -> None:
    bundle = str(tmp_path / "bundle")
    pair = [str(assets / "tiny-dspark"), "--target", str(assets / "tiny-target"), "-o", bundle]
    export = ["export", *pair, "--precision", "fp16", "--max-context", "256"]
    build = ["build", bundle, "--sm", "86,89,120", "--json"]
    for command in (export, build):
        result = CliRunner().invoke(group, command)
        assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    opened = Bundle.open(bundle)
    assert record["num_attentions"] == opened.drafter().num_layers
    assert record["num_decomposed"] == 0
    plan = opened.manifest.plans[record["file"]]
    assert plan.sms == (86, 89, 120)
    assert opened.file(plan.file).stat().st_size == plan.size_bytes > 100_000
