"""The layers of a Qwen3.5 target: gated delta rule with a convolution, and gated full attention.

All norms but the one behind the delta rule multiply with one plus their weight. (transformers,
``modeling_qwen3_5``.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.architectures import gated_delta
from draftrt.export.models.architectures.carried import Carried, convolve, slide
from draftrt.export.models.attention import Caches, View, attend_with_cache
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.spec import DecoderSpec, GatedDeltaSpec

LENGTH_EPS = 1e-6  # of the length of queries and keys, inside its root


def advance(
    spec: DecoderSpec, w: Weights, x: Tensor, view: View, call: Carried | None, caches: Caches
) -> tuple[Tensor, Caches]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        w: the layer's weights.
        x: [R, H] float32.
        view: the call, as a layer with attention sees it.
        call: the call, as one with a state sees it; None for a layer with attention.
        caches: keys and values, or the states, see
            `draftrt.export.models.signature.state_tensors`.

    Returns:
        The residual stream, and the caches after the call.
    """
    u = ops.offset_norm(x, w.below("input_layernorm"), spec.rms_norm_eps)
    if call is None:
        mixed, caches = _attention(spec, w, u, view, caches)
    else:
        assert spec.delta is not None
        mixed, caches = _delta_rule(spec.delta, spec.rms_norm_eps, w, u, call, caches)
    x = x + mixed
    u = ops.offset_norm(x, w.below("post_attention_layernorm"), spec.rms_norm_eps)
    return x + gated_mlp(u, w.below("mlp"), spec.activation), caches


def _attention(
    spec: DecoderSpec, layer: Weights, u: Tensor, view: View, caches: Caches
) -> tuple[Tensor, Caches]:
    dim, eps = spec.head_dim, spec.rms_norm_eps
    with layer.inside("self_attn") as w:
        query, gate = ops.heads(u, w.below("q_proj"), 2 * dim).chunk(2, dim=-1)
        key = ops.offset_norm(ops.heads(u, w.below("k_proj"), dim), w.below("k_norm"), eps)
        value = ops.heads(u, w.below("v_proj"), dim)
        query = ops.offset_norm(query, w.below("q_norm"), eps)
        gates = torch.sigmoid(gate.float()).reshape(-1, spec.num_heads * dim)
        out, caches = attend_with_cache(view, query, key, value, caches, scale=dim**-0.5)
        return ops.linear_to_residual(out.float() * gates, w.below("o_proj")), caches


def _delta_rule(
    spec: GatedDeltaSpec, eps: float, layer: Weights, u: Tensor, call: Carried, states: Caches
) -> tuple[Tensor, Caches]:
    state, window, inputs, *carried = states
    with layer.inside("linear_attn") as w:
        entered = ops.linear(u, w.below("in_proj_qkv")).to(inputs.dtype)
        whole, window, inputs = slide(call, entered, window, inputs)
        mixed = F.silu(convolve(whole, w("conv1d.weight")))
        keyed = spec.num_key_heads * spec.key_dim
        queries = _unit(mixed[:, :keyed], w.below("q_norm"), spec, scale=spec.key_dim**-0.5)
        keys = _unit(mixed[:, keyed : 2 * keyed], w.below("k_norm"), spec)
        values = mixed[:, 2 * keyed :].reshape(-1, spec.num_value_heads, spec.value_dim)
        values = _by_key_head(values, spec)
        rates = torch.sigmoid(ops.linear(u, w.below("in_proj_b")).float())
        dwelling = _softplus(ops.linear(u, w.below("in_proj_a")).float() + w("dt_bias").float())
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
        z = ops.linear(u, w.below("in_proj_z")).float()
        z = z.reshape(-1, spec.num_value_heads, spec.value_dim)
        gated = ops.rms_norm(heads, w.below("norm"), eps) * F.silu(z)
        gated = gated.reshape(-1, spec.num_value_heads * spec.value_dim)
        mixed = ops.linear_to_residual(gated, w.below("out_proj"))
    return mixed, (state, window, inputs, onward.keys, onward.values, onward.decays)


def _unit(rows: Tensor, w: Weights, spec: GatedDeltaSpec, *, scale: float = 1.0) -> Tensor:
    """Return rows [R, G * K] as vectors of length ``scale`` by key head, [G, 1, R, K]."""
    dim = spec.key_dim
    heads = rows.reshape(-1, spec.num_key_heads, dim)
    weight = torch.full((dim,), scale * dim**-0.5)
    return ops.bare_norm(heads, w, LENGTH_EPS / dim, weight).transpose(0, 1)[:, None]


def _by_key_head(heads: Tensor, spec: GatedDeltaSpec) -> Tensor:
    """Return values [R, G * M, V] as [G, M, R, V]: a key head has M value heads in a row."""
    times = spec.num_value_heads // spec.num_key_heads
    turned = heads.transpose(0, 1)
    return turned.reshape(spec.num_key_heads, times, -1, heads.shape[2])


def _softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + e^x)``; as ``2 atanh`` it keeps its digits where it is small."""
    raised = torch.exp(0.0 - x.abs())
    return torch.relu(x) + 2 * torch.atanh(raised / (2 + raised))
