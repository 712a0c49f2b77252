"""Sizes, element type and arithmetic of a drafter's layers, from its config."""

from __future__ import annotations

import math
from typing import Any

from draftrt.export.config.choices import ACTIVATIONS
from draftrt.export.config.family import Kind
from draftrt.export.config.reader import Facts
from draftrt.export.config.rounding import rounded
from draftrt.spec import Backbone

MOST_SIZE, MOST_HEADS, MOST_LAYERS = 1 << 24, 1 << 14, 256
SCALE_PATHS = ("dflash_config.input_embedding_scale", "input_embedding_scale")


def read_dimensions(facts: Facts, kind: Kind, stored_dtype: str) -> dict[str, Any]:
    """Resolve what every layer is built with.

    Args:
        facts: the config.
        kind: family and format.
        stored_dtype: element type of the checkpoint's tensors, taken where none is stated.
    """
    body, gemma = kind.body, kind.backbone is Backbone.GEMMA4
    fields = _heads(facts, kind)
    fields["dtype"] = facts.text(
        "dtype",
        [f"{body}dtype", f"{body}torch_dtype", "dtype", "torch_dtype"],
        choices=("float32", "float16", "bfloat16"),
        default=stored_dtype,
        why="not stated; that of the tensors",
    )
    fields["attention_value_scale"] = _value_scale(facts, kind)
    fields |= {
        name: facts.number(name, [f"{body}{key}"], low=low, high=high)
        for name, key, low, high in (
            ("hidden_size", "hidden_size", 2, MOST_SIZE),
            ("intermediate_size", "intermediate_size", 1, MOST_SIZE),
            ("num_layers", "num_hidden_layers", 1, MOST_LAYERS),
        )
    }
    fields["rms_norm_eps"] = facts.real(
        "rms_norm_eps", [f"{body}rms_norm_eps"], default=1e-6, why="default 1e-6"
    )
    fields["activation"] = facts.text(
        "activation",
        [f"{body}hidden_activation" if gemma else f"{body}hidden_act"],
        choices=ACTIVATIONS,
        default="gelu_pytorch_tanh" if gemma else "silu",
        why=f"default of backbone {kind.backbone.value}",
    )
    fields["attention_bias"] = facts.flag(
        "attention_bias", [f"{body}attention_bias"], default=False, why="default false"
    )
    fields["embedding_scale"] = _embedding_scale(
        facts, kind, fields["hidden_size"], fields["dtype"]
    )
    return fields


def _heads(facts: Facts, kind: Kind) -> dict[str, Any]:
    """Number and size of the heads, and how their scores are scaled."""
    body, gemma = kind.body, kind.backbone is Backbone.GEMMA4
    key_is_value = gemma and facts.flag(
        "attention_k_eq_v", [f"{body}attention_k_eq_v"], default=False, why="default false"
    )
    if not gemma:
        facts.say("attention_k_eq_v", "default of backbone qwen3")
    heads = facts.number("num_heads", [f"{body}num_attention_heads"], low=1, high=MOST_HEADS)
    of_full = f"{body}num_global_key_value_heads"
    is_apart = key_is_value and facts.raw(of_full) is not None
    path = of_full if is_apart else f"{body}num_key_value_heads"
    groups = facts.number("num_kv_heads", [path], low=1, high=MOST_HEADS)
    if heads % groups:
        facts.error(f"num_attention_heads {heads} is no multiple of num_key_value_heads {groups}")
    head_dim = _head_dim(facts, body, gemma=gemma)
    return {
        "num_heads": heads,
        "num_kv_heads": groups,
        "head_dim": head_dim,
        "attention_k_eq_v": key_is_value,
        "attention_scale": 1.0 if gemma else head_dim**-0.5,
    }


def _head_dim(facts: Facts, body: str, *, gemma: bool) -> int:
    if gemma:
        facts.raw(f"{body}head_dim")
        facts.raw(f"{body}num_key_value_heads")
        facts.say("attention_scale", "backbone gemma4: q_norm and k_norm carry the scale")
        return facts.number("head_dim", [f"{body}global_head_dim"], low=2, high=MOST_HEADS)
    facts.say("attention_scale", "head_dim ** -0.5")
    return facts.number(
        "head_dim",
        [f"{body}head_dim"],
        low=2,
        high=MOST_HEADS,
        default=128,
        why="default 128 of Qwen3Config",
    )


def _value_scale(facts: Facts, kind: Kind) -> float:
    scale = facts.real(
        "attention_value_scale",
        ["dflash_config.attention_value_scale", f"{kind.body}attention_value_scale"],
        default=1.0,
        why="default 1",
    )
    if kind.backbone is Backbone.GEMMA4 and scale != 1.0:
        facts.error("attention_value_scale in Gemma-4 layers is not supported", unsupported=True)
    return scale


def _embedding_scale(facts: Facts, kind: Kind, hidden: int, dtype: str) -> float:
    if kind.backbone is not Backbone.GEMMA4:
        return facts.real("embedding_scale", SCALE_PATHS, default=1.0, why="default 1")
    scale = rounded(math.sqrt(hidden), dtype)
    return facts.real(
        "embedding_scale",
        SCALE_PATHS,
        default=scale,
        why=f"backbone gemma4: sqrt(hidden_size) in {dtype}",
    )
