"""A drafter's config.json, of any publisher, to a `DrafterSpec`: one precedence table.

Every fact is read from the drafter's own config and tensors. Nothing is inferred from the family's
name or from the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from draftrt.export.activations import ACTIVATIONS
from draftrt.export.config_attention import read_layer_types, read_layers
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
from draftrt.export.harmless import HARMLESS
from draftrt.spec import Backbone, Family

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
    sample_from_anchor: bool | None = None,
    ignore_keys: frozenset[str] = frozenset(),
) -> ConfigFacts:
    """Resolve all facts of a drafter's config.

    Args:
        facts: the config; findings are added to it and nothing is raised.
        shapes: canonical tensor name to shape, from the checkpoint's headers.
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
    fields |= _dimensions(facts, kind)
    types = read_layer_types(facts, body, fields["num_layers"])
    sinks = frozenset(
        i
        for i in range(fields["num_layers"])
        if f"layers.{i}.self_attn.attention_sink_bias" in shapes
    )
    fields["layers"] = read_layers(
        facts, body, types, is_speculators=kind.is_speculators, sinks=sinks
    )
    _check_sinks(facts, sinks)
    fields["rope"] = read_rope(facts, body, fields["head_dim"], types)
    fields |= _block(facts, kind, sample_from_anchor)
    fields |= _taps(facts, kind, fields["num_layers"])
    fields["markov"] = read_markov(facts, kind, shapes)
    fields["confidence"] = read_confidence(facts, kind, shapes, fields["markov"])
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


def _dimensions(facts: Facts, kind: Kind) -> dict[str, Any]:
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
        default="bfloat16",
        why="not stated; tensors carry their own",
    )
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
        "attention_value_scale": facts.real(
            "attention_value_scale",
            ["dflash_config.attention_value_scale", f"{body}attention_value_scale"],
            default=1.0,
            why="default 1",
        ),
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


def _block(facts: Facts, kind: Kind, stated: bool | None) -> dict[str, Any]:
    block = facts.number(
        "block_size",
        ["dflash_config.block_size", "block_size", "dspark_block_size"],
        low=2,
        high=256,
    )
    anchor = _sample_from_anchor(facts, kind, stated)
    if kind.is_speculators:
        _check_speculative_tokens(facts, block, anchor)
    if kind.family is Family.DFLASH2 and anchor:
        facts.error(
            "sample_from_anchor is true in a DFlash2 drafter",
            "DFlash2 drafts from row 1 on",
            unsupported=True,
        )
    mask = facts.number(
        "mask_token_id",
        [
            "dflash_config.mask_token_id",
            "mask_token_id",
            "dspark_noise_token_id",
            "pard_token",
            "ptd_token_id",
        ],
        low=0,
        high=1 << 26,
        hint="without it the block cannot be filled; take the id from the publisher's config",
    )
    return {"block_size": block, "sample_from_anchor": anchor, "mask_token_id": mask}


def _sample_from_anchor(facts: Facts, kind: Kind, stated: bool | None) -> bool:
    """Alignment: explicit key, then its negated and older spellings, then the architecture's own code."""
    fact = "sample_from_anchor"
    explicit = ["sample_from_anchor", "dflash_config.sample_from_anchor"]
    inverse = ["dspark_bonus_anchor", "dflash_config.dspark_bonus_anchor"]
    shift = ["shift_label", "dflash_config.shift_label"]
    claims = {path: facts.raw(path) for path in (*explicit, *inverse, *shift)}
    claims = {path: value for path, value in claims.items() if value is not None}
    for path, value in claims.items():
        if not isinstance(value, bool):
            facts.error(f"{path}: got {value!r:.40}, expected true or false")
            return False
    meant = {path: value != (path in inverse) for path, value in claims.items()}
    if stated is not None:
        meant = {"--sample-from-anchor": stated, **meant}
    if len(set(meant.values())) > 1:
        facts.error(
            f"alignment is stated with different values: {meant}",
            "sample_from_anchor true means row 0 drafts too",
        )
    if meant:
        path, value = next(iter(meant.items()))
        facts.say(fact, path)
        return value
    if kind.is_speculators and kind.family is Family.DSPARK:
        facts.error(
            "sample_from_anchor is missing in a speculators DSpark config",
            "checkpoints of both alignments were published: pass --sample-from-anchor (row 0 drafts "
            "too, B drafts a round) or --no-sample-from-anchor (B - 1)",
        )
        return True
    facts.say(fact, f"default of {kind.architecture or kind.family.value}")
    return kind.family is Family.DSPARK


