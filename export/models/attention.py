"""What the rows of one call look like: positions, angles, who may look at whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.tracing import names
from draftrt.spec import LayerSpec, Profile, WindowEdge

Caches = tuple[Tensor, ...]  # of one layer: keys and values [1, G, L, D] each, or its states


@dataclass(frozen=True, slots=True)
class View:
    """One call of a graph, as the layers of one kind see it.

    Attributes:
        start: [1] int64, first cache row that this call writes.
        valid: [1] int64, cache rows in use after this call.
        num_queries: rows that ask, the last ones written: a drafter's block, K; None for all of
            them, a target's R.
        cos: [1, R, rotary_dim / 2] float32, of every row written by this call.
        sin: as ``cos``.
        interleaved: how the angles turn a head, see `draftrt.export.models.ops.rotate`.
        mask: [1, 1, K, L] bool; None where every query sees every valid row, or with ``is_causal``
            those up to its own.
        is_causal: what no mask means.
        profile: operators allowed when traced.
        context: [T, H] float32, fused context of the rows before the block, which have keys and
            values alone; None for a target.
    """

    start: Tensor
    valid: Tensor
    num_queries: int | None
    cos: Tensor
    sin: Tensor
    interleaved: bool
    mask: Tensor | None
    is_causal: bool
    profile: Profile
    context: Tensor | None = None

    def rows(self, u: Tensor) -> Tensor:
        """Return the rows that get keys and values: the context, then u [K, H]."""
        return u if self.context is None else torch.cat((self.context, u))


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
    return names.name(seen.expand(queries.shape[0], capacity)[None, None], names.MASK)


def attend_with_cache(
    view: View,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    caches: Caches,
    *,
    scale: float,
    has_angles: bool = True,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Caches]:
    """Rotate, write this call's keys and values into the caches, and attend.

    Args:
        view: positions, angles and mask of this call.
        query: [1, K, N, D], normed or as it is.
        key: [1, R, G, D], as the queries; the context's rows first.
        value: [1, R, G, D].
        caches: keys and values.
        scale: factor on the scores.
        has_angles: whether queries and keys are turned.
        sinks: [N] or None.

    Returns:
        Attended rows [K, N * D] in the caches' dtype, and both caches.
    """
    keys, values = caches
    count = slice(None) if view.num_queries is None else slice(-view.num_queries, None)

    def turned(heads: Tensor, rows: slice) -> Tensor:
        heads = heads.float().transpose(1, 2)
        if has_angles:
            heads = ops.rotate(
                heads,
                view.cos[:, rows],
                view.sin[:, rows],
                interleaved=view.interleaved,
                profile=view.profile,
            )
        return heads.to(keys.dtype)

    query = ops.name(turned(query, count), names.QUERY)
    keys = ops.write_cache(keys, turned(key, slice(None)), view.start, view.profile)
    new = value.to(values.dtype).transpose(1, 2)
    values = ops.write_cache(values, new, view.start, view.profile)
    keys, values = ops.name(keys, names.KEYS), ops.name(values, names.VALUES)
    mask = view.mask
    if sinks is not None:
        if mask is None:
            mask = (torch.arange(keys.shape[2], device=keys.device) < view.valid)[None, None, None]
        out = ops.attend_plainly(query, keys, values, mask=mask, scale=scale, sinks=sinks)
    else:
        out = ops.attend(
            query,
            keys,
            values,
            valid=view.valid,
            mask=mask,
            scale=scale,
            profile=view.profile,
            is_causal=view.is_causal and mask is None,
        )
    out = ops.name(out, names.ATTENTION)
    return out.transpose(1, 2).reshape(-1, query.shape[1] * query.shape[3]), (keys, values)
