"""Published targets get a target graph, with the facts their configs state; others say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftrt.errors import ChoiceError, DraftrtError
from draftrt.export.checkpoint.decoder import read_decoder, try_decoder
from draftrt.export.checkpoint.target import read_target
from draftrt.spec import DecoderSpec
from tests.unit.export.checkpoint.published_targets import BY_NAME, LLAMA3, ROWS, Row
from tests.unit.export.published_files import Shapes, write_headers

SMOLLM2 = BY_NAME["SmolLM2-135M-Instruct"]
QWEN3 = BY_NAME["Qwen3-0.6B"]


def write(folder: Path, config: dict[str, Any], *, tied: bool) -> Path:
    """Write a folder with a config and the two tables."""
    text = config.get("text_config", config)
    size = (text["vocab_size"], text["hidden_size"])
    prefix = "model.language_model." if "text_config" in config else "model."
    tables: Shapes = {f"{prefix}embed_tokens.weight": size}
    if not tied:
        tables["lm_head.weight"] = size
    return write_headers(folder / "target", config, tables)


def spec_of(
    folder: Path, row: Row, *, ignore: frozenset[str] = frozenset(), **changes: Any
) -> DecoderSpec:
    config = {key: value for key, value in {**row.config, **changes}.items() if value != "absent"}
    return read_decoder(read_target(write(folder, config, tied=row.tied)), ignore)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_published_config_gives_a_target_graph(row: Row, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, row)
    config = row.config.get("text_config", row.config)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == row.heads
    assert (spec.rope.theta, spec.rope.type) == row.theta
    assert spec.tie_word_embeddings == row.tied
    assert spec.qkv_bias == row.bias
    windows = [window for window in spec.windows if window is not None]
    assert {window: windows.count(window) for window in windows} == row.windows
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size) == tuple(
        config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    assert spec.rms_norm_eps == config["rms_norm_eps"]


def test_the_windows_of_a_qwen2_are_in_its_last_layers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, BY_NAME["a Qwen2 with windows in its last layers"])
    assert spec.windows == (None,) * 21 + (4096,) * 7


QUANTISED = {"quant_method": "bitsandbytes", "load_in_4bit": True}
ON = [
    (SMOLLM2, {"rope_interleaved": True}, "rope_interleaved: got true"),
    (SMOLLM2, {"rope_interleaved": "no"}, "rope_interleaved: got 'no', expected true or false"),
    (SMOLLM2, {"use_mrope": True}, "use_mrope: got True, expected False"),
    (SMOLLM2, {"activation": "gelu"}, "activation: got 'gelu'"),
    (SMOLLM2, {"num_local_experts": 8}, "num_local_experts: got 8"),
    (SMOLLM2, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: got 50.0"),
    (SMOLLM2, {"residual_multiplier": 0.22}, "residual_multiplier: got 0.22"),
    (SMOLLM2, {"no_rope_layers": [1, 1, 1, 0]}, r"no_rope_layers: got \[1, 1, 1, 0\]"),
    (SMOLLM2, {"attention_chunk_size": 8192}, "attention_chunk_size: got 8192"),
    (SMOLLM2, {"use_bidirectional_attention": True}, "use_bidirectional_attention: got True"),
    (SMOLLM2, {"model_type": "mistral"}, "model_type: got 'mistral', expected 'llama'"),
    (SMOLLM2, {"quantization_config": QUANTISED}, "quant_method bitsandbytes is not"),
    (SMOLLM2, {"quantization": {"group_size": 64, "bits": 4}}, "quantised weights .*quantization"),
    (SMOLLM2, {"rope_scaling": {**LLAMA3, "attn_factor": 0.9}}, "attn_factor: got 0.9"),
    (SMOLLM2, {"rope_scaling": {**LLAMA3, "surprise": 1}}, r"unknown keys \['surprise'\]"),
    (SMOLLM2, {"layer_types": ["sliding_attention"] * 30}, "no window is set"),
    (QWEN3, {"rope_theta": "absent"}, "rope theta is missing"),
    (QWEN3, {"use_sliding_window": True, "sliding_window": "absent"}, "sliding_window is missing"),
    (
        QWEN3,
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": None},
        "neither layer_types nor max_window_layers",
    ),
    (
        BY_NAME["Qwen2.5-0.5B"],
        {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
        "dual_chunk_attention_config: got .* attention by chunks",
    ),
    (SMOLLM2, {"architectures": ["SmolLM3ForCausalLM"]}, "'SmolLM3ForCausalLM' cannot be exported"),
]


@pytest.mark.parametrize(("row", "changes", "says"), ON, ids=[str(one[1])[:50] for one in ON])
def test_what_changes_the_computation_is_refused_by_name(
    row: Row, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(DraftrtError, match=says) as caught:
        spec_of(tmp_path, row, **changes)
    assert "problems found" not in caught.value.message
    assert "--ignore-key" not in str(caught.value)


@pytest.mark.parametrize("name", ["rope_interleaved", "use_mrope", "query_scale_of_layers"])
def test_a_key_with_a_meaning_is_never_ignored(name: str, tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match=f"--ignore-key target:{name}"):
        spec_of(tmp_path, SMOLLM2, ignore=frozenset({name}), **{name: True})


def test_an_unknown_key_is_ignored_when_told_to(tmp_path: Path) -> None:
    with pytest.raises(DraftrtError, match=r"does not know: \['surprise'\]") as caught:
        spec_of(tmp_path / "a", SMOLLM2, surprise=1)
    assert "--ignore-key target:NAME" in caught.value.hint
    spec = spec_of(tmp_path / "b", SMOLLM2, ignore=frozenset({"surprise"}), surprise=1)
    assert spec.num_layers == 30


def test_a_wrong_name_is_told_even_where_the_target_has_other_faults(tmp_path: Path) -> None:
    target = read_target(write(tmp_path, {**SMOLLM2.config, "use_mrope": True}, tied=True))
    with pytest.raises(ChoiceError, match="--ignore-key target:sruprise"):
        try_decoder(target, frozenset({"sruprise"}))
    assert try_decoder(target)[0] is None


def test_two_names_for_one_table_of_bits_are_one_finding(tmp_path: Path) -> None:
    table = {"group_size": 64, "bits": 4}
    with pytest.raises(DraftrtError) as caught:
        spec_of(tmp_path, SMOLLM2, quantization=table, quantization_config=table)
    assert "problems found" not in caught.value.message
