"""The few operators of a drafter or target graph, each with two forms of the same answer.

Eager form: plain PyTorch, used as the reference and traced for the ``compat`` profile (ONNX opset
20 operators). Fixed form: the ONNX operator that has no PyTorch counterpart (``TensorScatter``,
``Attention`` with a valid length), recorded while tracing for the ``fixed`` profile (opset 24).
Nothing here knows what a drafter is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftrt.export.models.weights import Weights
from draftrt.export.tracing import names
from draftrt.export.tracing.recorder import current
from draftrt.spec import Profile

FP16_ROOM = 32.0  # the product of a weight row whose magnitudes sum to 2000 still fits


def name(value: Tensor, called: str, into: Tensor | None = None) -> Tensor:
    """Name a value of the module that computes now, and return it."""
    return names.name(value, f"{names.current_path()}.{called}", into)


def linear(x: Tensor, w: Weights, *, has_bias: bool = True, path: str = "") -> Tensor:
    """Return ``x @ weight.T + bias`` in the weight's dtype.

    Traced as ``Gemm(transB=1)``, so that weights keep their checkpoint layout and name.

    Args:
        x: [R, in], any float dtype.
        w: ``weight`` [out, in] and, where there is one, ``bias`` [out].
        has_bias: False to leave a bias out.
        path: the product's name, where it is not that of its weight.
    """
    path = path or w.path
    weight, bias = w("weight"), w.get("bias") if has_bias else None
    x = x.to(weight.dtype)
    recorder = current()
    with names.inside(path):
        if recorder is None:
            return names.name(F.linear(x, weight, bias), path, x)
        inputs = (x, weight) if bias is None else (x, weight, bias)
        shape = (x.shape[0], weight.shape[0])
        out = recorder.emit("Gemm", inputs, {"transB": 1}, dtype=x.dtype, shape=shape)
        return names.name(out, path, x)


def linear_to_residual(x: Tensor, w: Weights) -> Tensor:
    """Return ``x @ weight.T + bias`` in float32, for rows that may be large.

    What a layer adds to its residual stream can exceed float16, whose largest number is 65504, in
    checkpoints with massive activations. With a float16 weight, rows of magnitudes above
    `FP16_ROOM` are brought down to it before the product and back after it, in float32; all others
    are left alone.

    Args:
        x: [R, in], any float dtype.
        w: ``weight`` [out, in] and, where there is one, ``bias`` [out].
    """
    if w("weight").dtype is not torch.float16:
        return linear(x, w).float()
    x, bias = x.float(), w.get("bias")
    factor = (x.abs().amax(dim=-1, keepdim=True) / FP16_ROOM).clamp_min(1.0)
    out = linear(x / factor, w, has_bias=False).float() * factor
    return out if bias is None else out + bias.float()


def rms_norm(x: Tensor, w: Weights, eps: float) -> Tensor:
    """Return the root-mean-square norm of the last axis in float32, times ``weight``."""
    return _normed(x, w, eps, w("weight").float())


def offset_norm(x: Tensor, w: Weights, eps: float) -> Tensor:
    """Return the root-mean-square norm in float32, times one plus ``weight``."""
    with w.inside():
        return _normed(x, w, eps, 1 + w("weight").float())


def bare_norm(x: Tensor, w: Weights, eps: float, scale: Tensor | None = None) -> Tensor:
    """Return the root-mean-square norm in float32 of a module without weights.

    Args:
        x: [..., D], any float dtype.
        w: the module; gives the name.
        eps: added to the mean of the squares.
        scale: [D] float32, a constant factor.
    """
    return _normed(x, w, eps, scale)


def _normed(x: Tensor, w: Weights, eps: float, scale: Tensor | None) -> Tensor:
    with w.inside():
        x = x.float()
        return w.name(F.rms_norm(x, (x.shape[-1],), scale, eps), into=x)


def look_up(ids: Tensor, w: Weights, name: str = "weight", *, called: str = "") -> Tensor:
    """Return the rows [n, D] of a table, in its dtype.

    Args:
        ids: [n] int64.
        w: the module with the table.
        name: of the table.
        called: name of the rows, below the module's path; empty for what the module returns.
    """
    with w.inside():
        return w.name(F.embedding(ids, w(name)), called, into=ids)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, profile: Profile) -> Tensor:
    """Rotate the first ``2 * cos.shape[-1]`` elements of each head by its position's angles.

    Args:
        x: [1, heads, R, D] float32.
        cos: [1, R, rotary_dim / 2] float32.
        sin: as ``cos``.
        interleaved: pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
        profile: operators allowed when traced.
    """
    half = cos.shape[-1]
    recorder = current()
    if recorder is not None and profile is Profile.FIXED:
        partial = 0 if 2 * half == x.shape[-1] else 2 * half
        attributes = {"interleaved": int(interleaved), "rotary_embedding_dim": partial}
        return recorder.emit(
            "RotaryEmbedding", (x, cos, sin), attributes, dtype=x.dtype, shape=x.shape
        )
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]  # [1, 1, R, half]
    if interleaved:
        pairs = rotated.reshape(*rotated.shape[:-1], half, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = rotated[..., :half], rotated[..., half:]
    parts = (first * cos - second * sin, second * cos + first * sin)
    out = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return out if rest.shape[-1] == 0 else torch.cat((out, rest), dim=-1)


def write_cache(cache: Tensor, rows: Tensor, start: Tensor, profile: Profile) -> Tensor:
    """Return ``cache`` with ``rows`` written from row ``start`` on.

    Args:
        cache: [1, G, L, D].
        rows: [1, G, R, D] with ``start + R <= L``.
        start: [1] int64.
        profile: operators allowed when traced.
    """
    recorder = current()
    if recorder is not None and profile is Profile.FIXED:
        return recorder.emit(
            "TensorScatter",
            (cache, rows, start),
            {"axis": 2, "mode": "linear"},
            dtype=cache.dtype,
            shape=cache.shape,
        )
    index = torch.arange(rows.shape[2], device=rows.device) + start
    return cache.index_copy(2, index, rows)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    valid: Tensor,
    mask: Tensor | None,
    scale: float,
    profile: Profile,
    is_causal: bool = False,
) -> Tensor:
    """Attend over the first ``valid`` rows of a cache; every group of N/G heads shares a key head.

    Args:
        query: [1, N, R, D].
        keys: [1, G, L, D] in the query's dtype.
        values: as ``keys``.
        valid: [1] int64, rows of the cache that hold something.
        mask: [1, 1, R, L] bool, true where a row may look; it already excludes rows at and past
            ``valid``. None: every valid row.
        scale: factor on the scores.
        profile: operators allowed when traced.
        is_causal: the R queries are the last valid rows and see only up to themselves; with it
            ``mask`` must be None.

    Returns:
        [1, N, R, D] in the query's dtype.
    """
    recorder = current()
    if recorder is not None and profile is Profile.FIXED:
        inputs = (
            (query, keys, values, mask)
            if mask is not None
            else (query, keys, values, None, None, None, valid)
        )
        attributes: dict[str, Any] = {"scale": scale} | ({"is_causal": 1} if is_causal else {})
        return recorder.emit("Attention", inputs, attributes, dtype=query.dtype, shape=query.shape)
    if mask is None:
        count = query.shape[2]
        ahead = torch.arange(count, device=keys.device)[:, None] - count if is_causal else -1
        mask = (torch.arange(keys.shape[2], device=keys.device) <= valid + ahead)[None, None]
    return attend_plainly(query, keys, values, mask=mask, scale=scale)


def attend_plainly(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with a mask and, if given, a sink logit a head; softmax in float32.

    Args:
        query: [1, N, R, D].
        keys: [1, G, L, D].
        values: [1, G, L, D].
        mask: [1, 1, R or 1, L] bool.
        scale: factor on the scores.
        sinks: [N], logits that join the softmax's denominator with a zero value.

    Returns:
        [1, N, R, D] in the query's dtype.
    """
    _, heads, rows, dim = query.shape
    groups = keys.shape[1]
    grouped = query.reshape(1, groups, (heads // groups) * rows, dim)
    grouped = (grouped.float() * scale).to(query.dtype)  # before the product: it may exceed float16
    scores = (grouped @ keys.transpose(-1, -2)).float()
    scores = scores.reshape(1, heads, rows, keys.shape[2]).masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1) if sinks is None else _softmax_beside(scores, sinks)
    weights = weights.to(query.dtype).reshape(1, groups, (heads // groups) * rows, keys.shape[2])
    return (weights @ values).reshape(1, heads, rows, dim)


def heads(x: Tensor, w: Weights, dim: int) -> Tensor:
    """Return the rows of a projection by heads of ``dim`` elements, [1, R, heads, dim]."""
    out = linear(x, w)
    return out.reshape(1, -1, out.shape[1] // dim, dim)


def _softmax_beside(scores: Tensor, sinks: Tensor) -> Tensor:
    """Softmax over scores [1, N, R, L] and one more logit a head, sinks [N], which is left out.

    The sinks are only ever broadcast.
    """
    peak = torch.maximum(scores.amax(dim=-1).transpose(1, 2), sinks)  # [1, R, N]
    raised = torch.exp(scores - peak.transpose(1, 2)[..., None])
    total = raised.sum(dim=-1).transpose(1, 2) + torch.exp(sinks - peak)
    return raised / total.transpose(1, 2)[..., None]


def gated_mlp(u: Tensor, w: Weights, activation: str) -> Tensor:
    """Return ``down(act(gate(u)) * up(u))``, [R, H] float32.

    Args:
        u: [R, H], any float dtype.
        w: ``gate_proj``, ``up_proj`` and ``down_proj``, each with a bias or without.
        activation: named as in transformers.
    """
    with w.inside():
        gate = linear(u, w.below("gate_proj")).float()
        up = linear(u, w.below("up_proj")).float()
        return linear_to_residual(ACTIVATIONS[activation](gate) * up, w.below("down_proj"))


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": torch.relu,
}
