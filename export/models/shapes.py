"""Every tensor that a drafter, a target or a rotary embedding must have: canonical name to shape.

Every tensor a drafter's checkpoint and target must supply: canonical name to shape.

Claims, missing tensors, byte counts and the traced graph all come from this one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftrt.spec import (
    Backbone,
    DecoderSpec,
    DrafterSpec,
    Family,
    GatedDeltaSpec,
    Gemma4Spec,
    LayerSpec,
    RopeSpec,
    ShortConvSpec,
)

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """Return every tensor the checkpoint and target must supply, canonical name to shape.

    A size of -1 is free (rows of the Markov embedding). ``embed_tokens`` and ``lm_head`` are
    included whoever supplies them.
    """
    hidden = spec.hidden_size
    shapes: Shapes = {
        "embed_tokens.weight": (spec.input_vocab_size, hidden),
        "fc.weight": (hidden, spec.feature_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (spec.draft_vocab_size, hidden),
    }
    if spec.mask_embedding:
        shapes["mask_embedding"] = (hidden,)
    if spec.vocab_map.value != "identity":
        shapes["d2t"] = (spec.draft_vocab_size,)
    for index, rule in enumerate(spec.layers):
        layer = LAYERS[spec.backbone](spec, rule)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | HEADS[spec.family](spec)


def _qwen3_layer(spec: DrafterSpec, rule: LayerSpec) -> Shapes:
    """Return the tensors of one layer, name below ``layers.i`` to shape."""
    hidden, dim = spec.hidden_size, spec.head_dim
    rows = {"q": spec.num_heads * dim, "k": spec.num_kv_heads * dim, "v": spec.num_kv_heads * dim}
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, spec.num_heads * dim),
        "mlp.gate_proj.weight": (spec.intermediate_size, hidden),
        "mlp.up_proj.weight": (spec.intermediate_size, hidden),
        "mlp.down_proj.weight": (hidden, spec.intermediate_size),
    }
    for name, size in rows.items():
        shapes[f"self_attn.{name}_proj.weight"] = (size, hidden)
        if spec.attention_bias:
            shapes[f"self_attn.{name}_proj.bias"] = (size,)
    if spec.attention_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if rule.has_sink:
        shapes["self_attn.attention_sink_bias"] = (spec.num_heads,)
    return shapes | _conv(spec)


def _conv(spec: DrafterSpec) -> Shapes:
    """Return the convolution tensors of one layer, name below ``layers.i`` to shape."""
    if spec.conv is None:
        return {}
    taps, groups = spec.conv.kernel_size, spec.hidden_size // spec.conv.group_size
    return {
        f"{site}.{name}": shape
        for site in ("attention_conv", "mlp_conv")
        for name, shape in (
            ("base_kernel", (2, taps, spec.hidden_size)),
            ("kernel_projection.weight", (2 * taps * groups, spec.hidden_size)),
        )
    }


def _gemma4_layer(spec: DrafterSpec, rule: LayerSpec) -> Shapes:
    """Return the tensors of one layer, name below ``layers.i`` to shape."""
    hidden, dim = spec.hidden_size, spec.head_dim
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    shapes: Shapes = {f"{name}_layernorm.weight": (hidden,) for name in norms}
    shapes |= {
        "layer_scalar": (1,),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.q_proj.weight": (spec.num_heads * dim, hidden),
        "self_attn.k_proj.weight": (spec.num_kv_heads * dim, hidden),
        "self_attn.o_proj.weight": (hidden, spec.num_heads * dim),
        "mlp.gate_proj.weight": (spec.intermediate_size, hidden),
        "mlp.up_proj.weight": (spec.intermediate_size, hidden),
        "mlp.down_proj.weight": (hidden, spec.intermediate_size),
    }
    if not spec.attention_k_eq_v:
        shapes["self_attn.v_proj.weight"] = (spec.num_kv_heads * dim, hidden)
    if spec.attention_bias:
        for name in ("q", "k", "o") + (() if spec.attention_k_eq_v else ("v",)):
            shapes[f"self_attn.{name}_proj.bias"] = shapes[f"self_attn.{name}_proj.weight"][:1]
    return shapes


def _dspark_head(spec: DrafterSpec) -> Shapes:
    """Return the tensors of the Markov and confidence heads; -1 marks a free number of rows."""
    shapes: Shapes = {}
    rank = 0
    if spec.markov is not None:
        rank = spec.markov.rank
        shapes["markov_head.markov_w1.weight"] = (-1, rank)
        shapes["markov_head.markov_w2.weight"] = (spec.draft_vocab_size, rank)
        if spec.markov.type == "gated":
            shapes["markov_head.gate_proj.weight"] = (rank, spec.hidden_size + rank)
            shapes["markov_head.gate_proj.bias"] = (rank,)
        if spec.markov.type == "rnn":
            shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + spec.hidden_size)
            shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if spec.confidence is not None:
        width = spec.hidden_size + (rank if spec.confidence.with_markov else 0)
        shapes["confidence_head.proj.weight"] = (1, width)
        if spec.confidence.has_bias:
            shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _selector(spec: DrafterSpec) -> Shapes:
    """Return the selector's tensors."""
    if spec.selector is None:
        return {}
    rank = spec.selector.rank
    return {
        "candidate_selector.predecessor_codebook.weight": (spec.draft_vocab_size, rank),
        "candidate_selector.successor_codebook.weight": (spec.draft_vocab_size, rank),
        "candidate_selector.hidden_projection.weight": (rank, spec.hidden_size),
    }


