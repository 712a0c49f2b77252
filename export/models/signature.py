"""The inputs and outputs of the draft graph and of the target graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from draftrt.errors import SpecError
from draftrt.export.models.shapes import (
    GATED_DELTA,
    SHORT_CONV,
    channels,
    kinds_of_layers,
    stateful,
)
from draftrt.signature import (
    COMMIT_ROWS,
    LARGEST_BLOCK,
    PAST,
    PRESENT,
    DimRange,
    Signature,
    TensorSpec,
)
from draftrt.spec import (
    DecoderSpec,
    DrafterSpec,
    GatedDeltaSpec,
    Precision,
    ShortConvSpec,
    VocabMap,
)

ROWS, ASKED = "R", "S"
MAX_ROWS = 256
NUM_STATES = {GATED_DELTA: 6, SHORT_CONV: 2}  # of a layer: see `state_tensors`, `conv_tensors`
BLOCK_ROWS = 64  # of a target with recurrent states: one block


def most_rows(spec: DecoderSpec) -> int:
    """Return the rows of a target's longest call."""
    return MAX_ROWS if spec.delta is None else BLOCK_ROWS


def target_signature(
    spec: DecoderSpec,
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
    *,
    is_flexible: bool = False,
) -> Signature:
    """Return the table of a target graph.

    Prompts longer than `MAX_ROWS` are fed in pieces, and so are more than `LARGEST_BLOCK` tokens
    whose next ones are all asked for.
    """
    length = CAPACITY if is_flexible else max_context
    inputs = [
        TensorSpec(name="input_ids", dtype="int64", shape=(1, ROWS), about="new tokens"),
        TensorSpec(
            name="context_length",
            dtype="int64",
            shape=(1,),
            about="rows committed before this call",
        ),
        TensorSpec(
            name="logit_rows",
            dtype="int64",
            shape=(ASKED,),
            about="rows of this call, 0 to R - 1, whose next token is asked for",
        ),
    ]
    outputs = [
        TensorSpec(name="next_ids", dtype="int64", shape=(1, ASKED), about="greedy next token"),
        TensorSpec(name="logits", dtype="float32", shape=(1, ASKED, spec.vocab_size)),
    ]
    if taps:
        width = len(taps) * spec.hidden_size
        about = f"outputs of decoder layers {list(taps)} (-1: the embedding)"
        outputs.append(
            TensorSpec(name="features", dtype="float32", shape=(1, ROWS, width), about=about)
        )
    if stateful(spec) is not None:
        about = "rows of the previous call that stand"
        inputs.append(TensorSpec(name=COMMIT_ROWS, dtype="int64", shape=(1,), about=about))
    past, present = _held(spec, precision, length)
    longest = min(most_rows(spec), max_context)
    most = min(LARGEST_BLOCK, max_context)
    ranges = {
        ROWS: DimRange(min=1, opt=min(8, longest), max=longest),
        ASKED: DimRange(min=1, opt=min(8, most), max=most),
    }
    if is_flexible:
        ranges[CAPACITY] = DimRange(min=1, opt=max_context, max=max_context)
    return Signature(inputs=(*inputs, *past), outputs=(*outputs, *present), dimensions=ranges)


EXTRA_OUTPUTS = ("hidden", "base_logits", "logits", "draft_vocab_ids", "candidates")
SAMPLED_INPUTS = ("noise", "inverse_temperature")
CANDIDATE_OUTPUTS = ("candidate_ids", "candidate_scores")
SAMPLED_OUTPUTS = (*CANDIDATE_OUTPUTS, "vocabulary_ids")


def output_names(
    spec: DrafterSpec, extra: tuple[str, ...] = (), *, is_sampled: bool = False
) -> tuple[str, ...]:
    """Return the outputs before the caches, in graph order, without extras the family lacks."""
    names = ["draft_ids"] + (["confidence"] if spec.confidence is not None else [])
    walked = {"candidates", *CANDIDATE_OUTPUTS}
    has = {*EXTRA_OUTPUTS, *walked} if spec.selector is not None else set(EXTRA_OUTPUTS) - walked
    asked = {name for name in extra if name in has}
    if is_sampled and spec.selector is not None:
        asked |= set(CANDIDATE_OUTPUTS)
    elif is_sampled:
        asked.add("logits")
        if spec.vocab_map is not VocabMap.IDENTITY:
            asked.add("vocabulary_ids")
    return (*names, *(name for name in (*EXTRA_OUTPUTS, *SAMPLED_OUTPUTS) if name in asked))


