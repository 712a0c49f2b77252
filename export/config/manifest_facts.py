"""Facts of a manifest that no model can have, told before anything is rebuilt from them.

A checkpoint's config is checked when it is read; a manifest is a file that anyone may change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from draftrt.errors import SpecError
from draftrt.export.config.keys import ACTIVATIONS, MARKOV_TYPES, ROPE_TYPES
from draftrt.spec import DecoderSpec, DrafterSpec, Family, GatedDeltaSpec, RopeSpec

SIZES = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
DRAFTER_SIZES = ("target_hidden_size", "input_vocab_size", "draft_vocab_size")
FACTORS = ("attention_scale", "attention_value_scale", "embedding_scale", "output_multiplier")
NEEDS = {  # of a scaling rule; export/config/rope.py asks a config for the same
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
MOST_STATE = 1 << 14  # of a size of layers with a state
POSITIVE = ("factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor")


def check_facts(spec: DrafterSpec | DecoderSpec, where: str) -> None:
    """Refuse facts that no model can have.

    Args:
        spec: the facts.
        where: they are from, for the message.

    Raises:
        SpecError: names every such fact.
    """
    problems = [*_common(spec), *_rope(spec.rope, "rope")]
    if isinstance(spec, DrafterSpec):
        problems += _drafter(spec)
    else:
        problems += _decoder(spec)
    if problems:
        raise SpecError(
            f"{where}: the manifest states " + "; ".join(problems),
            hint="the manifest was changed after the export; export again",
        )


def _common(spec: DrafterSpec | DecoderSpec) -> Iterator[str]:
    yield from _too_small(spec, SIZES, 1)
    if spec.num_kv_heads > 0 and spec.num_heads % spec.num_kv_heads:
        yield f"num_heads {spec.num_heads}, expected a multiple of num_kv_heads {spec.num_kv_heads}"
    if not 0 <= spec.rms_norm_eps < 1:
        yield f"rms_norm_eps {spec.rms_norm_eps}, expected 0 or more and less than 1"
    if spec.activation not in ACTIVATIONS:
        yield f"activation {spec.activation!r}, expected one of {list(ACTIVATIONS)}"


def _too_small(spec: object, names: tuple[str, ...], least: int) -> Iterator[str]:
    for name in names:
        value = getattr(spec, name)
        if value < least:
            yield f"{name} {value}, expected {least} or more"


def _windows(windows: list[int | None]) -> Iterator[str]:
    for window in dict.fromkeys(windows):
        if window is not None and window < 1:
            yield f"a sliding window of {window}, expected 1 or more"


def _drafter(spec: DrafterSpec) -> Iterator[str]:
    yield from _too_small(spec, DRAFTER_SIZES, 1)
    yield from _too_small(spec, ("block_size",), 1 if spec.sample_from_anchor else 2)
    if len(spec.layers) != spec.num_layers:
        yield f"layers: {len(spec.layers)} entries, expected num_layers {spec.num_layers}"
    yield from _windows([layer.window for layer in spec.layers])
    if not spec.target_layer_ids or min(spec.target_layer_ids) < -1:
        yield f"target_layer_ids {list(spec.target_layer_ids)}, expected layers, -1 and up"
    if not spec.mask_embedding and not 0 <= spec.mask_token_id < spec.input_vocab_size:
        yield f"mask_token_id {spec.mask_token_id}, expected 0 to {spec.input_vocab_size - 1}"
    for name in FACTORS:
        if not math.isfinite(getattr(spec, name)):
            yield f"{name} {getattr(spec, name)}, expected a number"
    cap = spec.final_logit_softcapping
    if cap is not None and not 0 < cap < math.inf:
        yield f"final_logit_softcapping {cap}, expected a positive number"
    if (spec.selector is not None) != (spec.family is Family.DFLASH2):
        has = "no selector" if spec.selector is None else "a selector"
        yield f"family {spec.family.value} with {has}, expected one with {Family.DFLASH2.value}"
    heads = [spec.markov, spec.confidence]
    if spec.family is not Family.DSPARK and any(head is not None for head in heads):
        yield f"family {spec.family.value} with a Markov or confidence head, expected dspark"
    if spec.markov is not None and spec.markov.type not in MARKOV_TYPES:
        yield f"markov.type {spec.markov.type!r}, expected one of {list(MARKOV_TYPES)}"


def _decoder(spec: DecoderSpec) -> Iterator[str]:
    yield from _too_small(spec, ("vocab_size", "table_rows"), 1)
    if len(spec.windows) != spec.num_layers:
        yield f"windows: {len(spec.windows)} entries, expected num_layers {spec.num_layers}"
    yield from _windows(list(spec.windows))
    if spec.gemma4 is not None:
        yield from _rope(spec.gemma4.full_rope, "gemma4.full_rope")
    if spec.delta is not None:
        yield from _delta(spec.delta, spec.num_layers)


def _delta(delta: GatedDeltaSpec, num_layers: int) -> Iterator[str]:
    sizes = ("num_key_heads", "num_value_heads", "key_dim", "value_dim", "carried_rows")
    for name in sizes:
        if not 1 <= getattr(delta, name) <= MOST_STATE:
            yield f"delta.{name} {getattr(delta, name)}, expected 1 to {MOST_STATE}"
    if not 2 <= delta.kernel_size <= MOST_STATE:
        yield f"delta.kernel_size {delta.kernel_size}, expected 2 to {MOST_STATE}"
    if delta.num_key_heads >= 1 and delta.num_value_heads % delta.num_key_heads:
        yield f"delta.num_value_heads {delta.num_value_heads}, expected a multiple of key heads"
    if sorted({*delta.layers} & {*range(num_layers)}) != list(delta.layers):
        yield f"delta.layers {list(delta.layers)[:8]}, expected layers of {num_layers}, ascending"


def _rope(rope: RopeSpec, name: str) -> Iterator[str]:
    if not 1 < rope.theta < 1e30:
        yield f"{name}.theta {rope.theta}, expected a number above 1"
    if rope.type not in ROPE_TYPES:
        yield f"{name}.type {rope.type!r}, expected one of {list(ROPE_TYPES)}"
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= rope.head_dim:
        yield f"{name}.rotary_dim {rope.rotary_dim}, expected an even number to {rope.head_dim}"
    for key in NEEDS.get(rope.type, ()):
        if getattr(rope, key) is None:
            yield f"{name}.type {rope.type} without {name}.{key}"
    for key in POSITIVE:
        value = getattr(rope, key)
        if value is not None and not 0 < value < 1e12:
            yield f"{name}.{key} {value}, expected a positive number"
    for key in ("short_factor", "long_factor"):
        factors = getattr(rope, key)
        if factors is not None and (
            len(factors) != rope.rotary_dim // 2 or not all(0 < one < 1e12 for one in factors)
        ):
            yield f"{name}.{key}, expected {rope.rotary_dim // 2} positive numbers"
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if rope.type == "llama3" and low is not None and high is not None and not low < high:
        yield f"{name}.low_freq_factor {low}, expected less than high_freq_factor {high}"
