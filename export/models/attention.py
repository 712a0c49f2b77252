"""What the rows of one call look like: positions, angles, who may look at whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.spec import DrafterSpec, LayerSpec, Profile, WindowEdge


@dataclass(frozen=True, slots=True)
class View:
    """Shared facts of one call of a graph.

    Attributes:
        start: [1] int64, first cache row that this call writes.
        valid: [1] int64, cache rows in use after this call.
        num_queries: rows that ask (the block, K), the last ones written.
        positions: [R] int64 of every row written by this call.
        cos: [1, R, rotary_dim / 2] float32.
        sin: as ``cos``.
        masks: visibility rule to [1, 1, K, L] bool; rules that need no mask are absent.
    """

    start: Tensor
    valid: Tensor
    num_queries: int
    positions: Tensor
    cos: Tensor
    sin: Tensor
    masks: dict[LayerSpec, Tensor]


def needs_mask(layer: LayerSpec) -> bool:
    """Whether some valid row is hidden from some query of this layer."""
    return layer.is_causal or layer.window is not None


def mask_of(layer: LayerSpec, queries: Tensor, capacity: int) -> Tensor:
    """Return who sees whom, [1, 1, K, L] bool (REFERENCE: window edges by publisher).

    Cache row j holds the key of position j, context rows first, then the block.

    Args:
        layer: the rule.
        queries: [K] int64, positions of the rows that ask.
        capacity: rows of the cache, L.
    """
    query = queries[:, None]  # [K, 1]
    key = torch.arange(capacity, device=queries.device)[None]  # [1, L]
    first, last = query[:1], query[-1:]  # block start s and its last position
    seen = key <= (query if layer.is_causal else last)
    if layer.window is not None and layer.window_edge is WindowEdge.QUERY:
        seen = seen & (query - key < layer.window)
        if not layer.is_causal:
            seen = seen & (key - query < layer.window)
    elif layer.window is not None:
        seen = seen & (key >= first - layer.window)
    return seen.expand(queries.shape[0], capacity)[None, None]


def attend_with_cache(
    spec: DrafterSpec,
    rule: LayerSpec,
    profile: Profile,
    view: View,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate, write this call's keys and values into the caches, and attend.

    Args:
        spec: the drafter.
        rule: who may look at whom.
        profile: operators allowed when traced.
        view: positions, angles and masks of this call.
        query: [1, N, K, D] float32, normed.
        key: [1, G, T + K, D] float32, normed.
        value: [1, G, T + K, D].
        keys: [1, G, L, D] cache.
        values: [1, G, L, D] cache.
        sinks: [N] or None.

    Returns:
        Attended rows [K, N * D] and both caches.
    """
    interleaved = spec.rope.layout.value == "interleaved"
    count = view.num_queries
    query = ops.rotate(
        query, view.cos[:, -count:], view.sin[:, -count:], interleaved=interleaved, profile=profile
    ).to(keys.dtype)
    key = ops.rotate(key, view.cos, view.sin, interleaved=interleaved, profile=profile)
    keys = ops.write_cache(keys, key.to(keys.dtype), view.start, profile)
    values = ops.write_cache(values, value.to(values.dtype), view.start, profile)
    mask = view.masks.get(rule)
    if sinks is not None:
        if mask is None:
            mask = (torch.arange(keys.shape[2], device=keys.device) < view.valid)[None, None, None]
        out = ops.attend_plainly(
            query, keys, values, mask=mask, scale=spec.attention_scale, sinks=sinks
        )
    else:
        out = ops.attend(
            query,
            keys,
            values,
            valid=view.valid,
            mask=mask,
            scale=spec.attention_scale,
            profile=profile,
        )
    return out.transpose(1, 2).reshape(count, spec.num_heads * spec.head_dim), keys, values


def attended(
    view: View,
    mask: Tensor | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
    *,
    scale: float,
) -> Tensor:
    """Return what a target's new rows see in caches that hold them already, [R, N * D].

    Args:
        view: the call.
        mask: [1, 1, R, L] bool of a sliding layer; None for a full one.
        query: [1, N, R, D] in the caches' dtype.
        keys: [1, G, L, D] cache.
        values: as ``keys``.
        profile: operators allowed when traced.
        scale: factor on the scores.
    """
    out = ops.attend(
        query,
        keys,
        values,
        valid=view.valid,
        mask=mask,
        scale=scale,
        profile=profile,
        is_causal=mask is None,
    )
    return out.transpose(1, 2).reshape(-1, query.shape[1] * query.shape[3])
