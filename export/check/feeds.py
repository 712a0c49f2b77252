"""What the gate feeds a graph: rounds, caches, features drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftrt.export.models.shapes import stateful
from draftrt.export.models.signature import NOISE, Walk, most_rows, num_choices
from draftrt.signature import (
    ANCHOR,
    COMMIT_ROWS,
    CONTEXT_LENGTH,
    INPUT_IDS,
    LOGIT_ROWS,
    TARGET_HIDDEN,
    Signature,
    cache_specs,
    state_specs,
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


def target_rounds(spec: DecoderSpec, max_context: int) -> list[tuple[int, int]]:
    """Return (context length, new rows) of a target's calls: a prompt, a token, and the longest.

    A target with states is called with more rows than it carries too, and loses some of both.
    """
    first = min(9, max_context - 4)
    if (held := stateful(spec)) is None:
        return [(0, first), (first, 1), (max_context - 3, 3)]
    kept = max(1, first - 3)
    most = min(held.carried_rows + 9, most_rows(spec), max_context - kept - 4)
    rest = [(kept + 1, most), (kept + max(1, most - 2), 2)] if most > 0 else []
    return [(0, first), (kept, 1), *rest, (max_context - 3, 3)]


def commits(rounds: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many rows of the call before each call finds committed."""
    lengths = [length for length, _ in rounds]
    return [0, *(min(b - a, n) for (a, n), b in zip(rounds, lengths[1:], strict=False))]


def target_feeds(
    spec: DecoderSpec,
    rng: np.random.Generator,
    *,
    new_rows: int,
    context_length: int,
    commit_rows: int = 0,
) -> dict[str, NDArray[Any]]:
    """Return random feeds of one call of a target, caches not included.

    Every row is asked for, the last first, and the first one twice.
    """
    told = {} if stateful(spec) is None else {COMMIT_ROWS: np.array([commit_rows], dtype=np.int64)}
    return {
        INPUT_IDS: rng.integers(0, spec.vocab_size, size=(1, new_rows), dtype=np.int64),
        CONTEXT_LENGTH: np.array([context_length], dtype=np.int64),
        LOGIT_ROWS: np.array([*range(new_rows - 1, -1, -1), 0], dtype=np.int64),
        **told,
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
    return [_drawn(shape, kind, generator).numpy() for shape in shapes]


def random_states(signature: Signature) -> dict[str, NDArray[np.generic]]:
    """Return caches and states of a target's graph, in graph order; decays are below zero."""
    held = {*cache_specs(signature), *state_specs(signature)}
    generator = torch.Generator().manual_seed(7)
    found = {}
    for tensor in (one for one in signature.inputs if one in held):
        shape, kind = tuple(int(s) for s in tensor.shape), getattr(torch, tensor.dtype)
        made = _drawn(shape, kind, generator) if kind.is_floating_point else torch.zeros(shape)
        made = -made.abs() if "_decays_" in tensor.name else made
        found[tensor.name] = made.to(kind).numpy()
    return found


def _drawn(shape: tuple[int, ...], kind: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).normal_(std=0.5, generator=generator).to(kind)


def empty_caches(spec: DrafterSpec, precision: Precision, max_context: int) -> list[Tensor]:
    """Return zeroed caches, keys and values of each layer in turn, [1, G, L, D]."""
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    kind: torch.dtype = getattr(torch, precision.dtype)
    return [torch.zeros(shape, dtype=kind) for _ in range(2 * spec.num_layers)]
