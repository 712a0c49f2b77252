"""Keys of target configs that only other layers have a use for: accepted switched off.

Each changes what a model computes. The layers here compute what it says while it has one of the
values listed with it; with any other they would be another model, and the key is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftrt.export.config.reader import Facts
from draftrt.json_file import shown

NO, ONE = (False, 0), (1,)  # 0 == False and 1 == 1.0

# what a key switches on: key to the values that keep it off
OFF: tuple[tuple[str, Mapping[str, tuple[Any, ...]]], ...] = (
    (
        "a mixture of experts",
        {
            "num_experts": NO,
            "num_local_experts": NO,
            "n_routed_experts": NO,
            "enable_moe_block": NO,
        },
    ),
    ("positions on several axes", {"use_mrope": NO}),
    ("layers without positions", {"no_rope_layer_interval": NO}),
    ("positions as a bias of the scores", {"alibi": NO, "use_alibi": NO}),
    ("other positions in long texts", {"use_dynamic_ntk": NO, "use_logn_attn": NO}),
    ("attention by chunks", {"attention_chunk_size": NO, "dual_chunk_attention_config": ({},)}),
    ("attention to later tokens", {"use_bidirectional_attention": NO}),
    ("clipped queries, keys and values", {"clip_qkv": NO}),
    (
        "a bound of scores or logits",
        {"final_logit_softcapping": NO, "attn_logit_softcapping": NO, "logit_softcapping": NO},
    ),
    (
        "scaled rows",
        {
            "logit_scale": (*NO, *ONE),
            "logits_scaling": ONE,
            "embedding_multiplier": ONE,
            "residual_multiplier": ONE,
            "attention_value_scale": ONE,
            "scale_emb": ONE,
        },
    ),
    (
        "caches or embeddings that layers share",
        {
            "num_kv_shared_layers": NO,
            "hidden_size_per_layer_input": NO,
            "use_double_wide_mlp": NO,
        },
    ),
    ("a norm around whole projections", {"qk_layernorm": NO, "qk_layer_norms": NO}),
)


def refuse_switched_on(facts: Facts) -> None:
    """Add a finding for every key of `OFF` that is on, and for what else these layers cannot do."""
    for what, keys in OFF:
        for key, off in keys.items():
            value = facts.raw(key)
            if value is not None and value not in off:
                facts.error(
                    f"{key}: got {shown(value)}, expected {shown(off[0])}: {what} is not known to "
                    "these layers",
                    unsupported=True,
                )
    for key, check in CHECKS.items():
        if (value := facts.raw(key)) is not None:
            check(facts, key, value)


def _interleaved(facts: Facts, key: str, value: Any) -> None:
    if value is False:
        return
    if value is not True:
        facts.error(f"{key}: got {shown(value)}, expected true or false")
        return
    facts.error(
        f"{key}: got true: neighbouring elements of a head would be turned together, and "
        "transformers, which these layers follow, turns its two halves",
        "convert the checkpoint to halves, as transformers' own conversion scripts do",
        unsupported=True,
    )


def _activation(facts: Facts, key: str, value: Any) -> None:
    if value not in ("swiglu", facts.config.get("hidden_act")):
        facts.error(
            f"{key}: got {shown(value)}, expected 'swiglu' or what hidden_act says",
            unsupported=True,
        )


def _no_rope(facts: Facts, key: str, value: Any) -> None:
    if not isinstance(value, list) or any(one != 1 for one in value):
        facts.error(
            f"{key}: got {shown(value)}, expected 1 for every layer: layers without positions are "
            "not known to these layers",
            unsupported=True,
        )


CHECKS: Mapping[str, Callable[[Facts, str, Any], None]] = {
    "rope_interleaved": _interleaved,
    "activation": _activation,
    "no_rope_layers": _no_rope,
}
