"""The layers of a Gemma-4 target, sliding and full.

They differ from those of other decoders in: four norms a layer and the whole state times a scalar
at its end, queries, keys and values normed a head (values without a weight), attention scale 1, and
full layers with heads and angles of their own, whose values may be the raw key projection.
(transformers, ``modeling_gemma4_unified``.)
"""

from __future__ import annotations

from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.attention import View
from draftrt.export.models.mlp import gated_mlp
from draftrt.export.models.weights import Weights
from draftrt.profile import Profile
from draftrt.spec import DecoderSpec, Gemma4Spec


def advance(
    spec: DecoderSpec,
    facts: Gemma4Spec,
    layer: Weights,
    x: Tensor,
    view: View,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advance the residual stream through one layer.

    Args:
        spec: the decoder.
        facts: its Gemma-4 facts.
        layer: the layer's weights.
        x: [R, H] float32.
        view: the call, with the angles of this kind of layer.
        mask: [1, 1, R, L] bool of a sliding layer; None for a full one.
        keys: [1, G, L, D].
        values: as ``keys``.
        profile: operators allowed when traced.

    Returns:
        The residual stream, and both caches with R rows written.
    """

    def norm(name: str, rows: Tensor) -> Tensor:
        return ops.rms_norm(rows, layer(f"{name}_layernorm.weight"), spec.rms_norm_eps)

    is_raw = facts.full_key_is_value and mask is None
    out, keys, values = _attention(
        spec, is_raw, layer, norm("input", x), view, mask, keys, values, profile
    )
    x = x + norm("post_attention", out)
    out = gated_mlp(norm("pre_feedforward", x), layer.below("mlp"), spec.activation)
    x = x + norm("post_feedforward", out)
    return x * layer("layer_scalar").float(), keys, values


def _attention(
    spec: DecoderSpec,
    is_raw: bool,
    layer: Weights,
    u: Tensor,
    view: View,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    profile: Profile,
) -> tuple[Tensor, Tensor, Tensor]:
    w, eps = layer.below("self_attn"), spec.rms_norm_eps
    groups, dim = keys.shape[1], keys.shape[3]

    def project(name: str, heads: int) -> Tensor:
        rows = ops.linear(u, w(f"{name}_proj.weight"), w.get(f"{name}_proj.bias"))
        return rows.reshape(1, -1, heads, dim)

    def turn(name: str, heads: Tensor) -> Tensor:
        normed = ops.rms_norm(heads, w(f"{name}_norm.weight"), eps).transpose(1, 2)
        turned = ops.rotate(normed, view.cos, view.sin, interleaved=False, profile=profile)
        return turned.to(keys.dtype)

    raw = project("k", groups)
    value = raw if is_raw else project("v", groups)
    value = ops.rms_norm(value, None, eps).to(values.dtype).transpose(1, 2)
    keys = ops.write_cache(keys, turn("k", raw), view.start, profile)
    values = ops.write_cache(values, value, view.start, profile)
    out = ops.attend(
        turn("q", project("q", spec.num_heads)),
        keys,
        values,
        valid=view.valid,
        mask=mask,
        scale=1.0,
        profile=profile,
        is_causal=mask is None,
    )
    out = out.transpose(1, 2).reshape(-1, spec.num_heads * dim)
    return ops.linear_to_residual(out, w("o_proj.weight"), w.get("o_proj.bias")), keys, values
