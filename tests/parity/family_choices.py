"""What a drafter can be made of, choice by choice, and what each means.

Each choice says what it writes into a checkpoint and, apart from that, what the slow drafter shall
do: nothing is taken from the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.toys.models import Kind

HIDDEN, HEADS, DIM, BLOCK, LAYERS = 40, 4, 16, 4, 2
VOCABULARY, REDUCED, LOGICAL = 264, 96, 261
TAPS = (1, 3, 4)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice on one axis.

    Attributes:
        toy: fields of the toy checkpoint.
        config: its config keys.
        extra: kinds of tensors it adds, made by the test.
        means: fields of the slow drafter's `Meaning`.
        tags: what other choices may ask for or exclude.
        needs: tags that the other choices of a row must bring.
        bars: tags that they must not bring.
    """

    toy: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    means: Mapping[str, Any] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    bars: frozenset[str] = frozenset()


def tags(text: str) -> frozenset[str]:
    return frozenset(text.split())


def dspark(kind: Kind, markov: str | None, *, confidence: str = "markov", row: int = 0) -> Choice:
    """A DSpark head; confidence is ``markov``, ``plain`` or ``none``."""
    config: dict[str, Any] = {}
    extra: tuple[str, ...] = ()
    if confidence == "plain":
        config["confidence_head_with_markov"] = False
        extra = ("plain confidence",)
    if markov is None:
        config |= {"markov_rank": 0, "enable_confidence_head": confidence != "none"}
        extra = (*extra, "no markov")
    body = "spec" if kind is Kind.SPECULATORS_DSPARK else "flat"
    backbone = "gemma" if kind is Kind.DEEPSPEC_GEMMA4 else "qwen3"
    return Choice(
        toy={
            "kind": kind,
            "markov_type": markov or "vanilla",
            "with_confidence": confidence != "none",
            "sample_from_anchor": row == 0,
        },
        config=config,
        extra=extra,
        means={
            "family": "dspark",
            "drafts_from_row": row,
            "markov": markov,
            "confidence_sees_markov": confidence == "markov",
        },
        tags=tags(f"dspark {body} {backbone}"),
    )


def dflash(kind: Kind, *, row: int = 1, config: Mapping[str, Any] | None = None) -> Choice:
    is_second = kind.value.endswith("dflash2")
    body = "spec" if kind.value.startswith("speculators") else "flat"
    means: dict[str, Any] = {"family": "dflash2" if is_second else "dflash", "drafts_from_row": row}
    if is_second:
        means |= {"top_k": 5, "conv_group": 8}
    return Choice(
        toy={"kind": kind},
        config=config or {},
        means=means,
        tags=tags(f"{means['family']} {body} qwen3"),
    )


FROM_ANCHOR = {"dflash_config.sample_from_anchor": True}
AS_SPECULATED = {"speculators_config.proposal_methods": [{"speculative_tokens": BLOCK}]}
HEADS_AXIS = {
    "dflash": dflash(Kind.ZLAB_DFLASH),
    "dflash from the anchor": dflash(Kind.ZLAB_DFLASH, row=0, config=FROM_ANCHOR),
    "dflash, speculators": dflash(Kind.SPECULATORS_DFLASH),
    "dflash, speculators, from the anchor": dflash(
        Kind.SPECULATORS_DFLASH, row=0, config={"sample_from_anchor": True, **AS_SPECULATED}
    ),
    "dflash2": dflash(Kind.ZLAB_DFLASH2),
    "dflash2, speculators": dflash(
        Kind.SPECULATORS_DFLASH2, config={"sliding_window_non_causal": False}
    ),
    "dspark without a head": dspark(Kind.DEEPSPEC_DFLASH, None, confidence="none"),
    "dspark, vanilla": dspark(Kind.DEEPSPEC_DSPARK, "vanilla"),
    "dspark, gated": dspark(Kind.DEEPSPEC_DSPARK, "gated"),
    "dspark, rnn": dspark(Kind.DEEPSPEC_DSPARK, "rnn"),
    "dspark, rank 0, confidence": dspark(Kind.DEEPSPEC_DSPARK, None, confidence="plain"),
    "dspark, rnn, confidence without markov": dspark(
        Kind.DEEPSPEC_DSPARK, "rnn", confidence="plain"
    ),
    "dspark, vanilla, no confidence": dspark(Kind.SPECULATORS_DSPARK, "vanilla", confidence="none"),
    "dspark, speculators, gated": dspark(Kind.SPECULATORS_DSPARK, "gated"),
    "dspark, speculators, rnn, fill-in": dspark(Kind.SPECULATORS_DSPARK, "rnn", row=1),
    "gemma4, vanilla": dspark(Kind.DEEPSPEC_GEMMA4, "vanilla"),
    "gemma4, gated, no confidence": dspark(Kind.DEEPSPEC_GEMMA4, "gated", confidence="none"),
}

FULL, SLIDING = "full_attention", "sliding_attention"
Layers = tuple[tuple[str, int | None, bool], ...]  # type, window, causal


