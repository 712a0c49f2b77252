"""The layers of a Qwen3.5 target: gated delta rule with a convolution, and gated full attention.

All norms but the one behind the delta rule multiply with one plus their weight. (transformers,
``modeling_qwen3_5``.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.architectures import gated_delta
from draftrt.export.models.architectures.carried import Carried, convolve, slide
from draftrt.export.models.attention import View, attended
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, GatedDeltaSpec, Profile

LENGTH_EPS = 1e-6  # of the length of queries and keys, inside its root


def advance(
    spec: DecoderSpec,
    layer: Weights,
    x: Tensor,
    view: View,
    call: Carried | None,
    caches: Sequence[Tensor],
    profile: Profile,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        layer: the layer's weights.
        x: [R, H] float32.
        view: the call, as a layer with attention sees it.
        call: the call, as one with a state sees it; None for a layer with attention.
        caches: keys and values, [1, G, L, D] each, or the states, see
            `draftrt.export.models.signature.state_tensors`.
        profile: operators allowed when traced.

    Returns:
        The residual stream, and the caches after the call.
    """
    u = ops.offset_norm(x, layer("input_layernorm.weight"), spec.rms_norm_eps)
    if call is None:
        mixed, after = _attention(spec, layer.below("self_attn"), u, view, caches, profile)
    else:
        assert spec.delta is not None
        delta, eps = spec.delta, spec.rms_norm_eps
        mixed, after = _delta_rule(delta, eps, layer.below("linear_attn"), u, call, caches)
    x = x + mixed
    u = ops.offset_norm(x, layer("post_attention_layernorm.weight"), spec.rms_norm_eps)
    return x + gated_mlp(u, layer.below("mlp"), spec.activation), after


def _attention(
    spec: DecoderSpec,
    w: Weights,
    u: Tensor,
    view: View,
    caches: Sequence[Tensor],
    profile: Profile,
) -> tuple[Tensor, Sequence[Tensor]]:
    (keys, values), dim = caches, spec.head_dim

    def project(name: str, heads: int, width: int) -> Tensor:
        rows = ops.linear(u, w(f"{name}_proj.weight"), w.get(f"{name}_proj.bias"))
        return rows.reshape(1, -1, heads, width)

    def turn(name: str, heads: Tensor) -> Tensor:
        normed = ops.offset_norm(heads, w(f"{name}_norm.weight"), spec.rms_norm_eps).transpose(1, 2)
        turned = ops.rotate(normed, view.cos, view.sin, interleaved=False, profile=profile)
        return turned.to(keys.dtype)

    query, gate = project("q", spec.num_heads, 2 * dim).chunk(2, dim=-1)
    keys = ops.write_cache(
        keys, turn("k", project("k", spec.num_kv_heads, dim)), view.start, profile
    )
    value = project("v", spec.num_kv_heads, dim).to(values.dtype).transpose(1, 2)
    values = ops.write_cache(values, value, view.start, profile)
    query = turn("q", query)
    gates = torch.sigmoid(gate.float()).reshape(-1, spec.num_heads * dim)
    out = attended(view, None, query, keys, values, profile, scale=dim**-0.5)
    mixed = ops.linear_to_residual(out.float() * gates, w("o_proj.weight"), w.get("o_proj.bias"))
    return mixed, (keys, values)


def _delta_rule(
    spec: GatedDeltaSpec,
    eps: float,
    w: Weights,
    u: Tensor,
    call: Carried,
    states: Sequence[Tensor],
) -> tuple[Tensor, Sequence[Tensor]]:
    state, window, inputs, *carried = states
    entered = ops.linear(u, w("in_proj_qkv.weight")).to(inputs.dtype)
    whole, window, inputs = slide(call, entered, window, inputs)
    mixed = F.silu(convolve(whole, w("conv1d.weight")))
    keyed = spec.num_key_heads * spec.key_dim
    queries = _unit(mixed[:, :keyed], spec, scale=spec.key_dim**-0.5)
    keys = _unit(mixed[:, keyed : 2 * keyed], spec)
    values = mixed[:, 2 * keyed :].reshape(-1, spec.num_value_heads, spec.value_dim)
    values = _by_key_head(values, spec)
    rates = torch.sigmoid(ops.linear(u, w("in_proj_b.weight")).float())
    dwelling = _softplus(ops.linear(u, w("in_proj_a.weight")).float() + w("dt_bias").float())
    decays = dwelling * (0.0 - torch.exp(w("A_log").float()))
    rows = gated_delta.Written(keys, values, _by_key_head(decays[..., None], spec)[..., 0])
    read, state, onward = gated_delta.advance(
        call,
        state,
        gated_delta.Written(*carried),
        queries,
        rows,
        _by_key_head(rates[..., None], spec)[..., 0],
    )
    heads = read.reshape(spec.num_value_heads, -1, spec.value_dim).transpose(0, 1)
    z = ops.linear(u, w("in_proj_z.weight")).float()
    z = z.reshape(-1, spec.num_value_heads, spec.value_dim)
    gated = ops.rms_norm(heads, w("norm.weight"), eps) * F.silu(z)
    gated = gated.reshape(-1, spec.num_value_heads * spec.value_dim)
    mixed = ops.linear_to_residual(gated, w("out_proj.weight"))
    return mixed, (state, window, inputs, onward.keys, onward.values, onward.decays)


def _unit(rows: Tensor, spec: GatedDeltaSpec, *, scale: float = 1.0) -> Tensor:
    """Return rows [R, G * K] as vectors of length ``scale`` by key head, [G, 1, R, K]."""
    dim = spec.key_dim
    heads = rows.reshape(-1, spec.num_key_heads, dim)
    weight = torch.full((dim,), scale * dim**-0.5)
    return ops.rms_norm(heads, weight, LENGTH_EPS / dim).transpose(0, 1)[:, None]


def _by_key_head(heads: Tensor, spec: GatedDeltaSpec) -> Tensor:
    """Return values [R, G * M, V] as [G, M, R, V]: a key head has M value heads in a row."""
    times = spec.num_value_heads // spec.num_key_heads
    turned = heads.transpose(0, 1)
    return turned.reshape(spec.num_key_heads, times, -1, heads.shape[2])


def _softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + e^x)``; as ``2 atanh`` it keeps its digits where it is small."""
    raised = torch.exp(0.0 - x.abs())
    return torch.relu(x) + 2 * torch.atanh(raised / (2 + raised))
