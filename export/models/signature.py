"""The input and output table of a draft graph, and feeds made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from draftrt.errors import SpecError
from draftrt.export.models.outputs import SAMPLED_INPUTS, output_names
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import DrafterSpec, Precision

NEW_ROWS = "T"
CAPACITY = "L"
LARGEST_BLOCK = 64  # rows a target verifies in one call, at most
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
    shapes: Sequence[tuple[int | str, ...]], precision: Precision
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the caches of a graph as its inputs and, in the same buffers, as its outputs.

    Args:
        shapes: [1, G, L, D] of each layer's keys, which is that of its values too.
        precision: their element type.
    """
    past, present = [], []
    for index, shape in enumerate(shapes):
        for part in ("key", "value"):
            name, dtype = f"past_{part}_{index}", precision.dtype
            past.append(TensorSpec(name=name, dtype=dtype, shape=shape))
            present.append(
                TensorSpec(name=f"present_{part}_{index}", dtype=dtype, shape=shape, alias=name)
            )
    return past, present


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


def round_feeds(
    spec: DrafterSpec,
    rng: np.random.Generator,
    *,
    new_rows: int,
    context_length: int,
    scale: float = 1.0,
    walk: Walk | None = None,
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return random feeds of one round, caches not included.

    Args:
        spec: the drafter.
        rng: source of the values.
        new_rows: T.
        context_length: cache rows committed before the round.
        scale: standard deviation of the features.
        walk: how a sampled graph chooses; None for a graph without noise.
    """
    ids = spec.target_vocab_size or spec.input_vocab_size
    feeds: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "anchor": rng.integers(0, ids, size=(1,), dtype=np.int64),
        "target_hidden": (scale * rng.standard_normal((1, new_rows, spec.feature_size))).astype(
            np.float32
        ),
        "context_length": np.array([context_length], dtype=np.int64),
    }
    shape = (1, spec.num_draft_tokens, num_choices(spec))
    if walk == "greedy":
        feeds["noise"] = np.zeros(shape, np.float32)
        feeds["inverse_temperature"] = np.ones(1, np.float32)
    elif walk == "drawn":
        feeds["noise"] = rng.gumbel(size=shape).astype(np.float32)
        feeds["inverse_temperature"] = rng.uniform(0.5, 2.0, size=1).astype(np.float32)
    return feeds


def walk_to_compare(signature: Signature, precision: Precision) -> Walk | None:
    """Return how a graph should choose where it is compared with its module.

    In 16 bits candidates of equal logits may come in another order, which noise would see.
    """
    if NOISE not in [tensor.name for tensor in signature.inputs]:
        return None
    return "drawn" if precision is Precision.FP32 else "greedy"
