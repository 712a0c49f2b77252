"""Configs of Qwen3.5 targets: which layers keep a state, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftrt.errors import DraftrtError
from draftrt.export.checkpoint.decoder import read_decoder
from draftrt.export.checkpoint.target import read_target
from draftrt.export.config.manifest_facts import check_facts
from draftrt.spec import DecoderSpec

TARGET = Path(__file__).parents[3] / "golden-targets" / "text-only" / "target"
Read = Callable[..., DecoderSpec]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read the recorded target with some keys of its config changed; None leaves one out."""

    def changed(**keys: Any) -> DecoderSpec:
        folder = tmp_path / "target"
        shutil.copytree(TARGET, folder, dirs_exist_ok=True)
        config = json.loads((TARGET / "config.json").read_text()) | keys
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))
        return read_decoder(read_target(folder))

    return changed


LINEAR, FULL = "linear_attention", "full_attention"
LISTED = [LINEAR, LINEAR, FULL] * 2


def test_an_interval_and_a_list_say_which_layers_keep_a_state(read: Read) -> None:
    for keys in ({}, {"full_attention_interval": None, "layer_types": LISTED}):
        delta = read(**keys).delta
        assert delta is not None
        assert delta.layers == (0, 1, 3, 4)
        assert (delta.num_key_heads, delta.key_dim, delta.value_dim) == (4, 20, 16)


def test_a_list_wins_over_an_interval_as_in_the_published_code(read: Read) -> None:
    delta = read(layer_types=[FULL, *LISTED[1:]]).delta
    assert delta is not None
    assert delta.layers == (1, 3, 4)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"full_attention_interval": None}, "layer_types is missing"),
        ({"layer_types": [LINEAR] * 6}, "expected one layer of it"),
        ({"layer_types": [LINEAR, FULL]}, "expected 6 of full_attention, linear_attention"),
        ({"layer_types": ["mamba", *LISTED[1:]]}, "expected 6 of full_attention"),
        ({"attn_output_gate": False}, "attn_output_gate: got False, expected True"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"linear_num_value_heads": 6}, "no multiple of linear_num_key_heads 4"),
        ({"linear_conv_kernel_dim": None}, "linear_conv_kernel_dim"),
        ({"num_experts": 8}, "a mixture of experts"),
        ({"architectures": ["Qwen3_5MoeForCausalLM"]}, "a mixture of experts"),
        ({"model_type": "qwen3"}, "model_type"),
        ({"linear_allow_neg_eigval": True}, "linear_allow_neg_eigval"),
    ],
)
def test_what_other_layers_would_compute_is_refused(
    read: Read, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(DraftrtError) as caught:
        read(**keys)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (4, 3)},
        {"layers": (0, 6)},
        {"num_value_heads": 6},
        {"key_dim": 0},
        {"kernel_size": 1},
        {"carried_rows": 0},
    ],
)
def test_a_manifest_with_impossible_states_is_refused(read: Read, change: dict[str, Any]) -> None:
    spec = read()
    check_facts(spec, "it")
    assert spec.delta is not None
    with pytest.raises(DraftrtError, match="delta"):
        check_facts(replace(spec, delta=replace(spec.delta, **change)), "it")
