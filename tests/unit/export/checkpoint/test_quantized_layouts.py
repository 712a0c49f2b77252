"""Every layout of quantised weights against packers written from its description."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftrt.errors import DraftrtError, collect
from draftrt.export.checkpoint.quantized.read import DecodedTensors, decode
from draftrt.export.checkpoint.quantized.settings import SKIPPED, settings_of
from draftrt.export.checkpoint.safetensors import read_headers
from tests.toys import quantized as toys
from tests.toys.safetensors_file import write_tensors

MODULE = "model.layers.0.mlp.down_proj"
Stored = Mapping[str, tuple[str, toys.Array]]


def save(folder: Path, modules: Mapping[str, Stored]) -> None:
    """Write modules' tensors as a safetensors file."""
    tensors = {
        f"{module}.{last}" if last else module: one
        for module, parts in modules.items()
        for last, one in parts.items()
    }
    write_tensors(folder / "model.safetensors", tensors)


def read(folder: Path, quantization: Mapping[str, Any], parts: Stored) -> DecodedTensors:
    """Save one module and decode the folder."""
    save(folder, {MODULE: parts})
    return decode(folder, {"quantization_config": dict(quantization)}, read_headers(folder))


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def compressed(form: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    """Return a config of compressed-tensors with one group."""
    chosen = {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, **weights}
    group = {"targets": ["Linear"], "weights": chosen, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}


def modelopt(algorithm: str) -> dict[str, Any]:
    """Return a config of ModelOpt."""
    return {"quant_method": "modelopt", "quant_algo": algorithm}


Make = Callable[[np.random.Generator], toys.Made]
ROWS: dict[str, tuple[dict[str, Any], Make]] = {
    "gptq": (GPTQ, lambda r: toys.gptq(r, 24, 64)),
    "gptq without zero in the middle": (
        {**GPTQ, "sym": False},
        lambda r: toys.gptq(r, 24, 64, sym=False),
    ),
    "gptq v2": (
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
        lambda r: toys.gptq(r, 24, 64, sym=False, offset=0),
    ),
    "gptq of 8 bits": ({**GPTQ, "bits": 8}, lambda r: toys.gptq(r, 24, 64, bits=8)),
    "gptq of 8 bits with zero points": (
        {**GPTQ, "bits": 8, "sym": False},
        lambda r: toys.gptq(r, 24, 64, bits=8, sym=False),
    ),
    "gptq in the order of activations": (
        {**GPTQ, "desc_act": True},
        lambda r: toys.gptq(r, 24, 64, scattered=True),
    ),
    "gptq in the order of activations with zero points": (
        {**GPTQ, "desc_act": True, "sym": False},
        lambda r: toys.gptq(r, 24, 64, scattered=True, sym=False),
    ),
    "gptq with a short last group": ({**GPTQ}, lambda r: toys.gptq(r, 24, 80)),
    "gptq with a scale a row": (
        {**GPTQ, "group_size": -1},
        lambda r: toys.gptq(r, 24, 64, group=-1),
    ),
    "gptq of another width for some": (
        {**GPTQ, "dynamic": {"+:.*down_proj": {"bits": 8, "group_size": 16}, "-:lm_head": {}}},
        lambda r: toys.gptq(r, 24, 64, bits=8, group=16),
    ),
    "awq with a scale a row": (
        {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM"},
        lambda r: toys.awq(r, 24, 64, group=64),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        lambda r: toys.awq(r, 24, 64),
    ),
    "autoround as gptq": (
        {**ROUND, "packing_format": "auto_round:auto_gptq"},
        lambda r: toys.gptq(r, 24, 64, with_order=False),
    ),
    "autoround as it is": (
        {**ROUND, "packing_format": "auto_round"},
        lambda r: toys.gptq(r, 24, 64, offset=0, with_order=False),
    ),
    "autoround as gptqmodel": (
        {**ROUND, "sym": False, "packing_format": "auto_round:gptqmodel"},
        lambda r: toys.gptq(r, 24, 64, offset=0, sym=False, with_order=False),
    ),
    "autoround as awq": (
        {**ROUND, "sym": False, "packing_format": "auto_round:auto_awq"},
        lambda r: toys.awq(r, 24, 64),
    ),
    "autoround of another width for some": (
        {
            **ROUND,
            "packing_format": "auto_round:auto_gptq",
            "extra_config": {MODULE: {"bits": 8, "group_size": 16}},
        },
        lambda r: toys.gptq(r, 24, 64, bits=8, group=16, with_order=False),
    ),
    "packed": (compressed(), lambda r: toys.compressed(r, 24, 64)),
    "packed with zero points": (
        compressed(symmetric=False),
        lambda r: toys.compressed(r, 24, 64, sym=False),
    ),
    "packed of 8 bits": (
        compressed(num_bits=8),
        lambda r: toys.compressed(r, 24, 64, bits=8),
    ),
    "packed a row, of a width that fills no word": (
        compressed(strategy="channel", group_size=None),
        lambda r: toys.compressed(r, 20, 60, group=-1, sym=True),
    ),
    "packed a row with zero points": (
        compressed(strategy="channel", group_size=None, symmetric=False),
        lambda r: toys.compressed(r, 20, 60, group=-1, sym=False),
    ),
    "packed in the order of activations": (
        compressed(actorder="group"),
        lambda r: toys.compressed(r, 24, 64, scattered=True),
    ),
    "packed in the order of activations, as older releases say it": (
        compressed(actorder=True, symmetric=False),
        lambda r: toys.compressed(r, 24, 64, scattered=True, sym=False),
    ),
    "int8": (
        compressed("int-quantized", num_bits=8, strategy="channel", group_size=None),
        lambda r: toys.compressed(r, 24, 64, bits=8, group=-1, packed=False),
    ),
    "int8 with zero points": (
        compressed(
            "int-quantized", num_bits=8, strategy="channel", group_size=None, symmetric=False
        ),
        lambda r: toys.compressed(r, 24, 64, bits=8, group=-1, packed=False, sym=False),
    ),
    "fp8 in blocks": (FP8, lambda r: toys.fp8(r, 128, 256)),
    "fp8 in blocks with ragged edges": (FP8, lambda r: toys.fp8(r, 192, 160)),
    "fp8 in blocks, float32 scales": (FP8, lambda r: toys.fp8(r, 192, 160, scales="F32")),
    "fp8 in blocks, powers of two": (FP8, lambda r: toys.fp8(r, 192, 160, scales="F8_E8M0")),
    "fp8 in other blocks": (
        {**FP8, "weight_block_size": [32, 64]},
        lambda r: toys.fp8(r, 48, 96, block=(32, 64)),
    ),
    "fp8, one scale": (
        {"quant_method": "fp8"},
        lambda r: toys.fp8(r, 24, 64, key="weight_scale", block=None, scales="F32", shape=()),
    ),
    "fp8, a scale a row": (
        compressed(
            "float-quantized", num_bits=8, type="float", strategy="channel", group_size=None
        ),
        lambda r: toys.fp8(r, 24, 64, key="weight_scale", block=None, shape=(24, 1)),
    ),
    "fp8 in blocks of compressed-tensors": (
        compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            group_size=None,
            block_structure=[128, 128],
        ),
        lambda r: toys.fp8(r, 192, 160, key="weight_scale"),
    ),
    "fp8 in blocks of compressed-tensors, as older releases say it": (
        compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            group_size=None,
            block_structure="32x64",
        ),
        lambda r: toys.fp8(r, 48, 160, key="weight_scale", block=(32, 64)),
    ),
    "modelopt fp8": (
        modelopt("FP8"),
        lambda r: toys.fp8(r, 24, 64, key="weight_scale", block=None, scales="F32", shape=()),
    ),
    "modelopt nvfp4": (
        modelopt("NVFP4"),
        lambda r: toys.fp4(r, 24, 64, layout="modelopt", key="weight"),
    ),
    "modelopt, each layer its own": (
        {
            **modelopt("MIXED_PRECISION"),
            "quantized_layers": {MODULE: {"quant_algo": "NVFP4", "group_size": 16}},
        },
        lambda r: toys.fp4(r, 24, 64, layout="modelopt", key="weight"),
    ),
    "nvfp4": (
        compressed("nvfp4-pack-quantized", type="float", group_size=16, strategy="tensor_group"),
        lambda r: toys.fp4(r, 24, 64, layout="nvfp4"),
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", type="float"),
        lambda r: toys.fp4(r, 24, 64, layout="mxfp4"),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_layout_is_read_as_what_it_stands_for(name: str, tmp_path: Path) -> None:
    quantization, make = ROWS[name]
    parts, weight = make(np.random.default_rng(7))
    found = read(tmp_path, quantization, parts)
    collect(list(found.findings))
    assert set(found.tensors) == {f"{MODULE}.weight"}
    ref = found.tensors[f"{MODULE}.weight"]
    assert (ref.shape, ref.dtype) == (weight.shape, "float32")
    np.testing.assert_array_equal(ref.read().numpy(), weight)
    for start, stop in ((0, 1), (3, 11), (len(weight) - 5, len(weight))):
        np.testing.assert_array_equal(ref.rows(start, stop).read().numpy(), weight[start:stop])
    assert ref.rows(2, 9).rows(1, 3).read().numpy().tolist() == weight[3:5].tolist()


def test_the_experts_of_gpt_oss_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    parts, weight = toys.fp4(np.random.default_rng(1), 12, 64, layout="mxfp4")
    blocks, scales = parts["weight_packed"][1], parts["weight_scale"][1]
    name = "model.layers.0.mlp.experts.down_proj"
    stored: dict[str, Stored] = {
        f"{name}_blocks": {"": ("U8", blocks.reshape(3, 4, 2, 16))},
        f"{name}_scales": {"": ("U8", scales.reshape(3, 4, 2))},
    }
    save(tmp_path, stored)
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    found = decode(tmp_path, config, read_headers(tmp_path))
    assert not found.findings
    experts = found.tensors[name].read().numpy()
    np.testing.assert_array_equal(experts, weight.reshape(3, 4, 64).transpose(0, 2, 1))


SETTINGS = {"bits": 4, "group_size": 32, "sym": True}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("quantize_config.json", {**SETTINGS, "desc_act": False}),
        ("quantization_config.json", {**SETTINGS, "quant_method": "gptq"}),
    ],
)
def test_a_file_beside_the_config_speaks_too(
    file: str, content: Mapping[str, Any], tmp_path: Path
) -> None:
    parts, weight = toys.gptq(np.random.default_rng(3), 24, 64)
    save(tmp_path, {MODULE: parts})
    (tmp_path / file).write_text(json.dumps(content))
    found = decode(tmp_path, {}, read_headers(tmp_path))
    assert not found.findings
    np.testing.assert_array_equal(found.tensors[f"{MODULE}.weight"].read().numpy(), weight)