def _no_head(spec: DrafterSpec) -> Shapes:
    """DFlash v1 has no tensors beyond the backbone's."""
    return {}


LAYERS: dict[Backbone, Callable[[DrafterSpec, LayerSpec], Shapes]] = {
    Backbone.QWEN3: _qwen3_layer,
    Backbone.GEMMA4: _gemma4_layer,
}
HEADS: dict[Family, Callable[[DrafterSpec], Shapes]] = {
    Family.DFLASH: _no_head,
    Family.DFLASH2: _selector,
    Family.DSPARK: _dspark_head,
}


GATED_DELTA, SHORT_CONV = "gated delta", "short convolution"  # kinds of layers with states


def stateful(spec: DecoderSpec) -> GatedDeltaSpec | ShortConvSpec | None:
    """Return the facts of a target's layers with states; None where it has none."""
    return spec.delta or spec.short_conv


def channels(delta: GatedDeltaSpec) -> int:
    """Return the width of a layer's convolution: queries, keys, values."""
    return 2 * delta.num_key_heads * delta.key_dim + delta.num_value_heads * delta.value_dim


def kinds_of_layers(spec: DecoderSpec) -> tuple[int | str | None, ...]:
    """Return what kind each layer of a target is of; equal ones differ in weights alone."""
    kinds: list[int | str | None] = list(spec.windows)
    held = stateful(spec)
    for layer in held.layers if held is not None else ():
        kinds[layer] = GATED_DELTA if spec.delta is not None else SHORT_CONV
    return tuple(kinds)


def only_layers(spec: DecoderSpec, layers: Sequence[int]) -> DecoderSpec:
    """Return a target with these of its layers alone, in this order."""
    held = stateful(spec)
    own = tuple(
        place for place, layer in enumerate(layers) if held is not None and layer in held.layers
    )
    delta = None if spec.delta is None else replace(spec.delta, layers=own)
    conv = None if spec.short_conv is None else replace(spec.short_conv, layers=own)
    windows = tuple(spec.windows[layer] for layer in layers)
    return replace(spec, windows=windows, num_layers=len(layers), delta=delta, short_conv=conv)


def decoder_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor of a decoder, checkpoint name to shape."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.table_rows, hidden),
        "model.norm.weight": (hidden,),
    }
    if not spec.tie_word_embeddings or spec.table_rows != spec.vocab_size:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    for index, kind in enumerate(kinds_of_layers(spec)):
        if spec.gemma4 is not None:
            layer = _gemma4_layer_shapes(spec, spec.gemma4, index)
        elif spec.delta is not None:
            layer = _qwen3_5_layer_shapes(spec, spec.delta, is_state=kind == GATED_DELTA)
        elif spec.short_conv is not None and kind == SHORT_CONV:
            layer = _short_conv_shapes(spec, spec.short_conv)
        else:
            layer = _layer_shapes(spec) | (_muse_shapes(spec) if spec.muse is not None else {})
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    hidden, dim, inner = spec.hidden_size, spec.head_dim, spec.intermediate_size
    rows = {"q": spec.num_heads * dim, "k": spec.num_kv_heads * dim, "v": spec.num_kv_heads * dim}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.o_proj.weight": (hidden, rows["q"]),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    layer |= {f"self_attn.{name}_proj.weight": (size, hidden) for name, size in rows.items()}
    if spec.qkv_bias:
        layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
    if spec.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if spec.mlp_bias:
        layer |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,)}
        layer["mlp.down_proj.bias"] = (hidden,)
    if spec.qk_norm:
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return layer


