"""Keys that are easily overlooked: each changes what a drafter computes, so none may be ignored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter
from tests.unit.export.test_right_answers import rounds_of

ZLAB, DFLASH2, DSPARK = Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2, Kind.DEEPSPEC_DSPARK
SPEC2 = Kind.SPECULATORS_DFLASH2
GEMMA, SPEC = Kind.DEEPSPEC_GEMMA4, Kind.SPECULATORS_DFLASH
WINDOWS = {"sliding_window": 3}
SWA = {"dflash_config.use_swa": True, "dflash_config.swa_window_size": 3}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, **parameters}}


ROWS: dict[str, tuple[Kind, Mapping[str, Any], Mapping[str, Any]]] = {
    "interleaved layout": (ZLAB, {}, {"is_neox_style": False}),
    "interleaved layout, SGLang's key": (ZLAB, {}, {"rope_is_neox_style": False}),
    "interleaved layout, nested": (ZLAB, {}, {"dflash_config.is_neox_style": False}),
    "theta": (ZLAB, {}, rope(rope_theta=1e6)),
    "linear rope": (ZLAB, {}, rope(rope_type="linear", factor=2.0)),
    "causal full layers": (ZLAB, {}, {"is_causal": True}),
    "causal full layers, nested": (ZLAB, {}, {"dflash_config.causal": True}),
    "sliding layers both ways": (ZLAB, WINDOWS, {"is_causal": False}),
    "speculators' windows both ways": (SPEC, WINDOWS, {"sliding_window_non_causal": True}),
    "windows of speculators' second family one way": (
        SPEC2,
        WINDOWS,
        {"sliding_window_non_causal": False},
    ),
    "use_swa": (ZLAB, {}, SWA),
    "another window": (ZLAB, WINDOWS, {"sliding_window": 4}),
    "speculators' window at the top": (
        SPEC,
        {},
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "transformer_layer_config.layer_types": None,
            "transformer_layer_config.use_sliding_window": None,
            "sliding_window": 3,
        },
    ),
    "mask id": (ZLAB, {}, {"dflash_config.mask_token_id": 7}),
    "alignment": (DSPARK, {}, {"sample_from_anchor": False}),
    "alignment by the bonus anchor": (DSPARK, {}, {"dspark_bonus_anchor": True}),
    "alignment, nested": (ZLAB, {}, {"dflash_config.sample_from_anchor": True}),
    "alignment by shifted labels": (ZLAB, {}, {"dflash_config.shift_label": True}),
    "alignment by what query zero predicts": (ZLAB, {}, {"query_zero_predicts_next": True}),
    "alignment by what query zero predicts, nested": (
        ZLAB,
        {},
        {"dflash_config.query_zero_predicts_next": True},
    ),
    "mask id in the layers' own table": (
        SPEC,
        {},
        {"mask_token_id": None, "transformer_layer_config.mask_token_id": 7},
    ),
    "block size": (ZLAB, {}, {"block_size": 5}),
    "epsilon": (ZLAB, {}, {"rms_norm_eps": 0.1}),
    "activation": (ZLAB, {}, {"hidden_act": "gelu"}),
    "embedding scale": (ZLAB, {}, {"dflash_config.input_embedding_scale": 2.0}),
    "embedding scale, top level": (ZLAB, {}, {"input_embedding_scale": 2.0}),
    "output multiplier": (ZLAB, {}, {"dflash_config.output_multiplier": 0.5}),
    "logit scale": (ZLAB, {}, {"logit_scale": 0.5}),
    "soft cap": (ZLAB, {}, {"dflash_config.final_logit_softcapping": 2.0}),
    "soft cap of DFlash2": (DFLASH2, {}, {"dflash_config.final_logit_softcapping": 2.0}),
    "another soft cap": (GEMMA, {}, {"final_logit_softcapping": 4.0}),
    "value scale": (ZLAB, {}, {"attention_value_scale": 0.6}),
    "candidates": (DFLASH2, {}, {"dflash_config.selector_top_k": 2}),
    "candidates at the top": (SPEC2, {}, {"selector_top_k": 2}),
    "partial rotary of Gemma-4": (
        GEMMA,
        {},
        {
            "rope_parameters.full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.25,
            }
        },
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_key_that_matters_changes_the_answer(
    name: str, tmp_path: Path, target: TargetCheckpoint
) -> None:
    kind, toy, change = ROWS[name]
    answers = []
    for number, overrides in enumerate(({}, change)):
        written = ToyDrafter(kind=kind, overrides=overrides, **toy)
        folder = write_drafter(tmp_path / str(number), written)
        answers.append(rounds_of(load_drafter(folder, target)))
    before, after = answers
    assert any(
        want[output].shape != got[output].shape
        or float(np.abs(want[output] - got[output]).max()) > 1e-3
        for want, got in zip(before, after, strict=True)
        for output in want
    )
