"""Every kind of drafter, precision and graph with quantised weights: exported, checked, built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.quantization import parse_quantization
from draftrt.spec import Precision

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.extended]

TESTS = Path(__file__).resolve().parents[1]
ASSETS = TESTS / "assets"
MIXED = ("linear=int4", "head=int8", "embedding=int8")
ALL_INT8 = ("int8", "embedding=int8")
GOLDEN = (
    "zlab-dflash2",
    "zlab-dflash-yarn-bias",
    "deepspec-dspark-gated",
    "deepspec-dspark-rnn",
    "deepspec-dspark-padded-vocab",
    "deepspec-gemma4-dspark",
    "speculators-dspark-reduced-vocab",
)


def run(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words])


def export(out: Path, quantize: tuple[str, ...], *arguments: str) -> Result:
    pair = (ASSETS / "tiny-dflash", "--target", ASSETS / "tiny-target", "-o", out)
    options = [word for value in quantize for word in ("--quantize", value)]
    return run("export", *pair, "--max-context", "256", *options, *arguments)


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafter and target in fp16 and int4, the target's embedding in int8."""
    out = tmp_path_factory.mktemp("kinds") / "int4"
    done = export(out, ("int4", "target:embedding=int8"), "--precision", "fp16")
    assert done.exit_code == 0, done.output
    return out


def optimised(path: Path, tmp_path: Path) -> list[Any]:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return list(model.graph.node)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_kind_of_drafter_agrees_with_its_own_integers(name: str, tmp_path: Path) -> None:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.options import ExportOptions
    from draftrt.export.write_graphs import write_draft_graph
    from draftrt.validate.records.cases import read_case
    from draftrt.validate.records.golden import case_target

    record = read_case(TESTS / "golden" / name)
    loaded = load_drafter(record.draft, case_target(record))
    schemes = ALL_INT8 if name == "deepspec-dspark-rnn" else MIXED  # its heads are 6 * 12 wide
    options = ExportOptions(max_context=128, quantization=parse_quantization(schemes))
    lines: list[str] = []
    entry = write_draft_graph(loaded, tmp_path, options, lines.append)
    assert sum("same ids and caches as PyTorch" in line for line in lines) == 4
    products = [
        tensor.name
        for tensor in onnx.load(str(tmp_path / entry.file)).graph.initializer
        if tensor.name.endswith(".codes")
    ]
    fused = [
        n for n in optimised(tmp_path / entry.flexible, tmp_path) if n.op_type == "MatMulNBits"
    ]
    assert len(fused) == len(products) - 1 > 7


@pytest.mark.parametrize("precision", [one.value for one in Precision])
@pytest.mark.parametrize("scheme", ["int4", "int8", "fp8"])
def test_every_scheme_passes_the_gate_in_every_precision(
    scheme: str, precision: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = export(out, (scheme,), "--precision", precision, "--no-target-graph")
    assert done.exit_code == 0, done.output
    assert done.output.count("same ids and caches as PyTorch") == 4
    compared = run("validate", "parity", out)
    assert compared.exit_code == 0, compared.output
    assert ("cache as run" in compared.output) == (scheme != "fp8" and precision != "bf16")


@pytest.mark.parametrize("precision", [one.value for one in Precision])
def test_the_gate_for_large_models_takes_quantised_weights(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftrt.export.check import extent

    monkeypatch.setattr(extent, "FULL_CHECK_BYTES", 0)
    monkeypatch.setattr(extent, "BLOCK_ROWS", 75)  # int4 codes from the middle of a byte on
    monkeypatch.setattr(extent, "BLOCK_ELEMENTS", 700)
    done = export(tmp_path / "out", MIXED, "--precision", precision)
    assert done.exit_code == 0, done.output
    assert done.output.count("rows of all") == 2
    assert done.output.count("same as PyTorch") == 4  # rounds and kinds of layers


def test_a_compat_graph_takes_int8(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = export(out, ("int8", "embedding=int8"), "--graph", "compat")
    assert done.exit_code == 0, done.output
    assert run("validate", "parity", out).exit_code == 0


def test_speculation_keeps_the_output_of_a_quantised_target(int4: Path) -> None:
    from draftrt.runtime.decoding.options import DecodeOptions
    from draftrt.runtime.load import load

    options = DecodeOptions(max_tokens=96, stop_ids=frozenset(), schedule="all")
    with load(int4) as pair:
        done = pair.generate("A song of 20 green bags:", options)
        plain = pair.generate("A song of 20 green bags:", options, speculate=False)
    assert done.token_ids == plain.token_ids
    assert done.stats.acceptance_length > 2


def test_the_tied_head_of_a_target_is_stored_apart_from_its_table(int4: Path) -> None:
    graph = onnx.load(str(int4 / "target.onnx"), load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert kinds["lm_head.weight.codes"] == onnx.TensorProto.INT4
    assert kinds["model.embed_tokens.weight.codes"] == onnx.TensorProto.INT8
    assert "model.embed_tokens.weight" not in kinds
    entry = Bundle.open(int4).graph("target")
    assert dict(entry.quantization) == parse_quantization(["int4", "embedding=int8"])["target"]


def test_a_bundle_from_before_quantisation_still_opens(int4: Path, tmp_path: Path) -> None:
    manifest = json.loads((int4 / "manifest.json").read_text())
    assert manifest["graphs"]["draft"].pop("quantization") == {"linear": "int4", "head": "int4"}
    del manifest["checksum"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_manifest(tmp_path).graphs["draft"].quantization == {}


@pytest.mark.trt
@pytest.mark.parametrize("graph", ["draft", "target"])
def test_int4_plans_are_built_for_three_sms(int4: Path, graph: str) -> None:
    done = run("build", int4, "--sm", "86,89,120", "--graph", graph, "--json")
    assert done.exit_code == 0, done.output
    [plan] = json.loads(done.stdout)
    assert plan["sms"] == [86, 89, 120]


@pytest.mark.trt
def test_fp8_plans_are_built_from_sm89_on_and_refused_before_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--precision", "fp16", "--no-target-graph")
    assert export(out, ("fp8",), *arguments).exit_code == 0
    refused = run("build", out, "--sm", "80,86,89")
    assert refused.exit_code == 1
    assert "fp8 needs float8: got SM80, SM86" in refused.output
    assert not (out / "plans").exists()
    done = run("build", out, "--sm", "89,120")
    assert done.exit_code == 0, done.output


def test_ranges_end_in_3_when_a_product_overflows(int4: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(out, (), "--precision", "fp16").exit_code == 0
    done = run("validate", "ranges", out, "--prompts", ASSETS / "prompts.txt", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["real_features"]
    assert report["ids"]["equal"] >= 0.99 * report["ids"]["compared"]
    assert run("validate", "ranges", int4).exit_code == 0, "quantised weights are as wide"
    [weight] = [
        tensor
        for tensor in onnx.load(str(out / "draft.onnx"), load_external_data=False).graph.initializer
        if tensor.name == "layers.0.mlp.up_proj.weight"
    ]
    place = {one.key: int(one.value) for one in weight.external_data if one.key != "location"}
    data = np.memmap(out / "draft.onnx.data", dtype=np.float16, mode="r+", offset=place["offset"])
    data[: place["length"] // 2] *= 5e4
    data.flush()
    write_manifest(out, replace(read_manifest(out), files=hash_files(out)))
    spoilt = run("validate", "ranges", out)
    assert spoilt.exit_code == 3, spoilt.output
    assert "float16 overflows with features up to 60000" in spoilt.output
    assert "layers.0.mlp.up_proj · product" in spoilt.output
