"""The input and output table of a draft graph, and feeds made from it."""

from __future__ import annotations

import numpy as np

from draftrt.errors import SpecError
from draftrt.export.drafter import output_names
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import DrafterSpec, Precision

NEW_ROWS = "T"
CAPACITY = "L"


def draft_signature(
    spec: DrafterSpec,
    precision: Precision,
    max_context: int,
    extra_outputs: tuple[str, ...] = (),
    *,
    is_flexible: bool = False,
) -> Signature:
    """Return the table of a draft graph; a flexible one leaves the rows of the caches open.

    Raises:
        SpecError: ``max_context`` leaves no room for a block and one context row.
    """
    longest = max_context - spec.block_size
    if longest < 2:
        raise SpecError(
            f"max_context: got {max_context}, expected at least {spec.block_size + 2} "
            f"(block_size {spec.block_size} and two context rows)",
            hint="raise --max-context",
        )
    rows = CAPACITY if is_flexible else max_context
    cache: tuple[int | str, ...] = (1, spec.num_kv_heads, rows, spec.head_dim)
    inputs = [
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
    outputs = [_output(spec, name) for name in output_names(spec, extra_outputs)]
    for index in range(spec.num_layers):
        for part in ("key", "value"):
            past = f"past_{part}_{index}"
            inputs.append(TensorSpec(name=past, dtype=precision.dtype, shape=cache))
            outputs.append(
                TensorSpec(
                    name=f"present_{part}_{index}", dtype=precision.dtype, shape=cache, alias=past
                )
            )
    ranges = {
        NEW_ROWS: DimRange(min=1, opt=min(spec.num_draft_tokens + 1, longest), max=longest),
    }
    if is_flexible:
        ranges[CAPACITY] = DimRange(min=spec.block_size + 2, opt=max_context, max=max_context)
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), dimensions=ranges)


def _output(spec: DrafterSpec, name: str) -> TensorSpec:
    drafts, width = spec.num_draft_tokens, spec.draft_vocab_size - spec.num_padded_rows
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
            "logits the greedy choice is taken from (before the selector)",
        ),
        "draft_vocab_ids": ("int64", (1, drafts), "drafted tokens before d2t"),
        "candidates": (
            "int64",
            (1, drafts, spec.selector.top_k if spec.selector else 0),
            "ascending candidate ids",
        ),
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
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return random feeds of one round, caches not included."""
    ids = spec.target_vocab_size or spec.input_vocab_size
    return {
        "anchor": rng.integers(0, ids, size=(1,), dtype=np.int64),
        "target_hidden": (scale * rng.standard_normal((1, new_rows, spec.feature_size))).astype(
            np.float32
        ),
        "context_length": np.array([context_length], dtype=np.int64),
    }
