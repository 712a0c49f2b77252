"""A Qwen3.5 target's config to the facts of its text model, of whose layers most keep a state."""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.export.config.keys import ACTIVATIONS
from draftrt.export.config.layers import FULL
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.config.targets.shared import (
    CARRIED_ROWS,
    check_model_type,
    check_some_attend,
    check_types,
    read_attention_bias,
    read_mlp_width,
    read_sizes,
)
from draftrt.spec import GatedDeltaSpec

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
EXPERTS = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODEL_TYPE = "qwen3_5_text"
LINEAR = "linear_attention"
_SAYS_NOTHING = """
vocab_size unpadded_vocab_size eos_token_id mamba_ssm_dtype mtp_num_hidden_layers
mtp_use_dedicated_embeddings mlp_only_layers tie_word_embeddings
"""


def read_qwen3_5(facts: Facts, body: str, tensor_prefix: str) -> dict[str, Any]:
    """Resolve the layers of a Qwen3.5 text model.

    Args:
        facts: the config.
        body: prefix of the text model's keys, with its dot, or empty.
        tensor_prefix: what the checkpoint puts before ``embed_tokens``.

    Returns:
        Fields of `DecoderSpec`; findings stay in ``facts``.
    """
    sizes = read_sizes(facts, body)
    layers = sizes["num_layers"]
    dim = facts.number("head_dim", [f"{body}head_dim"], low=2, high=1 << 14)
    for name in ("mlp_bias", "qk_norm", "windows"):
        facts.say(name, "architectures")
    _check_fixed(facts, body)
    types = _types(facts, body, layers)
    return {
        **sizes,
        **read_attention_bias(facts, body),
        "head_dim": dim,
        "intermediate_size": read_mlp_width(facts, body),
        "rms_norm_eps": facts.real(
            "rms_norm_eps", [f"{body}rms_norm_eps"], default=1e-6, why="default 1e-6"
        ),
        "activation": facts.text(
            "activation",
            [f"{body}hidden_act"],
            choices=ACTIVATIONS,
            default="silu",
            why="default silu",
        ),
        "mlp_bias": False,
        "qk_norm": True,
        "windows": (None,) * layers,
        "rope": read_rope(facts, body, dim, [FULL]),
        "delta": _delta(facts, body, types, tensor_prefix),
    }


def _check_fixed(facts: Facts, body: str) -> None:
    """Refuse what the published layers do not do."""
    check_model_type(facts, f"{body}model_type", MODEL_TYPE)
    for key, expected in (
        ("attn_output_gate", (True,)),
        ("output_gate_type", ("swish", "silu")),
    ):
        value = facts.raw(f"{body}{key}")
        if value is not None and value not in expected:
            facts.error(
                f"{body}{key}: got {shown(value)}, expected {shown(expected[0])}", unsupported=True
            )
    for key in _SAYS_NOTHING.split():
        facts.raw(f"{body}{key}")


def _types(facts: Facts, body: str, num_layers: int) -> tuple[str, ...]:
    """Return each layer's type: as listed, or full every so many."""
    stated, path = facts.raw(f"{body}layer_types"), f"{body}layer_types"
    every = facts.raw(f"{body}full_attention_interval")
    if every is None and stated is None:
        facts.error(
            f"{path} is missing, expected it or {body}full_attention_interval",
            "they say which layers keep a state; nothing is inferred",
        )
        return (FULL,) * num_layers
    counted = None
    if every is not None:
        interval = facts.number("delta", [f"{body}full_attention_interval"], low=1, high=4096)
        counted = tuple(LINEAR if (i + 1) % interval else FULL for i in range(num_layers))
    found = list(counted or ()) if stated is None else stated
    types = check_types(facts, path, found, (FULL, LINEAR), num_layers)
    check_some_attend(facts, path, types)
    return types


def _delta(facts: Facts, body: str, types: tuple[str, ...], tensor_prefix: str) -> GatedDeltaSpec:
    sizes = {
        name: facts.number("delta", [f"{body}linear_{key}"], low=low, high=1 << 14)
        for name, key, low in (
            ("num_key_heads", "num_key_heads", 1),
            ("num_value_heads", "num_value_heads", 1),
            ("key_dim", "key_head_dim", 2),
            ("value_dim", "value_head_dim", 2),
            ("kernel_size", "conv_kernel_dim", 2),
        )
    }
    keys, values = sizes["num_key_heads"], sizes["num_value_heads"]
    if values % keys:
        facts.error(
            f"{body}linear_num_value_heads {values} is no multiple of linear_num_key_heads {keys}"
        )
    facts.say("delta", f"architectures, {body}layer_types, {body}linear_*")
    return GatedDeltaSpec(
        layers=tuple(index for index, kind in enumerate(types) if kind == LINEAR),
        carried_rows=CARRIED_ROWS,
        tensor_prefix=tensor_prefix,
        **sizes,
    )
