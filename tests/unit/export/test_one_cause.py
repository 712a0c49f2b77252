"""Broken checkpoints: one cause is one finding, and the first line says what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from draftrt.errors import CheckpointError, SpecError, collect
from tests.toys.formats import drafter_arrays
from tests.toys.models import REMOVED, Kind, ToyDrafter

ZLAB, DSPARK, GEMMA = Kind.ZLAB_DFLASH, Kind.DEEPSPEC_DSPARK, Kind.DEEPSPEC_GEMMA4
PACKED = {
    name: np.zeros((array.shape[0], max(1, array.shape[1] // 8)), np.int32)
    for name, array in drafter_arrays(ToyDrafter(kind=ZLAB)).items()
    if array.ndim == 2
}
SCALES = {
    name.replace(".weight", f".{part}"): np.zeros((len(array), 2), np.float32)
    for name, array in PACKED.items()
    for part in ("scales", "biases")
}
MLX = {"quantization": {"bits": 4, "group_size": 64}}
DOUBLE = {
    name: array.astype(np.float64) for name, array in drafter_arrays(ToyDrafter(kind=ZLAB)).items()
}
EXPERTS = {
    f"layers.{layer}.mlp.experts.{expert}.up_proj.weight": np.zeros((4, 40), np.float32)
    for layer in range(2)
    for expert in range(8)
}
COMPRESSED = {
    f"layers.{layer}.mlp.up_proj.{part}": np.zeros((4, 4), np.int32)
    for layer in range(2)
    for part in ("weight_packed", "weight_shape")
}
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1024}
ROWS: dict[str, tuple[Kind, Mapping[str, Any], Mapping[str, Any], str]] = {
    "MLX": (ZLAB, MLX, {**PACKED, **SCALES}, "quantised weights (MLX, 4 bits) are not"),
    "MLX under two keys": (
        ZLAB,
        {**MLX, "quantization_config": MLX["quantization"]},
        {},
        "(MLX, 4",
    ),
    "MLX by its tensors": (ZLAB, {}, {**PACKED, **SCALES}, "quantised weights (MLX) are not"),
    "FP8": (
        ZLAB,
        {"quantization_config": {"quant_method": "fp8"}},
        {"layers.0.mlp.up_proj.weight_scale_inv": np.zeros((4, 4), np.float32)},
        "layers.0.mlp.up_proj.weight is float32, and there are weight_scale_inv beside it",
    ),
    "compressed-tensors": (
        ZLAB,
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
        COMPRESSED,
        "quantization_config.config_groups: got None, expected one group or more",
    ),
    "quantised by its config alone": (
        ZLAB,
        {"quantization_config": {"quant_algo": "NVFP4"}},
        {},
        "quantization_config names modelopt, and no tensor is quantised",
    ),
    "packed weights alone": (ZLAB, {}, PACKED, "quantised weights (dtype int32)"),
    "float64": (ZLAB, {}, DOUBLE, "got float64, expected a 16- or 32-bit float"),
    "head_dim": (ZLAB, {"head_dim": 32}, {}, "head_dim: got 32 (head_dim), but 12 tensors"),
    "head_dim by default": (ZLAB, {"head_dim": REMOVED}, {}, "head_dim: got 128 (default 128 of"),
    "hidden size of Gemma-4's heads": (GEMMA, {"global_head_dim": 32}, {}, "head_dim: got 32"),
    "intermediate size": (ZLAB, {"intermediate_size": 99}, {}, "intermediate_size: got 99"),
    "number of heads": (ZLAB, {"num_attention_heads": 8}, {}, "num_heads: got 8"),
    "key and value heads": (ZLAB, {"num_key_value_heads": 4}, {}, "num_kv_heads: got 4"),
    "layers": (ZLAB, {"num_hidden_layers": 1, "layer_types": REMOVED}, {}, "nothing asks for"),
    "one shape in every layer": (
        ZLAB,
        {},
        {f"layers.{i}.self_attn.o_proj.weight": np.zeros((64, 40), np.float32) for i in range(2)},
        "tensor 'layers.0.self_attn.o_proj.weight' and 1 more: got shape [64, 40]",
    ),
    "experts": (
        DSPARK,
        {"num_experts": 8, "n_routed_experts": 8},
        EXPERTS,
        "(MoE) is not supported",
    ),
    "experts by their tensors": (DSPARK, {}, EXPERTS, "and 15 more: a mixture of experts (MoE)"),
    "sliding Gemma-4 layers": (GEMMA, SLIDING, {}, "sliding Gemma-4 layers are not known"),
    "sliding Gemma-4 layers of other heads": (
        GEMMA,
        {**SLIDING, "head_dim": 8, "global_head_dim": 32},
        {},
        "sliding Gemma-4 layers are not known",
    ),
    "an own head of another size": (
        DSPARK,
        {},
        {"lm_head.weight": np.zeros((250, 40), np.float32)},
        "but lm_head.weight has 250 rows",
    ),
    "d2t as floats": (
        Kind.SPECULATORS_DFLASH,
        {},
        {"d2t": np.zeros(264, np.float32)},
        "d2t: got float32",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_one_cause_is_one_finding(
    name: str, draft: Callable[..., Path], target_folder: Path, inspect: Callable[..., Result]
) -> None:
    kind, config, extra, says = ROWS[name]
    told = inspect(draft(kind, overrides=config, extra=extra), "--target", target_folder)
    assert told.exit_code == 1
    assert "problems found" not in told.stderr, told.stderr
    assert says in told.stderr.splitlines()[0]


def test_a_target_of_another_width_is_one_finding(
    draft: Callable[..., Path], other_target: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    told = inspect(draft(ZLAB), "--target", other_target(hidden_size=48))
    assert "problems found" not in told.stderr
    assert "the drafter expects 40, the target has 48" in told.stderr.splitlines()[0]


def test_findings_that_were_put_together_before_are_counted_one_by_one() -> None:
    with pytest.raises(CheckpointError) as inner:
        collect([CheckpointError("a", hint="x"), CheckpointError("b")])
    with pytest.raises(CheckpointError) as outer:
        collect([inner.value, SpecError("c"), SpecError("c")])
    lines = str(outer.value).splitlines()
    assert lines == ["3 problems found:", "  1. a", "     Hint: x", "  2. b", "  3. c"]
