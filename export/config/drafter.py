"""A drafter's config.json, of any publisher, to a `DrafterSpec`: one precedence table.

Every fact is read from the drafter's own config and tensors. Nothing is inferred from the family's
name or from the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftrt.export.config.block import read_block, read_taps
from draftrt.export.config.family import Kind, read_kind
from draftrt.export.config.heads import (
    check_heads,
    read_confidence,
    read_dflash2,
    read_markov,
    read_output_multiplier,
    read_soft_cap,
)
from draftrt.export.config.keys import refuse_unknown
from draftrt.export.config.layers import read_dimensions, read_layer_types, read_layers
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.spec import Family

Shapes = Mapping[str, tuple[int, ...]]
MOST_IDS = 1 << 26


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """What the config and tensor names alone say, before a target is looked at.

    Attributes:
        kind: family, backbone, format.
        fields: `DrafterSpec` fields by name; the vocabulary fields come later.
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
    family: Family | None = None,
) -> ConfigFacts:
    """Resolve all facts of a drafter's config.

    Args:
        facts: the config; findings are added to it and nothing is raised.
        shapes: canonical tensor name to shape, from the checkpoint's headers.
        stored_dtype: element type of the checkpoint's tensors.
        sample_from_anchor: the user's own statement where the config is silent.
        ignore_keys: unknown keys the user declares to be without effect.
        family: the user's own statement where the config's labels are wrong.
    """
    kind = read_kind(facts, family)
    body = kind.body
    for scope in ("dflash_config", "dspark_config", "speculators_config"):
        facts.table(scope)
    fields: dict[str, Any] = {
        "family": kind.family,
        "backbone": kind.backbone,
        "checkpoint_format": kind.format,
        **read_dimensions(facts, kind, stored_dtype),
    }
    fields |= _read_layers(facts, kind, shapes, fields["num_layers"], fields["head_dim"])
    fields |= read_block(facts, kind, sample_from_anchor)
    fields |= read_taps(facts, kind, fields["num_layers"], fields["hidden_size"])
    fields |= _read_heads(facts, kind, shapes, fields["hidden_size"])
    vocab = facts.number("input_vocab_size", [f"{body}vocab_size"], low=2, high=MOST_IDS)
    draft_vocab = facts.number(
        "draft_vocab_size",
        ["draft_vocab_size"],
        low=2,
        high=MOST_IDS,
        default=vocab,
        why=f"{body}vocab_size",
    )
    refuse_unknown(facts, body, ignore_keys)
    return ConfigFacts(kind, fields, vocab, draft_vocab)


def _read_layers(
    facts: Facts, kind: Kind, shapes: Shapes, num_layers: int, head_dim: int
) -> dict[str, Any]:
    """What each layer sees, and how positions turn its heads."""
    types = read_layer_types(facts, kind, num_layers)
    sinks = frozenset(
        i for i in range(num_layers) if f"layers.{i}.self_attn.attention_sink_bias" in shapes
    )
    layers = read_layers(facts, kind, types, sinks)
    _check_sinks(facts, sinks)
    rope = read_rope(facts, kind.body, head_dim, types, rotates_whole=True)
    return {"layers": layers, "rope": rope}


def _read_heads(facts: Facts, kind: Kind, shapes: Shapes, hidden: int) -> dict[str, Any]:
    """What turns the layers' rows into drafts and confidences."""
    markov = read_markov(facts, kind, shapes)
    confidence = read_confidence(facts, kind, shapes, markov, hidden)
    check_heads(facts, kind, markov, confidence)
    selector, conv = read_dflash2(facts, kind)
    if conv is not None and hidden % conv.group_size:
        facts.error(f"conv_group_size {conv.group_size} does not divide hidden_size {hidden}")
    return {
        "markov": markov,
        "confidence": confidence,
        "selector": selector,
        "conv": conv,
        "output_multiplier": read_output_multiplier(facts, markov),
        "final_logit_softcapping": read_soft_cap(facts, kind.body),
    }


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
