"""The publishers' own answers, through the command line and the exported graph on ONNX Runtime."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.parity

CASES = Path(__file__).resolve().parent.parent / "golden"
NAMES = sorted(path.parent.name for path in CASES.glob("*/case.json"))
NUM_ROUNDS = 4


def test_the_cases_are_all_here() -> None:
    assert len(NAMES) == 16


def test_graph_and_module_give_the_publishers_answers() -> None:
    """The other cases go through tests/parity/test_matrix.py, in every precision."""
    name = "speculators-dspark-reduced-vocab"
    done = CliRunner().invoke(group, ["validate", "golden", str(CASES / name), "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["cases"]
    assert found["verdict"] == "same"
    assert found["atol"] == 1e-4
    graph, module = found["backends"]["onnxruntime"], found["backends"]["pytorch"]
    assert set(graph) == set(module)
    assert {f"r{index}.tokens" for index in range(NUM_ROUNDS)} <= set(graph)
    assert {f"r{index}.logits" for index in range(NUM_ROUNDS)} <= set(graph)


def test_one_changed_weight_shows_through_the_graph(tmp_path: Path) -> None:
    case = shutil.copytree(CASES / "zlab-dflash", tmp_path / "spoilt")
    file = case / "draft" / "model.safetensors"
    tensors = load_file(file)
    tensors["layers.0.self_attn.k_norm.weight"][2] *= 1.5
    save_file(tensors, file, metadata={"format": "pt"})
    done = CliRunner().invoke(group, ["validate", "golden", str(case)])
    assert done.exit_code == 3
    assert "spoilt: onnxruntime r" in done.stdout
    assert "spoilt: pytorch r" in done.stdout
