"""A Gemma-4 target's config.json to a `DecoderSpec`.

Supported are its dense text models. A config that wraps one beside vision and audio towers is read
at ``text_config``; per-layer embeddings, shared caches and experts are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from draftrt.export.checkpoint.target import EMBED, TargetCheckpoint
from draftrt.export.config.keys import ACTIVATIONS
from draftrt.export.config.layers import FULL, SLIDING, rounded
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.config.targets.shared import (
    read_attention_bias,
    read_mlp_width,
    read_sizes,
)
from draftrt.spec import Gemma4Spec

WRAPPER = "ForConditionalGeneration"
PATTERN = 6  # one layer in so many is full where the config does not list them
HEADS, DIM = "num_key_value_heads", "head_dim"
CONFIG_OF_LAYERS = "per_layer_config"
OFF = {  # what these layers do not have, with its default where the config is silent
    "hidden_size_per_layer_input": {"gemma4_text": 256},
    "num_kv_shared_layers": {},
    "enable_moe_block": {},
    "use_double_wide_mlp": {},
}


def read_gemma4(facts: Facts, target: TargetCheckpoint) -> dict[str, Any]:
    """Resolve the facts that another decoder's config states elsewhere or not at all.

    Returns:
        Fields of `DecoderSpec`; findings stay in ``facts``.
    """
    is_wrapped = target.spec.architecture.endswith(WRAPPER)
    body = "text_config." if is_wrapped else ""
    _refuse(facts, body)
    sizes = read_sizes(facts, body)
    types = _types(facts, body, sizes["num_layers"])
    window = facts.number("windows", [f"{body}sliding_window"], low=1)
    dim = facts.number("head_dim", [f"{body}{DIM}"], low=2, high=1 << 14, default=256, why="256")
    for name in ("mlp_bias", "qk_norm"):
        facts.say(name, "architectures")
    hidden, groups = sizes["hidden_size"], sizes["num_kv_heads"]
    gemma4 = _gemma4(facts, body, target, types, hidden, groups, is_wrapped=is_wrapped)
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
            [f"{body}hidden_activation"],
            choices=ACTIVATIONS,
            default="gelu_pytorch_tanh",
            why="default gelu_pytorch_tanh",
        ),
        "mlp_bias": False,
        "qk_norm": True,
        "windows": tuple(window if kind == SLIDING else None for kind in types),
        "rope": read_rope(facts, body, dim, [SLIDING]),
        "gemma4": gemma4,
    }


def _gemma4(
    facts: Facts,
    body: str,
    target: TargetCheckpoint,
    types: Sequence[str],
    hidden: int,
    groups: int,
    *,
    is_wrapped: bool,
) -> Gemma4Spec:
    is_raw = facts.flag("gemma4", [f"{body}attention_k_eq_v"], default=False, why="default false")
    of_full = _of_full_layers(facts, body, types)
    full_dim = facts.number(
        "gemma4",
        [*of_full[DIM], f"{body}global_head_dim"],
        low=2,
        high=1 << 14,
        default=512,
        why="default 512",
    )
    stated = [f"{body}num_global_key_value_heads"] if is_raw else []
    full_groups = facts.number(
        "gemma4",
        [*of_full[HEADS], *stated],
        low=1,
        high=1 << 14,
        default=groups,
        why="num_kv_heads",
    )
    facts.raw(f"{body}num_global_key_value_heads")
    cap = facts.raw(f"{body}final_logit_softcapping")
    table = target.tables.get(EMBED)
    dtype = table.dtype if table is not None else "bfloat16"
    soft_cap = None
    if cap is not None:
        soft_cap = facts.real("gemma4", [f"{body}final_logit_softcapping"])
    rope = read_rope(facts, body, full_dim, [FULL])
    facts.say("gemma4", f"architectures, {body}layer_types; embedding_scale in {dtype}")
    return Gemma4Spec(
        full_head_dim=full_dim,
        full_num_kv_heads=full_groups,
        full_key_is_value=is_raw,
        full_rope=rope,
        embedding_scale=rounded(math.sqrt(hidden), dtype),
        final_logit_softcapping=soft_cap,
        tensor_prefix="model.language_model." if is_wrapped else "model.",
    )


def _types(facts: Facts, body: str, num_layers: int) -> tuple[str, ...]:
    types = facts.raw(f"{body}layer_types")
    if types is None:
        types = [SLIDING if (i + 1) % PATTERN else FULL for i in range(num_layers)]
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(kind not in (FULL, SLIDING) for kind in types)
    ):
        facts.error(
            f"{body}layer_types: got {types!r:.80}, expected {num_layers} of {FULL}, {SLIDING}"
        )
        return (FULL,) * num_layers
    return (*types[:-1], FULL)  # the last one is full whatever the list says, as in transformers


def _of_full_layers(facts: Facts, body: str, types: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths in ``per_layer_config`` that state heads of the full layers.

    It is the spelling of transformers 5 for what ``global_head_dim`` says.
    """
    table = facts.table(f"{body}{CONFIG_OF_LAYERS}")
    paths: dict[str, list[str]] = {HEADS: [], DIM: []}
    for key in table:
        path = f"{body}{CONFIG_OF_LAYERS}.{key}"
        entry = facts.table(path)
        other = sorted(set(entry) - set(paths))
        is_full = key.isdigit() and int(key) < len(types) and types[int(key)] == FULL
        if other or not is_full:
            facts.error(
                f"{path}: got {sorted(entry)}, expected {sorted(paths)} of a full-attention layer",
                unsupported=True,
            )
            continue
        for name in entry:
            paths[name].append(f"{path}.{name}")
    return paths


def _refuse(facts: Facts, body: str) -> None:
    kind = facts.raw(f"{body}model_type")
    for key, defaults in OFF.items():
        value = facts.raw(f"{body}{key}")
        if value is None:
            value = defaults.get(str(kind), 0)
        if value:
            facts.error(f"{body}{key}: got {value!r:.40}, expected 0", unsupported=True)
    direction = facts.raw(f"{body}use_bidirectional_attention")
    if direction not in (None, "vision"):
        facts.error(
            f"{body}use_bidirectional_attention: got {direction!r:.40}, expected none in text",
            unsupported=True,
        )
    for key in ("vocab_size", "unpadded_vocab_size", "eos_token_id"):
        facts.raw(f"{body}{key}")
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        facts.raw(f"{body}{key}")  # said by enable_moe_block
