"""Keys that nothing reads: those that change a computation are never offered to be ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from draftrt.export.config.keys import GROUPS, HARMLESS
from draftrt.export.config.meaning import meaning_of
from tests.toys.models import Kind

DECISIVE: dict[str, Any] = {
    "dflash_config.query_two_predicts_next": True,
    "quantization_bits": 4,
    "hqq_quant": {"nbits": 4},
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_layer_freq": 1,
    "topk_group": 2,
    "attention_chunk_size": 64,
    "swa_layers": [0],
    "sliding_window_pattern": 2,
    "dflash_config.block_causal": True,
    "use_alibi": True,
    "rope_interleaved": True,
    "use_qk_norm": True,
    "attn_logit_softcapping": 50.0,
    "residual_multiplier": 0.2,
    "query_pre_attn_scalar": 256,
    "mlp_bias": True,
    "dspark_config.markov_heads": 2,
    "sharedEmbeddings": True,
    "mask_token_offset": 1,
    "target_feature_scale": 0.5,
    "token_offset": 1,
    "draft_stride": 2,
    "dilation": 2,
    "dflash_config.interleave": True,
    "dspark_config.mode": "two-pass",
    "num_denoising_steps": 4,
    "reverse_order": True,
}
PLAIN = ("surprise", "wandb_run", "hub_model_id", "license_link", "loss_block_size", "eval_batch")


@pytest.mark.parametrize("key", DECISIVE)
def test_a_key_that_changes_what_is_computed_is_never_ignored(
    key: str, draft: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    folder = draft(Kind.ZLAB_DFLASH, overrides={key: DECISIVE[key]})
    told = inspect(folder)
    assert told.exit_code == 1
    assert f"does not read, and that by their names change what is computed: {key} (" in told.stderr
    assert "--ignore-key" not in told.stderr
    assert "problems found" not in told.stderr
    forced = inspect(folder, "--ignore-key", key)
    assert forced.exit_code == 2
    assert f"--ignore-key {key}: cannot be ignored: by its name it decides" in forced.stderr
    assert "problems found" not in forced.stderr


@pytest.mark.parametrize("key", PLAIN)
def test_a_key_about_nothing_that_is_computed_may_be_declared_to_be_without_effect(
    key: str, draft: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    folder = draft(Kind.ZLAB_DFLASH, overrides={key: 1})
    told = inspect(folder)
    assert told.exit_code == 1
    assert "accept it with --ignore-key NAME" in told.stderr
    assert inspect(folder, "--ignore-key", key).exit_code == 0


@pytest.mark.parametrize(
    "off", [{"num_shared_experts": 0}, {"use_moe": False}, {"quant_modules": []}, {"bits": None}]
)
def test_experts_and_quantisation_that_are_switched_off_say_nothing(
    off: dict[str, Any], draft: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    assert inspect(draft(Kind.ZLAB_DFLASH, overrides=off)).exit_code == 0


def test_each_harmless_key_stands_once_and_has_a_reason() -> None:
    keys = [key for _, words in GROUPS for key in words.split()]
    assert len(keys) == len(set(keys)) == len(HARMLESS)
    assert all(len(reason.split()) > 2 for reason, _ in GROUPS)


def test_a_published_key_that_is_read_or_refused_is_told_by_its_name() -> None:
    for key in ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"):
        assert meaning_of(f"transformer_layer_config.{key}") == "which rows a layer sees"
    assert meaning_of("quantization") == "how weights are stored"
    assert meaning_of("unknown_monkey") == ""
