"""Every tensor of a decoder target: checkpoint name to shape."""

from __future__ import annotations

from draftrt.spec import DecoderSpec, Gemma4Spec


def decoder_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor of a decoder, checkpoint name to shape."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.table_rows, hidden),
        "model.norm.weight": (hidden,),
    }
    if not spec.tie_word_embeddings or spec.table_rows != spec.vocab_size:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    for index in range(spec.num_layers):
        layer = (
            _layer_shapes(spec)
            if spec.gemma4 is None
            else _gemma4_layer_shapes(spec, spec.gemma4, index)
        )
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