def _check_speculative_tokens(facts: Facts, block: int, anchor: bool) -> None:
    methods = facts.raw("speculators_config.proposal_methods")
    first = (
        methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    )
    tokens, drafts = first.get("speculative_tokens"), block if anchor else block - 1
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return
    if tokens > drafts:
        facts.error(
            f"speculators_config asks for {tokens} speculative tokens, but block_size {block} with "
            f"sample_from_anchor {anchor} yields {drafts}",
            "one of the three is wrong",
        )
    elif tokens < drafts:
        facts.warnings.append(
            f"speculators_config asks for {tokens} speculative tokens, the block yields {drafts}"
        )


def _taps(facts: Facts, kind: Kind, num_layers: int) -> dict[str, Any]:
    depth = None
    for path in ("dflash_config.num_target_layers", "num_target_layers"):
        if facts.raw(path) is not None:
            depth = facts.number(
                "num_target_layers",
                ["dflash_config.num_target_layers", "num_target_layers"],
                low=1,
                high=1024,
            )
            break
    else:
        facts.say("num_target_layers", "not stated")
    width = facts.number(
        "target_hidden_size",
        ["target_hidden_size"],
        low=1,
        high=1 << 24,
        default=facts.raw(f"{kind.body}hidden_size"),
        why=f"{kind.body}hidden_size",
    )
    return {
        "num_target_layers": depth,
        "target_hidden_size": width,
        "target_layer_ids": _tap_ids(facts, depth, num_layers),
    }


TAPS = (
    ("dflash_config.target_layer_ids", 0),
    ("target_layer_ids", 0),
    ("dspark_target_layer_ids", 0),
    ("dflash_config.eagle_aux_hidden_state_layer_ids", 1),
    ("eagle_aux_hidden_state_layer_ids", 1),
    ("aux_hidden_state_layer_ids", 1),
)


def _tap_ids(facts: Facts, depth: int | None, num_layers: int) -> tuple[int, ...]:
    """Normalise every spelling to "output of decoder layer k, 0-based"."""
    claims: dict[str, tuple[int, ...]] = {}
    for path, shift in TAPS:
        ids = facts.numbers("target_layer_ids", path, low=-1 + shift, high=1024)
        if ids is not None:
            claims[path] = tuple(k - shift for k in ids)
    if len(set(claims.values())) > 1:
        facts.error(
            f"target_layer_ids are stated with different values (as outputs of layer k): {claims}",
            "aux_hidden_state_layer_ids count one above target_layer_ids",
        )
    if claims:
        path, ids = next(iter(claims.items()))
        shifted = dict(TAPS)[path]
        facts.say("target_layer_ids", f"{path} - 1" if shifted else path)
        if any(b <= a for a, b in zip(ids, ids[1:])):
            facts.error(
                f"{path}: got {[k + shifted for k in ids]}, expected strictly increasing layers",
                "features are concatenated in this order",
            )
        return ids
    if depth is None or depth < 5:
        facts.error(
            "target_layer_ids is missing, and without num_target_layers there is no default",
            "state the tapped layers; a wrong guess only shows as lost acceptance",
        )
        return (0,)
    facts.say("target_layer_ids", "default of z-lab: spread from 1 to num_target_layers - 3")
    if num_layers == 1:
        return (depth // 2,)
    return tuple(round(1 + i * (depth - 4) / (num_layers - 1)) for i in range(num_layers))


def _embedding_scale(facts: Facts, kind: Kind, hidden: int, dtype: str) -> float:
    paths = ["dflash_config.input_embedding_scale", "input_embedding_scale"]
    if kind.backbone is not Backbone.GEMMA4:
        return facts.real("embedding_scale", paths, default=1.0, why="default 1")
    scale = float(torch.tensor(math.sqrt(hidden), dtype=getattr(torch, dtype)))
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
    scopes = ["", "dflash_config", "dspark_config", *([body[:-1]] if body else [])]
    unknown = [
        key for scope in scopes for key in facts.unknown_keys(scope, HARMLESS) if key not in ignore
    ]
    if unknown:
        facts.error(
            f"keys that this version does not know: {unknown}",
            "if a key has no effect on the forward pass, accept it with --ignore-key NAME",
        )