NEW_ROWS = "T"
CAPACITY = "L"
NOISE = SAMPLED_INPUTS[0]
Walk = Literal["greedy", "drawn"]


def draft_signature(
    spec: DrafterSpec,
    precision: Precision,
    max_context: int,
    extra_outputs: tuple[str, ...] = (),
    *,
    is_flexible: bool = False,
    is_sampled: bool = False,
) -> Signature:
    """Return the table of a draft graph.

    Args:
        spec: the drafter.
        precision: element type of the caches.
        max_context: rows of the caches, at most.
        extra_outputs: further outputs.
        is_flexible: leave the rows of the caches open.
        is_sampled: the choices are draws, by noise among the inputs.

    Raises:
        SpecError: ``max_context`` leaves no room for a block and a few context rows.
    """
    longest = max_context - spec.block_size
    if longest < 3:
        raise SpecError(
            f"max_context: got {max_context}, expected at least {spec.block_size + 3} "
            f"(block_size {spec.block_size} and three context rows)",
            hint="raise --max-context",
        )
    rows = CAPACITY if is_flexible else max_context
    cache = (1, spec.num_kv_heads, rows, spec.head_dim)
    past, present = cache_tensors([cache] * spec.num_layers, precision)
    inputs = _inputs(spec) + (_noise(spec) if is_sampled else [])
    names = output_names(spec, extra_outputs, is_sampled=is_sampled)
    outputs = [_output(spec, name) for name in names]
    ranges = {
        NEW_ROWS: DimRange(min=1, opt=min(spec.num_draft_tokens + 1, longest), max=longest),
    }
    if is_flexible:
        ranges[CAPACITY] = DimRange(min=spec.block_size + 2, opt=max_context, max=max_context)
    return Signature(inputs=(*inputs, *past), outputs=(*outputs, *present), dimensions=ranges)