def test_modelopt_is_read_by_its_own_file_alone(tmp_path: Path) -> None:
    parts, weight = toys.fp4(np.random.default_rng(3), 24, 64, layout="modelopt", key="weight")
    save(tmp_path, {MODULE: {**parts, "input_scale": ("F32", np.array(1, np.float32))}})
    content = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    found = decode(tmp_path, {}, read_headers(tmp_path))
    assert not found.findings
    assert [note.split()[0] for note in found.notes] == ["activations", "kv_cache_quant_algo"]
    np.testing.assert_array_equal(found.tensors[f"{MODULE}.weight"].read().numpy(), weight)


def test_each_module_is_read_by_its_own_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    (four, weight4), (eight, weight8) = (toys.compressed(rng, 24, 64, bits=n) for n in (4, 8))
    groups = {
        name: {"targets": targets, "weights": {"num_bits": bits, **rest}}
        for name, targets, bits in (
            ("a", ["re:.*self_attn.*"], 4),
            ("b", ["Linear"], 8),
        )
        for rest in ({"group_size": 32, "strategy": "group"},)
    }
    attention = "model.layers.0.self_attn.q_proj"
    save(tmp_path, {attention: four, MODULE: eight})
    table = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups,
    }
    found = decode(tmp_path, {"quantization_config": table}, read_headers(tmp_path))
    assert not found.findings
    for name, weight in ((attention, weight4), (MODULE, weight8)):
        np.testing.assert_array_equal(found.tensors[f"{name}.weight"].read().numpy(), weight)


