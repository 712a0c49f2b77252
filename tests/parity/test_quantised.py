"""Quantised weights from export to ONNX Runtime: form, answers, parity of the bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import ExportError
from draftrt.quantization import Part, Scheme
from draftrt.spec import Precision
from draftrt.validate.parity.parity import check_parity
from draftrt.validate.parity.report import as_text

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
pytestmark = pytest.mark.parity

ASSETS = Path(__file__).resolve().parents[1] / "assets"
CONTEXT = 64
LINEARS = 2 * 7  # of the drafter's two layers


def export(out: Path, *arguments: str, draft: str = "tiny-dspark") -> Result:
    words = ["export", str(ASSETS / draft), "--target", str(ASSETS / "tiny-target"), "-o", str(out)]
    return CliRunner().invoke(group, [*words, "--max-context", str(CONTEXT), *arguments])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 drafter whose three parts are quantised."""
    out = tmp_path_factory.mktemp("quantised") / "mixed"
    parts = ("linear=int4", "head=int8", "embedding=int8")
    options = [word for part in parts for word in ("--quantize", part)]
    done = export(out, "--no-target-graph", "--outputs", "base_logits", *options)
    assert done.exit_code == 0, done.output
    return out


def optimised(path: Path, tmp_path: Path) -> Any:
    """The graph that ONNX Runtime runs."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath, load_external_data=False).graph


def test_the_bundle_says_what_is_quantised_and_is_smaller(mixed: Path) -> None:
    entry = Bundle.open(mixed).graph()
    assert entry.quantization == {
        Part.LINEAR: Scheme.INT4,
        Part.HEAD: Scheme.INT8,
        Part.EMBEDDING: Scheme.INT8,
    }
    stored = {
        tensor.name: tensor for tensor in onnx.load(str(mixed / entry.file)).graph.initializer
    }
    kinds = {name: onnx.TensorProto.DataType.Name(one.data_type) for name, one in stored.items()}
    codes = {name: kind for name, kind in kinds.items() if name.endswith(".codes")}
    assert sorted(codes.values()) == ["INT4"] * LINEARS + ["INT8"] * 2
    assert codes["lm_head.weight.codes"] == codes["embed_tokens.weight.codes"] == "INT8"
    assert kinds["fc.weight"] == kinds["markov_head.markov_w2.weight"] == "FLOAT"
    assert list(stored["layers.0.mlp.down_proj.weight.codes"].dims) == [224, 80]
    assert list(stored["layers.0.mlp.down_proj.weight.scales"].dims) == [7, 80]
    assert list(stored["layers.0.mlp.up_proj.weight.scales"].dims) == [5, 224]  # 80 = 5 * 16


def test_inspect_shows_what_of_a_bundle_is_quantised(mixed: Path) -> None:
    shown = CliRunner().invoke(group, ["inspect", str(mixed)])
    assert shown.exit_code == 0, shown.output
    [line] = [line for line in shown.output.splitlines() if line.startswith("graph draft")]
    assert "fp32, linear int4, head int8, embedding int8, fixed, opset 24, 64 rows" in line
    told = json.loads(CliRunner().invoke(group, ["inspect", str(mixed), "--json"]).stdout)
    assert told["graphs"]["draft"]["quantization"]["head"] == "int8"
    words = ["inspect", str(mixed), "--target", str(ASSETS / "tiny-target")]
    refused = CliRunner().invoke(group, words)
    assert refused.exit_code == 2
    assert "is a bundle: it was checked when it was made" in refused.output


def test_onnxruntime_multiplies_with_the_codes_and_looks_rows_up_in_them(
    mixed: Path, tmp_path: Path
) -> None:
    graph = optimised(mixed / "draft.flexible.onnx", tmp_path)
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulNBits") == LINEARS + 1
    made = {name: node for node in graph.node for name in node.output}
    wide = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert {made[name].op_type for node in wide for name in node.input} == {"Gather"}


@pytest.mark.parametrize("name", ["layers.1.mlp.up_proj.weight", "embed_tokens.weight"])
@pytest.mark.parametrize("part", ["codes", "scales"])
def test_codes_and_scales_that_are_not_the_checkpoints_are_found(
    mixed: Path, tmp_path: Path, name: str, part: str
) -> None:
    from draftrt.export.check.onnx_file import check_channels
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.graph.files import read_initialisers
    from draftrt.export.weights.quantized import QuantizedRef
    from draftrt.export.weights.tensors import draft_tensors

    loaded = load_drafter(ASSETS / "tiny-dspark", read_target(ASSETS / "tiny-target"))
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    assert check_channels(mixed / "draft.onnx", tensors) == LINEARS + 2
    copy = tmp_path / "copy"
    shutil.copytree(mixed, copy)
    with (copy / "draft.onnx.data").open("r+b") as stream:
        found = read_initialisers(copy / "draft.onnx")[name]
        assert isinstance(found, QuantizedRef)
        place = found if part == "codes" else found.scales
        assert place is not None
        stream.seek(place.offset)
        code = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([code ^ 1]))
    with pytest.raises(ExportError, match=rf"channel 0 of {name} is not the checkpoint's"):
        check_channels(copy / "draft.onnx", tensors)


def test_logits_stay_near_those_of_the_weights_before(mixed: Path) -> None:
    import torch

    from draftrt.export.check.feeds import round_feeds
    from draftrt.export.check.reference import reference_module
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.weights.tensors import draft_tensors

    loaded = load_drafter(ASSETS / "tiny-dspark", read_target(ASSETS / "tiny-target"))
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    module = reference_module(loaded.spec, tensors, extra_outputs=("base_logits",))
    entry = Bundle.open(mixed).graph()
    session = ort.InferenceSession(str(mixed / entry.file), providers=["CPUExecutionProvider"])
    feeds = round_feeds(loaded.spec, np.random.default_rng(5), new_rows=9, context_length=0)
    caches = {
        tensor.name: np.zeros([int(size) for size in tensor.shape], np.float32)
        for tensor in entry.signature.inputs
        if tensor.name.startswith("past_")
    }
    got = dict(zip(entry.signature.output_names(), session.run(None, feeds | caches), strict=True))
    with torch.no_grad():
        out = module(*(torch.from_numpy(one) for one in (feeds | caches).values()))
    want = dict(zip(module.outputs, (tensor.numpy() for tensor in out), strict=False))
    np.testing.assert_array_equal(got["draft_ids"][0, :1], want["draft_ids"][0, :1])
    logits, expected = got["base_logits"], want["base_logits"]
    assert 0.01 < np.linalg.norm(logits - expected) / np.linalg.norm(expected) < 0.25
    keys, expected = got["present_key_0"][:, :, :9], out[len(module.outputs)].numpy()[:, :, :9]
    assert 0.01 < np.linalg.norm(keys - expected) / np.linalg.norm(expected) < 0.15


def test_parity_compares_the_graph_and_what_the_runtime_makes_of_it(mixed: Path) -> None:
    report = check_parity(mixed)
    assert report.is_same, "\n".join(as_text(report))
    assert {"draft_ids", "draft_ids as run", "base_logits as run"} <= set(report.limits)
    assert report.limits["base_logits"].atol < 1e-4 < report.limits["base_logits as run"].atol
    assert len(report.rounds) == 24
    table = "\n".join(as_text(report))
    assert "cache as run" in table


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--no-target-graph", "--quantize", "target:head=int8"],
            "target:head=int8, but no target",
        ),
        (["--quantize", "draft:linear=int8"], "draft:linear=int8, but no draft"),
    ],
)
def test_a_graph_that_is_not_exported_cannot_be_quantised(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    if "--no-target-graph" in arguments:
        done = export(out, *arguments)
    else:
        words = ["export", "--target", str(ASSETS / "tiny-target"), "-o", str(out), *arguments]
        done = CliRunner().invoke(group, words)
    assert done.exit_code == 1
    assert f"--quantize: got {says} graph is exported" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_table_can_be_quantised_for_lookups_alone_beside_its_tied_head(
    is_sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sampled:
        monkeypatch.setattr("draftrt.export.write_graphs.is_small", lambda tensors: False)
    out = tmp_path / "bundle"
    words = ["export", "--target", str(ASSETS / "tiny-target"), "-o", str(out)]
    words += ["--quantize", "embedding=int8", "--max-context", str(CONTEXT)]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 0, done.output
    file = onnx.load(str(out / "target.onnx"), load_external_data=False)
    head = next(node for node in reversed(file.graph.node) if node.op_type in ("Gemm", "MatMul"))
    assert "model.embed_tokens.weight" in head.input  # the table itself, not its codes