def cache_tensors(
    shapes: Sequence[tuple[int | str, ...]], precision: Precision, first: int = 0
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the caches of a graph as its inputs and, in the same buffers, as its outputs.

    Args:
        shapes: [1, G, L, D] of each layer's keys, which is that of its values too.
        precision: their element type.
        first: number of the first of these layers.
    """
    past, present = [], []
    for index, shape in enumerate(shapes, first):
        for part in ("key", "value"):
            name, dtype = f"past_{part}_{index}", precision.dtype
            past.append(TensorSpec(name=name, dtype=dtype, shape=shape))
            present.append(
                TensorSpec(name=f"present_{part}_{index}", dtype=dtype, shape=shape, alias=name)
            )
    return past, present


def _held(
    spec: DecoderSpec, precision: Precision, length: int | str
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the caches and states of a target as its inputs and as its outputs."""
    past: list[TensorSpec] = []
    present: list[TensorSpec] = []
    for layer, kind in enumerate(kinds_of_layers(spec)):
        groups, dim = spec.cache_shape(layer)
        if spec.delta is not None and kind == GATED_DELTA:
            made = state_tensors(spec.delta, layer, precision)
        elif spec.short_conv is not None and kind == SHORT_CONV:
            made = conv_tensors(spec.short_conv, spec.hidden_size, layer, precision)
        else:
            made = cache_tensors([(1, groups, length, dim)], precision, layer)
        past += made[0]
        present += made[1]
    if stateful(spec) is not None:
        place = TensorSpec(name=f"{PAST}carried_from", dtype="int64", shape=(1,))
        past.append(place)
        present.append(replace(place, name=f"{PRESENT}carried_from", becomes=place.name))
    return past, present


def state_tensors(
    delta: GatedDeltaSpec, layer: int, precision: Precision
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the states of one layer as its inputs and as the outputs that become them.

    Args:
        delta: the layers with states.
        layer: number of this one.
        precision: element type of what goes into the convolution; all else is float32.
    """
    groups, times = delta.num_key_heads, delta.num_value_heads // delta.num_key_heads
    rows, dtype = delta.carried_rows, precision.dtype
    past = [
        TensorSpec(name=f"past_{name}_{layer}", dtype=kind, shape=shape, about=about)
        for name, kind, shape, about in (
            (
                "state",
                "float32",
                (groups, times, delta.key_dim, delta.value_dim),
                "before the rows carried",
            ),
            (
                "window",
                dtype,
                (delta.kernel_size - 1, channels(delta)),
                "convolution inputs before the rows carried",
            ),
            ("inputs", dtype, (rows, channels(delta)), "convolution inputs of the rows carried"),
            ("keys", "float32", (groups, 1, rows, delta.key_dim), "keys of the rows carried"),
            ("values", "float32", (groups, times, rows, delta.value_dim), "their corrected values"),
            ("decays", "float32", (groups, times, rows), "logarithms of their decays"),
        )
    ]
    return past, _after(past)


def conv_tensors(
    conv: ShortConvSpec, hidden_size: int, layer: int, precision: Precision
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the same of one layer with nothing but a convolution."""
    past = [
        TensorSpec(
            name=f"past_{name}_{layer}",
            dtype=precision.dtype,
            shape=(rows, hidden_size),
            about=about,
        )
        for name, rows, about in (
            ("window", conv.kernel_size - 1, "convolution inputs before the rows carried"),
            ("inputs", conv.carried_rows, "convolution inputs of the rows carried"),
        )
    ]
    return past, _after(past)


def _after(past: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return states as they are after a call."""
    return [
        replace(one, name=one.name.replace("past", "present", 1), becomes=one.name, about="")
        for one in past
    ]


def _inputs(spec: DrafterSpec) -> list[TensorSpec]:
    return [
        TensorSpec(
            name="anchor",
            dtype="int64",
            shape=(1,),
            about="last committed token; not yet in the context",
        ),
        TensorSpec(
            name="target_hidden",
            dtype="float32",
            shape=(1, NEW_ROWS, spec.feature_size),
            about="features of the tokens committed since the last call",
        ),
        TensorSpec(
            name="context_length",
            dtype="int64",
            shape=(1,),
            about="cache rows committed before this call",
        ),
    ]


def num_choices(spec: DrafterSpec) -> int:
    """Return how many candidates each draft is chosen from: top_k, or every draft id."""
    if spec.selector is not None:
        return spec.selector.top_k
    return spec.draft_vocab_size - spec.num_padded_rows


def _noise(spec: DrafterSpec) -> list[TensorSpec]:
    return [
        TensorSpec(
            name="noise",
            dtype="float32",
            shape=(1, spec.num_draft_tokens, num_choices(spec)),
            about="Gumbel noise on the scores of each draft; zero is greedy",
        ),
        TensorSpec(
            name="inverse_temperature",
            dtype="float32",
            shape=(1,),
            about="factor on the scores before the noise; one is greedy",
        ),
    ]


def _output(spec: DrafterSpec, name: str) -> TensorSpec:
    drafts, width = spec.num_draft_tokens, spec.draft_vocab_size - spec.num_padded_rows
    top = spec.selector.top_k if spec.selector else 0
    known = {
        "draft_ids": ("int64", (1, drafts), "drafted tokens in the target's vocabulary"),
        "confidence": (
            "float32",
            (1, drafts),
            "probability that a draft survives if those before it did",
        ),
        "hidden": ("float32", (1, drafts, spec.hidden_size), "final-normed rows that yield drafts"),
        "base_logits": (
            "float32",
            (1, drafts, width),
            "logits before the Markov bias; padded rows left out",
        ),
        "logits": (
            "float32",
            (1, drafts, width),
            "logits the choice is taken from (before the selector)",
        ),
        "draft_vocab_ids": ("int64", (1, drafts), "drafted tokens before d2t"),
        "candidates": (
            "int64",
            (1, drafts, top),
            "ascending candidate ids",
        ),
        "candidate_ids": ("int64", (1, drafts, top), "what each draft was chosen from"),
        "candidate_scores": ("float32", (1, drafts, top), "the selector's scores of the same"),
        "vocabulary_ids": ("int64", (1, width), "target id of each column of the logits"),
    }
    dtype, shape, about = known[name]
    return TensorSpec(name=name, dtype=dtype, shape=shape, about=about)
