"""A Qwen3.5 target's config to the facts of its text model, of whose layers most keep a state."""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.export.config.keys import ACTIVATIONS
from draftrt.export.config.layers import FULL
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.spec import GatedDeltaSpec

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
EXPERTS = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODEL_TYPE = "qwen3_5_text"
LINEAR = "linear_attention"
CARRIED_ROWS = 32
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
    layers = facts.number("num_layers", [f"{body}num_hidden_layers"], low=1, high=4096)
    heads = facts.number("num_heads", [f"{body}num_attention_heads"], low=1, high=1 << 14)
    dim = facts.number("head_dim", [f"{body}head_dim"], low=2, high=1 << 14)
    bias = facts.flag("qkv_bias", [f"{body}attention_bias"], default=False, why="default false")
    facts.say("output_bias", facts.sources.get("qkv_bias", "attention_bias"))
    for name in ("mlp_bias", "qk_norm", "windows"):
        facts.say(name, "architectures")
    _check_fixed(facts, body)
    types = _types(facts, body, layers)
    return {
        "hidden_size": facts.number("hidden_size", [f"{body}hidden_size"], low=2, high=1 << 24),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": facts.number(
            "num_kv_heads", [f"{body}num_key_value_heads"], low=1, high=1 << 14
        ),
        "head_dim": dim,
        "intermediate_size": facts.number(
            "intermediate_size", [f"{body}intermediate_size"], low=1, high=1 << 24
        ),
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
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": False,
        "qk_norm": True,
        "windows": (None,) * layers,
        "rope": read_rope(facts, body, dim, [FULL]),
        "delta": _delta(facts, body, types, tensor_prefix),
    }


def _check_fixed(facts: Facts, body: str) -> None:
    """Refuse what the published layers do not do."""
    if facts.raw(f"{body}model_type") != MODEL_TYPE:
        facts.error(
            f"{body}model_type: got {shown(facts.raw(f'{body}model_type'))}, expected "
            f"{MODEL_TYPE!r} beside these architectures",
            "transformers chooses its code by model_type, others by architectures; they disagree",
        )
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
    types = list(counted or ()) if stated is None else stated
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(kind not in (FULL, LINEAR) for kind in types)
    ):
        facts.error(f"{path}: got {shown(types)}, expected {num_layers} of {FULL}, {LINEAR}")
        return (FULL,) * num_layers
    if FULL not in types:
        facts.error(f"{path}: got no {FULL}, expected one layer of it", unsupported=True)
    return tuple(types)


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
