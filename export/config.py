"""A drafter's config.json, of any publisher, to a `DrafterSpec`: one precedence table.

Every fact is read from the drafter's own config and tensors. Nothing is inferred from the family's
name or from the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftrt.errors import ChoiceError
from draftrt.export.choices import ACTIVATIONS
from draftrt.export.config_attention import read_layer_types, read_layers
from draftrt.export.config_block import read_block, read_taps
from draftrt.export.config_family import Kind, read_kind
from draftrt.export.config_heads import (
    read_confidence,
    read_dflash2,
    read_markov,
    read_output_multiplier,
    read_soft_cap,
)
from draftrt.export.config_rope import read_rope
from draftrt.export.facts import Facts
from draftrt.export.harmless import HARMLESS, INHERITED
from draftrt.export.rounding import rounded
from draftrt.spec import Backbone

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """What the config and tensor names alone say, before a target is looked at.

    Attributes:
        kind: family, backbone, format.
        fields: `DrafterSpec` fields by name; the vocabulary fields come later.
        mask_token_id: id that fills the block.
        vocab_size: rows of the input vocabulary the config declares.
        draft_vocab_size: rows of the LM head the config declares.
    """

    kind: Kind
    fields: dict[str, Any]
    vocab_size: int
    draft_vocab_size: int


def read_config(
    facts: Facts,
    shapes: Shapes,
    *,
    stored_dtype: str = "bfloat16",
    sample_from_anchor: bool | None = None,
    ignore_keys: frozenset[str] = frozenset(),
) -> ConfigFacts:
    """Resolve all facts of a drafter's config.

    Args:
        facts: the config; findings are added to it and nothing is raised.
        shapes: canonical tensor name to shape, from the checkpoint's headers.
        stored_dtype: element type of the checkpoint's tensors.
        sample_from_anchor: the user's own statement where the config is silent.
        ignore_keys: unknown keys the user declares to be without effect.
    """
    kind = read_kind(facts)
    body = kind.body
    fields: dict[str, Any] = {
        "family": kind.family,
        "backbone": kind.backbone,
        "checkpoint_format": kind.format,
    }
    for scope in ("dflash_config", "dspark_config", "speculators_config"):
        facts.table(scope)
    fields |= _dimensions(facts, kind, stored_dtype)
    types = read_layer_types(facts, body, fields["num_layers"])
    sinks = frozenset(
        i
        for i in range(fields["num_layers"])
        if f"layers.{i}.self_attn.attention_sink_bias" in shapes
    )
    fields["layers"] = read_layers(facts, kind, types, sinks)
    _check_sinks(facts, sinks)
    fields["rope"] = read_rope(facts, body, fields["head_dim"], types, rotates_whole=True)
    fields |= read_block(facts, kind, sample_from_anchor)
    fields |= read_taps(facts, kind, fields["num_layers"], fields["hidden_size"])
    fields["markov"] = read_markov(facts, kind, shapes)
    fields["confidence"] = read_confidence(
        facts, kind, shapes, fields["markov"], fields["hidden_size"]
    )
    fields["selector"], fields["conv"] = read_dflash2(facts, kind)
    if fields["conv"] is not None and fields["hidden_size"] % fields["conv"].group_size:
        facts.error(
            f"conv_group_size {fields['conv'].group_size} does not divide hidden_size "
            f"{fields['hidden_size']}"
        )
    fields["output_multiplier"] = read_output_multiplier(facts, fields["markov"])
    fields["final_logit_softcapping"] = read_soft_cap(facts, body)
    fields["embedding_scale"] = _embedding_scale(
        facts, kind, fields["hidden_size"], fields["dtype"]
    )
    vocab = facts.number("input_vocab_size", [f"{body}vocab_size"], low=2, high=1 << 26)
    draft_vocab = facts.number(
        "draft_vocab_size",
        ["draft_vocab_size"],
        low=2,
        high=1 << 26,
        default=vocab,
        why=f"{body}vocab_size",
    )
    _refuse_unknown(facts, body, ignore_keys)
    return ConfigFacts(kind, fields, vocab, draft_vocab)


def _dimensions(facts: Facts, kind: Kind, stored_dtype: str) -> dict[str, Any]:
    body = kind.body
    gemma = kind.backbone is Backbone.GEMMA4
    key_is_value = gemma and facts.flag(
        "attention_k_eq_v", [f"{body}attention_k_eq_v"], default=False, why="default false"
    )
    if not gemma:
        facts.say("attention_k_eq_v", "default of backbone qwen3")
    size = 1 << 24
    heads = facts.number("num_heads", [f"{body}num_attention_heads"], low=1, high=1 << 14)
    kv_path = (
        f"{body}num_global_key_value_heads"
        if key_is_value and facts.raw(f"{body}num_global_key_value_heads") is not None
        else f"{body}num_key_value_heads"
    )
    groups = facts.number("num_kv_heads", [kv_path], low=1, high=1 << 14)
    if heads % groups:
        facts.error(f"num_attention_heads {heads} is no multiple of num_key_value_heads {groups}")
    if gemma:
        head_dim = facts.number("head_dim", [f"{body}global_head_dim"], low=2, high=1 << 14)
        facts.raw(f"{body}head_dim")
        facts.raw(f"{body}num_key_value_heads")
        facts.say("attention_scale", "backbone gemma4: q_norm and k_norm carry the scale")
    else:
        head_dim = facts.number(
            "head_dim",
            [f"{body}head_dim"],
            low=2,
            high=1 << 14,
            default=128,
            why="default 128 of Qwen3Config",
        )
        facts.say("attention_scale", "head_dim ** -0.5")
    dtype = facts.text(
        "dtype",
        [f"{body}dtype", f"{body}torch_dtype", "dtype", "torch_dtype"],
        choices=("float32", "float16", "bfloat16"),
        default=stored_dtype,
        why="not stated; that of the tensors",
    )
    value_scale = facts.real(
        "attention_value_scale",
        ["dflash_config.attention_value_scale", f"{body}attention_value_scale"],
        default=1.0,
        why="default 1",
    )
    if gemma and value_scale != 1.0:
        facts.error("attention_value_scale in Gemma-4 layers is not supported", unsupported=True)
    return {
        "dtype": dtype,
        "hidden_size": facts.number("hidden_size", [f"{body}hidden_size"], low=2, high=size),
        "intermediate_size": facts.number(
            "intermediate_size", [f"{body}intermediate_size"], low=1, high=size
        ),
        "num_layers": facts.number("num_layers", [f"{body}num_hidden_layers"], low=1, high=256),
        "num_heads": heads,
        "num_kv_heads": groups,
        "head_dim": head_dim,
        "attention_k_eq_v": key_is_value,
        "attention_scale": 1.0 if gemma else head_dim**-0.5,
        "attention_value_scale": value_scale,
        "rms_norm_eps": facts.real(
            "rms_norm_eps", [f"{body}rms_norm_eps"], default=1e-6, why="default 1e-6"
        ),
        "activation": facts.text(
            "activation",
            [f"{body}hidden_activation" if gemma else f"{body}hidden_act"],
            choices=ACTIVATIONS,
            default="gelu_pytorch_tanh" if gemma else "silu",
            why=f"default of backbone {kind.backbone.value}",
        ),
        "attention_bias": facts.flag(
            "attention_bias", [f"{body}attention_bias"], default=False, why="default false"
        ),
    }


def _embedding_scale(facts: Facts, kind: Kind, hidden: int, dtype: str) -> float:
    paths = ["dflash_config.input_embedding_scale", "input_embedding_scale"]
    if kind.backbone is not Backbone.GEMMA4:
        return facts.real("embedding_scale", paths, default=1.0, why="default 1")
    scale = rounded(math.sqrt(hidden), dtype)
    return facts.real(
        "embedding_scale",
        paths,
        default=scale,
        why=f"backbone gemma4: sqrt(hidden_size) in {dtype}",
    )


def _check_sinks(facts: Facts, sinks: frozenset[int]) -> None:
    for path in (
        "dflash_config.attention_sink_bias",
        "attention_sink_bias",
        "add_swa_attention_sink_bias",
        "add_full_attention_sink_bias",
    ):
        value = facts.raw(path)
        if value is True and not sinks and "full" not in path:
            facts.error(f"{path} is true, but no layer has self_attn.attention_sink_bias")
        if value is False and sinks and path.endswith("attention_sink_bias") and "full" not in path:
            facts.error(
                f"{path} is false, but layers {sorted(sinks)} have self_attn.attention_sink_bias"
            )


def _refuse_unknown(facts: Facts, body: str, ignore: frozenset[str]) -> None:
    quantised = [
        key
        for key in ("quantization_config", "compression_config", "hf_quant_config")
        if facts.raw(key) is not None
    ]
    for key in quantised:
        table = facts.table(key)
        method = (
            table.get("quant_method") or table.get("quant_algo") or table.get("format") or "unnamed"
        )
        facts.error(
            f"{key}: quantised weights ({method}) are not supported",
            "take the publisher's bf16 checkpoint",
            unsupported=True,
        )
    for key, value in facts.table(body[:-1]).items() if body else ():
        if facts.config.get(key) == value:  # some exporters repeat the layers' keys at the top
            facts.raw(key)
    scopes = ["", "dflash_config", "dspark_config", *([body[:-1]] if body else [])]
    unknown = [key for scope in scopes for key in facts.unknown_keys(scope, HARMLESS | INHERITED)]
    if refused := [key for key in unknown if key not in ignore]:
        facts.error(
            f"keys that this version does not know: {refused}",
            "if a key has no effect on the forward pass, accept it with --ignore-key NAME",
        )
    # A key that the list of harmless ones has taken up meanwhile may still be named.
    idle = sorted(one for one in ignore - set(unknown) if one.split(".")[-1] not in HARMLESS)
    if idle:
        facts.findings.append(
            ChoiceError(
                f"{facts.path.name}: --ignore-key {', '.join(idle)}: expected keys that this "
                f"version does not know, which are {unknown or 'none'}",
                hint="what is read cannot be ignored, and what is not there need not be",
            )
        )
