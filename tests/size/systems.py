"""Configs and tensor shapes of published systems, written from their publishers' descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A published drafter and the part of its target that an export reads.

    Attributes:
        draft: the drafter's config.json.
        target: the target's config.json.
        table_rows: rows of the target's embedding table.
        layer: shapes of one drafter layer.
        target_layer: shapes of one target layer; None: those of a drafter layer.
        extra: further tensors of the drafter.
        d2t: draft vocabulary, where it is reduced.
    """

    draft: dict[str, Any]
    target: dict[str, Any]
    table_rows: int
    layer: Mapping[str, tuple[int, ...]]
    target_layer: Mapping[str, tuple[int, ...]] | None = None
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    d2t: int | None = None


def _dims(hidden: int, inner: int, heads: int, groups: int, dim: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": dim,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "dtype": "bfloat16",
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    }


def _layer(dims: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = dims["hidden_size"], dims["intermediate_size"], dims["head_dim"]
    wide, narrow = dims["num_attention_heads"] * dim, dims["num_key_value_heads"] * dim
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.q_proj.weight": (wide, hidden),
        "self_attn.k_proj.weight": (narrow, hidden),
        "self_attn.v_proj.weight": (narrow, hidden),
        "self_attn.o_proj.weight": (hidden, wide),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _target(layers: int, hidden: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        **more,
    }


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _qwen3_4b_dflash() -> System:
    dims = _dims(2560, 9728, 32, 8, 128, 151936)
    taps = {"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669}
    draft = (
        dims
        | _rope(1e6)
        | {
            "architectures": ["DFlashDraftModel"],
            "num_target_layers": 36,
            "block_size": 16,
            "dflash_config": taps,
        }
    )
    return System(
        draft=draft, target=_target(36, 2560, 151936), table_rows=151936, layer=_layer(dims)
    )


def _smollm2_135m() -> System:
    """A target that a CPU decodes at a readable pace, and a drafter of the usual proportions."""
    dims = _dims(576, 1536, 9, 3, 64, 49152)
    layer = _layer(dims)
    draft = (
        dims
        | _rope(1e5)
        | {
            "architectures": ["DFlashDraftModel"],
            "num_target_layers": 30,
            "block_size": 8,
            "dflash_config": {"target_layer_ids": [1, 8, 15, 22, 28], "mask_token_id": 49151},
        }
    )
    target = _target(30, 576, 49152) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
    }
    return System(
        draft=draft,
        target=target,
        table_rows=49152,
        layer=layer,
        target_layer={name: shape for name, shape in layer.items() if "_norm." not in name},
    )


def _qwen3_4b_dflash_on_32_layers() -> System:
    """The same drafter beside a target of 32 layers: two taps do not exist there."""
    base = _qwen3_4b_dflash()
    return System(
        draft=base.draft, target=_target(32, 2560, 151936), table_rows=151936, layer=base.layer
    )


def _qwen3_8b_dspark_reduced() -> System:
    dims, rank, reduced = _dims(4096, 12288, 32, 8, 128, 151936), 256, 32000
    draft = {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
        "block_size": 8,
        "draft_vocab_size": reduced,
        "mask_token_id": 151669,
        "sample_from_anchor": True,
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformer_layer_config": dims | _rope(1e6),
    }
    extra = {
        "markov_head.markov_w1.weight": (151936, rank),
        "markov_head.markov_w2.weight": (reduced, rank),
        "confidence_head.proj.weight": (1, 4096 + rank),
        "confidence_head.proj.bias": (1,),
        "lm_head.weight": (reduced, 4096),
    }
    return System(
        draft=draft,
        target=_target(36, 4096, 151936),
        table_rows=151936,
        layer=_layer(dims),
        extra=extra,
        d2t=reduced,
    )


def _inkling_small_dspark() -> System:
    """Draft vocabulary padded to the table's 201,024 rows; the target's logical one is 200,058."""
    dims, rank, padded = _dims(4096, 12288, 64, 16, 64, 201024), 256, 201024
    draft = (
        dims
        | _rope(8e6)
        | {
            "architectures": ["DSparkDraftModel"],
            "num_target_layers": 66,
            "block_size": 7,
            "target_layer_ids": [5, 17, 35, 47, 59],
            "mask_token_id": 200064,
            "draft_vocab_size": padded,
            "markov_rank": rank,
            "markov_head_type": "vanilla",
            "sample_from_anchor": True,
        }
    )
    extra = {
        "markov_head.markov_w1.weight": (padded, rank),
        "markov_head.markov_w2.weight": (padded, rank),
    }
    return System(
        draft=draft,
        target=_target(66, 4096, 200058),
        table_rows=padded,
        layer=_layer(dims),
        extra=extra,
    )


def _dflash2(**target: Any) -> System:
    """DFlash2 at Qwen3.8-27B dimensions; the target's own rotary facts must not matter."""
    hidden, vocab, rank, taps, group = 5120, 248320, 256, 2, 16
    dims = _dims(hidden, 17408, 32, 8, 128, vocab)
    sizes = {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248070,
        "block_size": 8,
        "conv_kernel_size": taps,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": 16,
    }
    draft = (
        dims
        | _rope(1e7)
        | {
            "architectures": ["DFlash2DraftModel"],
            "num_target_layers": 64,
            "is_causal": False,
            "layer_types": ["sliding_attention"] * 5,
            "sliding_window": 2048,
            "use_sliding_window": True,
            "dflash_config": sizes,
        }
    )
    layer = _layer(dims)
    for site in ("attention_conv", "mlp_conv"):
        layer[f"{site}.base_kernel"] = (2, taps, hidden)
        layer[f"{site}.kernel_projection.weight"] = (2 * taps * (hidden // group), hidden)
    extra = {
        "candidate_selector.predecessor_codebook": (vocab, rank),
        "candidate_selector.successor_codebook": (vocab, rank),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
    }
    return System(
        draft=draft,
        target=_target(64, hidden, vocab, **target),
        table_rows=vocab,
        layer=layer,
        extra=extra,
    )


SYSTEMS: dict[str, Callable[[], System]] = {
    "qwen3-4b-dflash": _qwen3_4b_dflash,
    "smollm2-135m-dflash": _smollm2_135m,
    "qwen3-4b-dflash-on-32-layers": _qwen3_4b_dflash_on_32_layers,
    "qwen3-8b-dspark-reduced": _qwen3_8b_dspark_reduced,
    "inkling-small-dspark": _inkling_small_dspark,
    "dflash2-interleaved-target": lambda: _dflash2(rope_interleave=True, rope_theta=8e6),
    "dflash2-nope-target": lambda: _dflash2(position_embedding_type="nope", rope_theta=None),
}