def other(parts: Stored, **changes: Any) -> dict[str, tuple[str, toys.Array]]:
    """Return the tensors with some replaced, or removed by None."""
    return {name: one for name, one in {**parts, **changes}.items() if one is not None}


def stored(parts: Stored, key: str, change: Callable[[toys.Array], Any]) -> dict[str, Any]:
    """Return the tensors with one array changed."""
    dtype, array = parts[key]
    return other(parts, **{key: (dtype, change(array.copy()))})


def assigned(where: Any, value: int) -> Callable[[toys.Array], toys.Array]:
    """Return what sets elements of an array."""

    def change(array: toys.Array) -> toys.Array:
        array[where] = value
        return array

    return change


BAD = np.array([0x44444444], np.uint32).view(np.int32)[0]
BROKEN: dict[str, tuple[dict[str, Any], Make, Callable[[Stored], Stored], str]] = {
    "no scales": (GPTQ, ROWS["gptq"][1], lambda p: other(p, scales=None), r"no scales"),
    "no codes": (GPTQ, ROWS["gptq"][1], lambda p: other(p, qweight=None), r"and no codes"),
    "no zero points": (GPTQ, ROWS["gptq"][1], lambda p: other(p, qzeros=None), "no zero points"),
    "other bits": (
        {**GPTQ, "bits": 8},
        ROWS["gptq"][1],
        lambda p: p,
        r"states 8 bits; .*qweight of 8 rows for 64 inputs holds 4",
    ),
    "other groups": (
        {**GPTQ, "group_size": 16},
        ROWS["gptq"][1],
        lambda p: p,
        r"scales has 2 groups, and 64 inputs of .* in groups of 16 need 4",
    ),
    "a group that is none": (
        {**GPTQ, "desc_act": True},
        ROWS["gptq"][1],
        lambda p: stored(p, "g_idx", assigned(5, 2)),
        r"g_idx: got group 2, expected 0 to 1",
    ),
    "groups that are not full": (
        {**GPTQ, "desc_act": True},
        ROWS["gptq"][1],
        lambda p: stored(p, "g_idx", assigned(5, 1)),
        r"g_idx gives group 0 other than 32 inputs",
    ),
    "an order that is denied": (
        GPTQ,
        ROWS["gptq in the order of activations"][1],
        lambda p: p,
        r"g_idx puts inputs out of order",
    ),
    "an order that is missing": (
        {**GPTQ, "desc_act": True},
        ROWS["gptq"][1],
        lambda p: other(p, g_idx=None),
        r"no .*g_idx",
    ),
    "a zero point out of range": (
        {**GPTQ, "sym": False},
        ROWS["gptq"][1],
        lambda p: stored(p, "qzeros", assigned((0, 0), -1)),
        r"qzeros: stored 15 means zero point 16, which 4 bits do not hold",
    ),
    "zero points that are denied": (
        GPTQ,
        ROWS["gptq"][1],
        lambda p: stored(p, "qzeros", assigned((0, 0), int(BAD))),
        r"qzeros: zero point 5, and symmetric",
    ),
    "the other version's zero points": (
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        ROWS["gptq"][1],
        lambda p: p,
        r"qzeros: zero point 7, and symmetric",
    ),
    "awq of other bits": (
        {"quant_method": "awq", "bits": 8, "group_size": 32},
        ROWS["awq"][1],
        lambda p: p,
        r"bits: got 8, expected 4",
    ),
    "packed of other bits": (
        compressed(num_bits=8),
        ROWS["packed"][1],
        lambda p: p,
        r"states 8 bits; .*weight_packed of 8 columns for 64 inputs holds 4",
    ),
    "packed without its shape": (
        compressed(),
        ROWS["packed"][1],
        lambda p: other(p, weight_shape=None),
        r"no shape",
    ),
    "packed without zero points": (
        compressed(symmetric=False),
        ROWS["packed"][1],
        lambda p: p,
        r"no zero points",
    ),
    "packed with zero points that are denied": (
        compressed(),
        ROWS["packed with zero points"][1],
        lambda p: p,
        r"weight_zero_point has zero points other than 0",
    ),
    "stored twice": (
        compressed(),
        ROWS["packed"][1],
        lambda p: other(p, weight=("F32", np.zeros((24, 64), np.float32))),
        r"stored twice: weight_packed and weight",
    ),
    "scales of floats": (
        compressed(),
        ROWS["packed"][1],
        lambda p: {
            "weight": ("F32", np.zeros((24, 64), np.float32)),
            "weight_scale": p["weight_scale"],
        },
        r"weight is float32, and there are weight_scale beside it",
    ),
    "too few blocks": (
        FP8,
        ROWS["fp8 in blocks with ragged edges"][1],
        lambda p: stored(p, "weight_scale_inv", lambda a: a[:1]),
        r"weight_scale_inv is \[1, 2\], .*needs \[2, 2\]",
    ),
    "fp8 without scales": (
        FP8,
        ROWS["fp8 in blocks"][1],
        lambda p: other(p, weight_scale_inv=None),
        r"no scales",
    ),
    "fp8 with scales twice": (
        FP8,
        ROWS["fp8 in blocks"][1],
        lambda p: other(p, weight_scale=p["weight_scale_inv"]),
        r"has scales twice",
    ),
    "no global scale": (
        ROWS["nvfp4"][0],
        ROWS["nvfp4"][1],
        lambda p: other(p, weight_global_scale=None),
        r"no global scale",
    ),
    "scaled inputs": (
        modelopt("NVFP4"),
        ROWS["modelopt nvfp4"][1],
        lambda p: other(p, pre_quant_scale=("F32", np.ones(64, np.float32))),
        r"pre_quant_scale",
    ),
    "a module that is to be left": (
        {**GPTQ, "modules_to_not_convert": ["re:.*down_proj"]},
        ROWS["gptq"][1],
        lambda p: p,
        r"says that it is not quantised \(re:",
    ),
    "no group for it": (
        {
            **compressed(),
            "config_groups": {
                "g": {**compressed()["config_groups"]["g"], "targets": ["re:.*self_attn.*"]}
            },
        },
        ROWS["packed"][1],
        lambda p: p,
        r"no group of config_groups",
    ),
    "nothing is quantised": (
        GPTQ,
        ROWS["gptq"][1],
        lambda p: {"weight": ("F32", np.zeros((24, 64), np.float32))},
        r"names gptq, and no tensor is quantised",
    ),
    "rotated layers": (
        {**compressed(), "transform_config": {"config_groups": {"R1": {}}}},
        ROWS["packed"][1],
        lambda p: p,
        r"transform_config: got",
    ),
    **{
        f"the method {method}": (
            {"quant_method": method},
            ROWS["gptq"][1],
            lambda p: p,
            rf"quant_method {method} is not read.*read are gptq, awq",
        )
        for method in ("torchao", "bitsandbytes", "exl3", "hqq", "aqlm", "quanto")
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_refused_in_one_finding(name: str, tmp_path: Path) -> None:
    quantization, make, change, says = BROKEN[name]
    parts, _ = make(np.random.default_rng(7))
    found = read(tmp_path, quantization, change(parts))
    assert len(found.findings) == 1
    with pytest.raises(DraftrtError, match=says):
        collect(list(found.findings))


def test_two_files_that_disagree_are_refused(tmp_path: Path) -> None:
    parts, _ = toys.gptq(np.random.default_rng(3), 24, 64)
    save(tmp_path, {MODULE: parts})
    (tmp_path / "quantize_config.json").write_text(json.dumps({**SETTINGS, "bits": 8}))
    found = decode(tmp_path, {"quantization_config": GPTQ}, read_headers(tmp_path))
    assert "quantization_config.bits is 4, and quantize_config.json.bits is 8" in str(
        found.findings[0]
    )


@pytest.mark.parametrize(
    ("entry", "names", "others"),
    [
        ("lm_head", ["lm_head", "model.lm_head"], ["model.lm_header", "lm_head2.x"]),
        ("model.layers.0", ["model.layers.0.mlp.up_proj"], ["model.layers.01.mlp.up_proj"]),
        ("mlp.gate", ["model.layers.1.mlp.gate"], ["model.layers.1.mlp.gate_proj"]),
        ("model.layers.0*", ["model.layers.0.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
        ("*self_attn*", ["model.layers.0.self_attn.q_proj"], ["model.layers.0.mlp.up_proj"]),
        ("re:.*down_proj$", ["model.layers.0.mlp.down_proj"], ["model.layers.0.mlp.up_proj"]),
        ("re:layers", ["layers.0.fc"], ["model.layers.0.fc"]),
    ],
)
@pytest.mark.parametrize("key", SKIPPED)
def test_a_list_of_modules_is_understood(
    key: str, entry: str, names: list[str], others: list[str]
) -> None:
    settings = settings_of({"quantization_config": {"quant_method": "fp8", key: [entry]}})
    assert [bool(settings.skips(name)) for name in (*names, *others)] == [True] * len(names) + [
        False
    ] * len(others)
