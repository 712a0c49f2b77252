"""What the gate feeds a graph: rounds, caches, features drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftrt.export.models.signature import NOISE, Walk, num_choices
from draftrt.signature import (
    ANCHOR,
    CONTEXT_LENGTH,
    INPUT_IDS,
    LOGIT_ROWS,
    TARGET_HIDDEN,
    Signature,
)
from draftrt.spec import DecoderSpec, DrafterSpec, Precision


def rounds_to_check(spec: DrafterSpec, max_context: int) -> list[tuple[int, int]]:
    """Return (context length, new rows) of the rounds that are compared: 0, 1, next, and long."""
    longest = max_context - spec.block_size
    first = min(7, longest - 2)
    return [(0, 1), (1, first), (1 + first, min(2, longest - 1 - first)), (longest - 2, 2)]


def round_feeds(
    spec: DrafterSpec,
    rng: np.random.Generator,
    *,
    new_rows: int,
    context_length: int,
    scale: float = 1.0,
    walk: Walk | None = None,
) -> dict[str, NDArray[Any]]:
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
    feeds: dict[str, NDArray[Any]] = {
        ANCHOR: rng.integers(0, ids, size=(1,), dtype=np.int64),
        TARGET_HIDDEN: (scale * rng.standard_normal((1, new_rows, spec.feature_size))).astype(
            np.float32
        ),
        CONTEXT_LENGTH: np.array([context_length], dtype=np.int64),
    }
    shape = (1, spec.num_draft_tokens, num_choices(spec))
    if walk == "greedy":
        feeds[NOISE] = np.zeros(shape, np.float32)
        feeds["inverse_temperature"] = np.ones(1, np.float32)
    elif walk == "drawn":
        feeds[NOISE] = rng.gumbel(size=shape).astype(np.float32)
        feeds["inverse_temperature"] = rng.uniform(0.5, 2.0, size=1).astype(np.float32)
    return feeds


def target_rounds(max_context: int) -> list[tuple[int, int]]:
    """Return (context length, new rows) of a target's calls: a prompt, a token, and the longest."""
    first = min(9, max_context - 4)
    return [(0, first), (first, 1), (max_context - 3, 3)]


def target_feeds(
    spec: DecoderSpec, rng: np.random.Generator, *, new_rows: int, context_length: int
) -> dict[str, NDArray[Any]]:
    """Return random feeds of one call of a target, caches not included.

    Every row is asked for, the last first, and the first one twice.
    """
    return {
        INPUT_IDS: rng.integers(0, spec.vocab_size, size=(1, new_rows), dtype=np.int64),
        CONTEXT_LENGTH: np.array([context_length], dtype=np.int64),
        LOGIT_ROWS: np.array([*range(new_rows - 1, -1, -1), 0], dtype=np.int64),
    }


def walk_to_compare(signature: Signature, precision: Precision) -> Walk | None:
    """Return how a graph should choose where it is compared with its module.

    In 16 bits candidates of equal logits may come in another order, which noise would see.
    """
    if NOISE not in [tensor.name for tensor in signature.inputs]:
        return None
    return "drawn" if precision is Precision.FP32 else "greedy"


def random_caches(
    shapes: Sequence[tuple[int, ...]], precision: Precision
) -> list[NDArray[np.generic]]:
    """Return keys and values of a layer, normally distributed around zero."""
    generator, kind = torch.Generator().manual_seed(7), getattr(torch, precision.dtype)
    return [
        torch.empty(shape).normal_(std=0.5, generator=generator).to(kind).numpy()
        for shape in shapes
    ]


def empty_caches(spec: DrafterSpec, precision: Precision, max_context: int) -> list[Tensor]:
    """Return zeroed caches, keys and values of each layer in turn, [1, G, L, D]."""
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    kind: torch.dtype = getattr(torch, precision.dtype)
    return [torch.zeros(shape, dtype=kind) for _ in range(2 * spec.num_layers)]
