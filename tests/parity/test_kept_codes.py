"""Graphs that hold a quantised checkpoint's own codes: which, where, and that nothing rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.quantization import Base, KeptForm, Prefer, Scheme
from tests.toys import quantized as toys
from tests.toys.quantized_target import Make, quantised_target

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.parity

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True, "desc_act": False}
ANY = ""


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}


MIXED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        name: {
            "targets": [f"re:.*{part}.*"],
            "weights": {"num_bits": bits, "group_size": 16, "strategy": "group"},
        }
        for name, part, bits in (("a", "self_attn", 4), ("b", "mlp", 8))
    },
}
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16]}
# config, what makes the linears, options of the export, the form of down_proj
ROWS: dict[str, tuple[Mapping[str, Any], Mapping[str, Make], list[str], KeptForm | None]] = {
    "gptq": (
        GPTQ,
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16)},
        [],
        KeptForm(Scheme.INT4, 16),
    ),
    "gptq in the order of activations": (
        {**GPTQ, "desc_act": True},
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16, scattered=True)},
        [],
        KeptForm(Scheme.INT4, 16, is_ordered=True),
    ),
    "the same with zero points": (
        {**GPTQ, "desc_act": True, "sym": False},
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16, scattered=True, sym=False)},
        [],
        KeptForm(Scheme.INT4, 16, is_ordered=True, base=Base.ZEROS),
    ),
    "gptq with zero points": (
        {**GPTQ, "sym": False},
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16, sym=False)},
        [],
        KeptForm(Scheme.INT4, 16, base=Base.ZEROS),
    ),
    "8 bits a row with zero points": (
        {**GPTQ, "sym": False, "bits": 8, "group_size": -1},
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=-1, bits=8, sym=False)},
        [],
        KeptForm(Scheme.INT8, base=Base.ZEROS),
    ),
    "int8 a row": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        {ANY: lambda r, n, k: toys.compressed(r, n, k, bits=8, group=-1, packed=False)},
        [],
        KeptForm(Scheme.INT8),
    ),
    "int4 a row": (
        compressed("pack-quantized", num_bits=4, strategy="channel"),
        {ANY: lambda r, n, k: toys.compressed(r, n, k, group=-1)},
        [],
        KeptForm(Scheme.INT4),
    ),
    "nvfp4": (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group"),
        {ANY: lambda r, n, k: toys.fp4(r, n, k, layout="nvfp4")},
        [],
        KeptForm(Scheme.INT8, 16),
    ),
    "two widths": (
        MIXED,
        {
            "self_attn": lambda r, n, k: toys.compressed(r, n, k, bits=4, group=16),
            "mlp": lambda r, n, k: toys.compressed(r, n, k, bits=8, group=16),
        },
        [],
        KeptForm(Scheme.INT8, 16),
    ),
    "fp8 for any GPU": (
        FP8,
        {ANY: lambda r, n, k: toys.fp8(r, n, k, block=(16, 16))},
        [],
        None,
    ),
    "fp8 for GPUs that have it": (
        FP8,
        {ANY: lambda r, n, k: toys.fp8(r, n, k, block=(16, 16))},
        ["--sm", "89,120"],
        KeptForm(Scheme.FP8, 16),
    ),
    "fp8 in few bytes": (
        FP8,
        {ANY: lambda r, n, k: toys.fp8(r, n, k, block=(16, 16))},
        ["--prefer", "small"],
        KeptForm(Scheme.FP8, 16),
    ),
    "gptq with zero points in one sum": (
        {**GPTQ, "desc_act": True, "sym": False},
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16, scattered=True, sym=False)},
        ["--prefer", "exact"],
        KeptForm(Scheme.INT8, 16, is_ordered=True),
    ),
    "gptq for old operators": (
        GPTQ,
        {ANY: lambda r, n, k: toys.gptq(r, n, k, group=16)},
        ["--graph", "compat"],
        None,
    ),
}
DOWN = "model.layers.3.mlp.down_proj"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [*map(str, arguments)])


@pytest.fixture
def target(root: Path) -> Path:
    return root / "tests" / "assets" / "tiny-target"


QUICK = ("gptq", "the same with zero points", "int8 a row", "nvfp4", "fp8 in few bytes")


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.extended) for one in ROWS]
)
def test_a_graph_holds_the_checkpoints_own_codes(name: str, target: Path, tmp_path: Path) -> None:
    quantization, make, options, form = ROWS[name]
    folder, out = tmp_path / "target", tmp_path / "bundle"
    weights = quantised_target(target, folder, quantization, make)
    done = run("export", "--target", folder, "-o", out, "--max-context", 32, *options)
    assert done.exit_code == 0, done.output
    entry = Bundle.open(out).graph("target")
    assert entry.kept.get(f"{DOWN}.weight") == form
    assert len(entry.kept) == (0 if form is None else 42)
    assert all(line.endswith("largest change 0") for line in entry.stored)
    assert entry.stored[0] in done.output
    model = onnx.load(str(out / entry.file))
    stored = {one.name: one for one in model.graph.initializer}
    if form is None:
        held = onnx.numpy_helper.to_array(stored[f"{DOWN}.weight"])
    else:
        codes = onnx.numpy_helper.to_array(stored[f"{DOWN}.weight.codes"]).astype(np.float32)
        scales = onnx.numpy_helper.to_array(stored[f"{DOWN}.weight.scales"])
        if form.block is not None:
            scales = np.repeat(scales, form.block, axis=0)
        if form.base:
            zeros = onnx.numpy_helper.to_array(stored[f"{DOWN}.weight.zeros"]).astype(np.float32)
            codes += np.repeat(zeros, form.block or len(codes), axis=0)
        held = (codes * scales).T
    if form is not None and form.is_ordered:
        order = onnx.numpy_helper.to_array(stored[f"{DOWN}.weight.order"])
        held = held[:, np.argsort(order)]
    np.testing.assert_array_equal(held, weights[DOWN])
    if form is None or form.scheme is not Scheme.FP8:  # of FP8 the runtime makes float32
        assert run("validate", "parity", out).exit_code == 0


@pytest.mark.parametrize("name", ["the same with zero points", "nvfp4"])
def test_codes_that_stand_for_other_weights_are_refused(
    name: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftrt.export.weights.kept import kept_rows

    def wrong(*arguments: Any) -> Any:
        codes, scales, base = kept_rows(*arguments)
        return codes, scales * 1.01, base

    monkeypatch.setattr("draftrt.export.weights.quantized.kept_rows", wrong)
    quantization, make, options, _ = ROWS[name]
    quantised_target(target, tmp_path / "target", quantization, make)
    out = tmp_path / "bundle"
    done = run("export", "--target", tmp_path / "target", "-o", out, "--max-context", 32, *options)
    assert done.exit_code == 1
    assert "codes and scales stand for weights that differ by" in done.output
    assert not out.exists()


def test_the_codes_of_a_packed_checkpoint_are_those_of_the_graph(
    target: Path, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {}

    def make(rng: np.random.Generator, out: int, width: int) -> toys.Made:
        made = toys.compressed(rng, out, width, group=16)
        parts[f"{out}x{width}"] = made[0]
        return made

    quantization = compressed("pack-quantized", num_bits=4, group_size=16, strategy="group")
    quantised_target(target, tmp_path / "target", quantization, {"layers.3.mlp.down_proj": make})
    done = run("export", "--target", tmp_path / "target", "-o", tmp_path / "b", "--max-context", 32)
    assert done.exit_code == 0, done.output
    model = onnx.load(str(tmp_path / "b" / "target.onnx"))
    [codes] = [one for one in model.graph.initializer if one.name.endswith(".codes")]
    packed = parts["80x224"]["weight_packed"][1].view(np.uint32)
    raw = np.frombuffer(codes.raw_data, np.uint8)
    held = np.stack((raw & 15, raw >> 4), axis=1).reshape(224, 80)
    for column in range(224):  # packed along the inputs, eight a word, eight more than in the graph
        word = (packed[:, column // 8] >> (column % 8 * 4)) & 15
        np.testing.assert_array_equal(held[column] ^ 8, word)


FUSED = ("the same with zero points", "nvfp4")
MORE_FUSED = ("gptq", "int8 a row", "8 bits a row with zero points", "two widths", "int4 a row")


@pytest.mark.parametrize(
    "name", [*FUSED, *(pytest.param(one, marks=pytest.mark.extended) for one in MORE_FUSED)]
)
def test_products_with_kept_codes_are_one_kernel(name: str, target: Path, tmp_path: Path) -> None:
    quantization, make, _, _ = ROWS[name]
    quantised_target(target, tmp_path / "target", quantization, make)
    run("export", "--target", tmp_path / "target", "-o", tmp_path / "b", "--max-context", 32)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    file = str(tmp_path / "b" / "target.flexible.onnx")
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulNBits") == 42
    assert "DequantizeLinear" not in kinds


def test_what_is_not_quantised_yet_is_quantised_beside(target: Path, tmp_path: Path) -> None:
    quantization, make, _, _ = ROWS["gptq"]
    quantised_target(target, tmp_path / "target", quantization, make)
    out = tmp_path / "b"
    done = run(
        "export", "--target", tmp_path / "target", "-o", out, "--max-context", 32,
        "--quantize", "target:int8",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "linear stays in the codes of its checkpoint" in done.output
    entry = Bundle.open(out).graph("target")
    assert {part.value: one.value for part, one in entry.quantization.items()} == {"head": "int8"}
    assert run("validate", "parity", out).exit_code == 0


def test_rounding_is_said(target: Path, tmp_path: Path) -> None:
    quantization, make, _, _ = ROWS["gptq"]
    quantised_target(target, tmp_path / "target", quantization, make)
    out = tmp_path / "b"
    done = run(
        "export", "--target", tmp_path / "target", "-o", out, "--max-context", 32,
        "--precision", "bf16",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    [line] = Bundle.open(out).graph("target").stored
    assert 1e-3 < float(line.rpartition(" ")[2]) < 4e-3
    shown = run("inspect", out)
    assert line in shown.output
    assert json.loads(run("inspect", out, "--json").output)["graphs"]["target"]["stored"] == [line]


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.extended)])
def test_sums_of_blocks_are_added_in_float32(precision: str, target: Path, tmp_path: Path) -> None:
    quantization, make, _, _ = ROWS["gptq with zero points"]
    quantised_target(target, tmp_path / "target", quantization, make)
    out = tmp_path / "b"
    arguments = ["--target", tmp_path / "target", "-o", out, "--max-context", 32]
    done = run("export", *arguments, "--precision", precision)
    assert done.exit_code == 0, done.output
    graph = onnx.load(str(out / "target.onnx"), load_external_data=False).graph
    made = {node.output[0]: node for node in graph.node}
    added = [node for node in graph.node if node.op_type == "Add" and node.name.endswith(".sum")]
    assert len(added) == 42
    assert {made[name].op_type for node in added for name in node.input} == {"Cast", "MatMul"}
    sums = [node for node in graph.node if node.op_type == "ReduceSum"]
    assert len(sums) == 4 * 6  # q, k and v share one, gate and up another


def test_a_graph_is_built_for_the_gpus_that_it_was_exported_for(
    target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "b"
    arguments = ["--target", target, "-o", out, "--max-context", 32, "--sm", "89,120"]
    assert run("export", *arguments, "--prefer", "small").exit_code == 0
    entry = Bundle.open(out).graph("target")
    assert (entry.sms, entry.prefer) == ((89, 120), Prefer.SMALL)
    told = run("build", out, "--graph", "target", "--sm", "86,120")
    assert told.exit_code == 1
    assert "SM86: the target graph was exported for --sm 89,120 alone" in told.output


def test_kept_fp8_is_refused_where_a_gpu_lacks_it(target: Path, tmp_path: Path) -> None:
    quantization, make, options, _ = ROWS["fp8 for GPUs that have it"]
    quantised_target(target, tmp_path / "target", quantization, make)
    out = tmp_path / "b"
    arguments = ["--target", tmp_path / "target", "-o", out, "--max-context", 32, *options]
    assert run("export", *arguments).exit_code == 0
    told = run("build", out, "--graph", "target", "--sm", "86,89")
    assert told.exit_code == 1
    assert "SM86" in told.output
    assert "SM89 on" in told.output


def test_a_large_graph_with_gathered_inputs_is_checked_by_samples(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftrt.export.write_graphs.is_small", lambda tensors: False)
    quantization, make, _, _ = ROWS["gptq in the order of activations"]
    quantised_target(target, tmp_path / "target", quantization, make)
    done = run("export", "--target", tmp_path / "target", "-o", tmp_path / "b")
    assert done.exit_code == 0, done.output
    assert "layer 0 stands for 5 more" in done.output


def test_layers_in_several_forms_are_each_checked(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftrt.export.write_graphs.is_small", lambda tensors: False)
    groups = {
        name: {
            "targets": [pattern],
            "weights": {"num_bits": bits, "group_size": 16, "strategy": "group"},
        }
        for name, pattern, bits in (("a", r"re:.*layers\.[024]\.", 4), ("b", "Linear", 8))
    }
    of_bits: dict[int, Make] = {
        4: lambda r, n, k: toys.compressed(r, n, k, bits=4, group=16),
        8: lambda r, n, k: toys.compressed(r, n, k, bits=8, group=16),
    }
    make = {f"layers.{layer}.": of_bits[8 if layer % 2 else 4] for layer in range(6)}
    quantised_target(target, tmp_path / "target", {**MIXED, "config_groups": groups}, make)
    done = run("export", "--target", tmp_path / "target", "-o", tmp_path / "b")
    assert done.exit_code == 0, done.output
    assert "layer 0 stands for 2 more" in done.output
    assert "layer 1 stands for 2 more" in done.output


def test_plan_counts_the_codes_of_a_target_alone(target: Path, tmp_path: Path) -> None:
    quantization, make, _, _ = ROWS["gptq"]
    quantised_target(target, tmp_path / "target", quantization, make)
    arguments = ["--target", tmp_path / "target", "--max-context", 32, "--precision", "fp32"]
    planned = run("plan", *arguments, "--json")
    assert planned.exit_code == 0, planned.output
    out = tmp_path / "b"
    run("export", "--target", tmp_path / "target", "-o", out, "--max-context", 32)
    made = Bundle.open(out).graph("target").weight_bytes
    assert json.loads(planned.stdout)["graphs"]["target"]["weights"] == made
    assert run("plan").exit_code == 2
    assert run("plan", *arguments, "--family", "dflash").exit_code == 2
