"""From a checkpoint that ships with the project to a TensorRT-RTX plan, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group

pytestmark = [pytest.mark.e2e, pytest.mark.trt, pytest.mark.slow]


def test_the_shipped_pair_becomes_two_plans_for_three_sms(assets: Path, tmp_path: Path) -> None:
    bundle = str(tmp_path / "bundle")
    pair = [str(assets / "tiny-dspark"), "--target", str(assets / "tiny-target"), "-o", bundle]
    export = ["export", *pair, "--precision", "fp16", "--max-context", "256"]
    result = CliRunner().invoke(group, export)
    assert result.exit_code == 0, result.output
    for graph in ("draft", "target"):
        build = ["build", bundle, "--sm", "86,89,120", "--graph", graph, "--json"]
        result = CliRunner().invoke(group, build)
        assert result.exit_code == 0, result.output
        (record,) = json.loads(result.stdout)
        opened = Bundle.open(bundle)
        decoder = opened.manifest.decoder
        assert decoder is not None
        layers = {"draft": opened.drafter().num_layers, "target": decoder.num_layers}
        assert record["num_attentions"] == layers[graph]
        assert record["num_decomposed"] == 0
        plan = opened.manifest.plans[record["file"]]
        assert (plan.graph, plan.sms) == (graph, (86, 89, 120))
        assert opened.file(plan.file).stat().st_size == plan.size_bytes > 100_000
