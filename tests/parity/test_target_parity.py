"""`draftrt validate parity --graph target`: the target's graph with its module after the export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.quantization import parse_quantization
from draftrt.spec import Precision
from tests.parity.planted_graphs import insert, reading, set_attribute
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("target-parity")]
BUNDLES: dict[str, ExportOptions] = {
    "fp32": ExportOptions(max_context=64),
    "bf16": ExportOptions(max_context=64, precision=Precision.BF16),
    "int8": ExportOptions(max_context=64, quantization=parse_quantization(["int8"])),
    "draft": ExportOptions(max_context=64, target_graph=False),
}


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target-parity")
    target = write_target(folder / "target", ToyTarget(tie_word_embeddings=True))
    draft = write_drafter(folder / "drafter", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    for name, options in BUNDLES.items():
        export_bundle(draft, target, folder / name, options)
    export_bundle(None, target, folder / "target-alone", ExportOptions(max_context=64))
    return folder


@pytest.fixture(params=["whole", "by samples"])
def extent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether graphs are computed whole, or as large ones are."""
    if request.param == "by samples":
        monkeypatch.setattr("draftrt.export.check.extent.FULL_CHECK_BYTES", 0)
    return str(request.param)


def parity(*words: object) -> Result:
    return CliRunner().invoke(group, ["validate", "parity", *map(str, words)])


@pytest.mark.parametrize("name", ["fp32", "bf16", "int8"])
def test_both_graphs_are_compared_unless_one_is_named(
    bundles: Path, name: str, extent: str
) -> None:
    before = sorted(path.name for path in (bundles / name).iterdir())
    done = parity(bundles / name, "--graph", "target")
    assert done.exit_code == 0, done.output
    assert "target graph against pytorch" in done.stdout
    assert ("layer 0 of 6" in done.stdout) == (extent == "by samples")
    assert "draft.onnx" not in done.stdout
    assert sorted(path.name for path in (bundles / name).iterdir()) == before


def test_the_default_is_all_there_is(bundles: Path) -> None:
    data = json.loads(parity(bundles / "fp32", "--json").stdout)
    assert (data["same"], data["target"]["same"], len(data["rounds"])) == (True, True, 16)
    alone = json.loads(parity(bundles / "draft", "--json").stdout)
    assert (alone["same"], alone["target"]) == (True, None)
    done = parity(bundles / "target-alone")
    assert (done.exit_code, "draft.onnx" in done.stdout) == (0, False)
    done = parity(bundles / "draft", "--graph", "target")
    assert (done.exit_code, "no graph 'target'" in done.stderr) == (1, True)
    done = parity(bundles / "fp32", "--graph", "draft")
    assert "target graph" not in done.stdout
    done = parity(bundles / "fp32", "--graph", "target", "--backend", "tensorrt-rtx")
    assert (done.exit_code, "leave --backend out" in done.stderr) == (1, True)


def other_weight(graph: Any) -> None:
    node = reading(graph, "model.layers.2.self_attn.k_proj.weight")
    node.input[1] = "model.layers.1.self_attn.k_proj.weight"


def other_epsilon(graph: Any) -> None:
    set_attribute(reading(graph, "model.layers.3.post_attention_layernorm.weight"), "epsilon", 0.5)


def other_features(graph: Any) -> None:
    node = next(one for one in graph.node if one.name == "features.concat")
    node.input[0] = "model.layers.0.output"


def negated(graph: Any) -> None:
    insert(graph, reading(graph, "model.norm.weight"), 0, ("Neg", [""], {}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_weight, "reads model.layers.1.self_attn.k_proj.weight, expected"),
        (other_epsilon, "has epsilon 0.5, expected 1e-06"),
        (other_features, "reads model.layers.0.output, expected model.layers.1.output"),
        (negated, "is there and should not be"),
    ],
)
def test_a_planted_fault_in_the_target_is_named_and_its_values_differ(
    bundles: Path, tmp_path: Path, extent: str, change: Callable[[Any], None], told: str
) -> None:
    copy = Path(shutil.copytree(bundles / "fp32", tmp_path / "copy"))
    model = onnx.load(str(copy / "target.onnx"), load_external_data=False)
    change(model.graph)
    onnx.save(model, str(copy / "target.onnx"))
    write_manifest(copy, replace(read_manifest(copy), files=hash_files(copy)))
    done = parity(copy, "--graph", "target", "--json")
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)["target"]
    assert told in " ".join(found["differences"])
    assert len(found["differences"]) == 2 + (change is negated), found["differences"]
    assert parity(copy, "--graph", "draft").exit_code == 0
    assert parity(copy).exit_code == 3