def attention(
    config: Mapping[str, Any],
    *layers: tuple[int | None, bool],
    needs: str = "",
    bars: str = "",
    toy: Mapping[str, Any] | None = None,
    extra: tuple[str, ...] = (),
    means: Mapping[str, Any] | None = None,
) -> Choice:
    """One (window, causal) pair a layer."""
    return Choice(
        toy=toy or {},
        config=config,
        extra=extra,
        means={"layers": layers, **(means or {})},
        needs=tags(needs),
        bars=tags(bars),
        tags=tags("slides" if any(window for window, _ in layers) else "full"),
    )


def slides(window: int) -> dict[str, Any]:
    return {"sliding_window": window}


SINKS = tuple(f"layers.{index}.self_attn.attention_sink_bias" for index in range(LAYERS))
ATTENTION_AXIS = {
    "full": attention({}, (None, False), (None, False)),
    "every layer causal": attention({"is_causal": True}, (None, True), (None, True)),
    "causal by dflash_config": attention(
        {"dflash_config.causal": True}, (None, True), (None, True), bars="gemma"
    ),
    "sliding and full": attention({}, (9, True), (None, False), toy=slides(9), bars="gemma"),
    "sliding both ways": attention(
        {"is_causal": False}, (7, False), (None, False), toy=slides(7), bars="gemma spec"
    ),
    "speculators, both ways": attention(
        {"sliding_window_non_causal": True},
        (7, False),
        (None, False),
        toy=slides(7),
        needs="spec",
    ),
    "window below the block": attention({}, (2, True), (None, False), toy=slides(2), bars="gemma"),
    "window below the block, both ways": attention(
        {"is_causal": False}, (2, False), (None, False), toy=slides(2), bars="gemma"
    ),
    "use_swa with sinks and value scale": attention(
        {
            "dflash_config.use_swa": True,
            "dflash_config.swa_window_size": 5,
            "dflash_config.causal": False,
            "dflash_config.attention_value_scale": 0.612,
            "dflash_config.attention_sink_bias": True,
        },
        (5, False),
        (5, False),
        extra=SINKS,
        means={"value_scale": 0.612},
        bars="gemma",
    ),
    "full with sinks and biases": attention(
        {},
        (None, False),
        (None, False),
        toy={"attention_bias": True},
        extra=SINKS,
        bars="gemma",
    ),
}


def rope(bars: str = "", **parameters: Any) -> Choice:
    config = {}
    if "max_position" in parameters:
        config["max_position_embeddings"] = parameters.pop("max_position")
    is_interleaved = parameters.pop("interleaved", False)
    copied = {"partial_rotary_factor": parameters.pop("copied")} if "copied" in parameters else {}
    if is_interleaved:
        config["is_neox_style"] = False
    parameters = {"rope_theta": 10_000.0, **parameters}
    return Choice(
        config={**config, "rope_parameters": {**parameters, **copied}},
        means={
            "rope": parameters,
            "interleaved": is_interleaved,
            "max_position": config.get("max_position_embeddings", 512),
        },
        bars=tags(bars),
    )


FACTORS = [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0]
ROPE_AXIS = {
    "neox": rope(rope_type="default"),
    "interleaved": rope(rope_type="default", interleaved=True),
    "a share that has no effect": rope(rope_type="default", copied=0.5),
    "linear": rope(rope_type="linear", factor=4.0),
    "dynamic": rope(rope_type="dynamic", factor=2.0, max_position=12),
    "yarn": rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=16),
    "llama3": rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "longrope": rope(
        rope_type="longrope",
        short_factor=FACTORS,
        long_factor=[4 * value for value in FACTORS],
        original_max_position_embeddings=12,
    ),
    "proportional": rope(rope_type="proportional", partial_rotary_factor=0.25),
}

VOCABULARY_AXIS = {
    "borrowed": Choice(extra=("no tables",), means={"num_drafted": VOCABULARY}),
    "own": Choice(extra=("own tables",), means={"num_drafted": VOCABULARY}),
    "reduced by offsets": Choice(
        config={"draft_vocab_size": REDUCED},
        extra=("no tables", "reduced"),
        means={"num_drafted": REDUCED, "d2t": "offset"},
        bars=tags("dflash2"),
    ),
    "reduced by absolute ids": Choice(
        config={"draft_vocab_size": REDUCED},
        extra=("own tables", "reduced", "absolute"),
        means={"num_drafted": REDUCED, "d2t": "absolute"},
        bars=tags("dflash2"),
    ),
    "padded": Choice(extra=("own tables", "logical target"), means={"num_drafted": LOGICAL}),
    "padded, borrowed": Choice(
        extra=("no tables", "logical target"), means={"num_drafted": LOGICAL}
    ),
    "mask embedding": Choice(
        extra=("no tables", "mask embedding"),
        means={"num_drafted": VOCABULARY},
        bars=tags("dspark"),
    ),
}
LOGITS_AXIS = {
    "as they are": Choice(),
    "scaled and capped": Choice(
        config={
            "dflash_config.input_embedding_scale": 1.5,
            "dflash_config.output_multiplier": 0.4,
            "final_logit_softcapping": 3.0,
        },
        means={"embedding_scale": 1.5, "multiplier": 0.4, "cap": 3.0},
    ),
}