def _muse_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer that other decoders do not have, name to shape."""
    return {
        "pre_feedforward_layernorm.weight": (spec.hidden_size,),
        "post_feedforward_layernorm.weight": (spec.hidden_size,),
        "self_attn.gate_proj.weight": (spec.num_heads * spec.head_dim, spec.hidden_size),
    }


def _short_conv_shapes(spec: DecoderSpec, conv: ShortConvSpec) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer, name to shape."""
    hidden = spec.hidden_size
    kept = {n: s for n, s in _layer_shapes(spec).items() if not n.startswith("self_attn.")}
    shapes: dict[str, tuple[int, ...]] = {
        "conv.in_proj.weight": (3 * hidden, hidden),
        "conv.conv.weight": (hidden, 1, conv.kernel_size),
        "conv.out_proj.weight": (hidden, hidden),
    }
    if conv.has_bias:
        shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()}
    return kept | shapes


def _qwen3_5_layer_shapes(
    spec: DecoderSpec, delta: GatedDeltaSpec, *, is_state: bool
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer, name to shape."""
    hidden, shapes = spec.hidden_size, _layer_shapes(spec)
    if not is_state:
        query = shapes["self_attn.q_proj.weight"]
        return shapes | {"self_attn.q_proj.weight": (2 * query[0], hidden)}  # and its gate
    values = delta.num_value_heads * delta.value_dim
    return {name: shape for name, shape in shapes.items() if not name.startswith("self_attn.")} | {
        "linear_attn.in_proj_qkv.weight": (channels(delta), hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (delta.num_value_heads, hidden),
        "linear_attn.in_proj_a.weight": (delta.num_value_heads, hidden),
        "linear_attn.conv1d.weight": (channels(delta), 1, delta.kernel_size),
        "linear_attn.A_log": (delta.num_value_heads,),
        "linear_attn.dt_bias": (delta.num_value_heads,),
        "linear_attn.norm.weight": (delta.value_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _gemma4_layer_shapes(
    spec: DecoderSpec, facts: Gemma4Spec, layer: int
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer, name to shape."""
    groups, dim = spec.cache_shape(layer)
    hidden, inner = spec.hidden_size, spec.intermediate_size
    rows = {"q": spec.num_heads * dim, "k": groups * dim, "v": groups * dim}
    if facts.full_key_is_value and spec.windows[layer] is None:
        del rows["v"]
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    shapes: dict[str, tuple[int, ...]] = {
        **{f"{name}_layernorm.weight": (hidden,) for name in norms},
        "layer_scalar": (1,),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        **{f"self_attn.{name}_proj.weight": (size, hidden) for name, size in rows.items()},
        "self_attn.o_proj.weight": (hidden, rows["q"]),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.qkv_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
    if spec.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return shapes


PREFIX = "rope"  # of the constants' names
FULL_ROPE = "rope.full"  # the same for the full layers of Gemma-4


def rope_of(spec: DecoderSpec, window: int | None) -> tuple[RopeSpec, str]:
    """Return the rotary embedding of the layers with this window, and its constants' prefix."""
    if spec.gemma4 is not None and window is None:
        return spec.gemma4.full_rope, FULL_ROPE
    return spec.rope, PREFIX


def table_shapes(
    rope: RopeSpec, num_positions: int, prefix: str = PREFIX
) -> dict[str, tuple[int, ...]]:
    """Return the constants of an embedding over so many positions, name to shape; float32 all."""
    width = rope.rotary_dim // 2
    if rope.type == "dynamic":
        return {f"{prefix}.inv_freq": (width,)}
    names = ["cos", "sin"] + (["cos_long", "sin_long"] if rope.type == "longrope" else [])
    return {f"{prefix}.{name}": (num_positions, width) for name in names}
