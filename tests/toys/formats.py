"""What each publisher writes for a toy: config keys, tensor names, shapes and seeded weights.

What each publisher writes for a toy: config keys, tensor names and shapes.

Written from the publishers' files, on purpose without the readers' tables.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.toys.models import Kind, ToyDrafter, ToyTarget

CONV = {"conv_kernel_size": 2, "conv_group_size": 8}
SELECTOR = {"selector_rank": 6, "selector_top_k": 5}
GEMMA4_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")


def target_config(toy: ToyTarget) -> dict[str, Any]:
    """Return a Qwen3 target's config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": toy.num_layers,
        "vocab_size": toy.vocab_size,
        "bos_token_id": None,
        "eos_token_id": 256,
        "tie_word_embeddings": toy.tie_word_embeddings,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **_widths(toy),
    }


def target_arrays(toy: ToyTarget) -> Arrays:
    """Return a Qwen3 target's tensors."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (toy.vocab_size, toy.hidden_size),
        "model.norm.weight": (toy.hidden_size,),
    }
    for index in range(toy.num_layers):
        layer = _qwen3_layer(toy, has_bias=False)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not toy.tie_word_embeddings:
        shapes["lm_head.weight"] = (toy.vocab_size, toy.hidden_size)
    return random_arrays(shapes, toy.seed)


def drafter_config(toy: ToyDrafter) -> dict[str, Any]:
    """Return a drafter's config.json."""
    if toy.kind in (Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2):
        return _zlab_config(toy)
    if toy.kind.value.startswith("speculators"):
        return _speculators_config(toy)
    return _deepspec_config(toy)


def drafter_arrays(toy: ToyDrafter) -> Arrays:
    """Return a drafter's tensors under the publisher's names.

    z-lab and speculators borrow the target's embedding and, with a full vocabulary, its LM head;
    DeepSpec ships its own.
    """
    hidden = toy.hidden_size
    shapes: Shapes = {
        "fc.weight": (hidden, len(toy.target_layer_ids) * toy.hidden_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(toy.num_layers):
        layer = _gemma4_layer(toy) if toy.kind is Kind.DEEPSPEC_GEMMA4 else _drafter_layer(toy)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    if toy.kind.value.startswith("deepspec"):
        shapes["embed_tokens.weight"] = (toy.vocab_size, hidden)
    if toy.kind.value.startswith("deepspec") or _is_reduced(toy):
        shapes["lm_head.weight"] = (_draft_vocab(toy), hidden)
    shapes |= _head_shapes(toy)
    arrays = random_arrays(shapes, toy.seed)
    return arrays | _vocabulary_map(toy) if _is_reduced(toy) else arrays


def _draft_vocab(toy: ToyDrafter) -> int:
    return toy.draft_vocab_size or toy.vocab_size


def _is_reduced(toy: ToyDrafter) -> bool:
    return _draft_vocab(toy) < toy.vocab_size


def _vocabulary_map(toy: ToyDrafter) -> Arrays:
    """Return d2t as offsets of a random increasing choice of target ids, and t2d as its mask."""
    size = _draft_vocab(toy)
    chosen = np.sort(np.random.default_rng(toy.seed).permutation(toy.vocab_size)[:size])
    kept = np.zeros(toy.vocab_size, np.bool_)
    kept[chosen] = True
    return {"d2t": (chosen - np.arange(size)).astype(np.int64), "t2d": kept}


def _head_shapes(toy: ToyDrafter) -> Shapes:
    hidden, rank, size = toy.hidden_size, toy.markov_rank, _draft_vocab(toy)
    if toy.family == "dflash2":
        width = SELECTOR["selector_rank"]
        return {
            "candidate_selector.predecessor_codebook.weight": (size, width),
            "candidate_selector.successor_codebook.weight": (size, width),
            "candidate_selector.hidden_projection.weight": (width, hidden),
        }
    if toy.family != "dspark":
        return {}
    shapes: Shapes = {
        "markov_head.markov_w1.weight": (toy.vocab_size, rank),
        "markov_head.markov_w2.weight": (size, rank),
    }
    if toy.markov_type == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    elif toy.markov_type == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if toy.with_confidence:
        shapes["confidence_head.proj.weight"] = (1, hidden + rank)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _zlab_config(toy: ToyDrafter) -> dict[str, Any]:
    is_second = toy.kind is Kind.ZLAB_DFLASH2
    own: dict[str, Any] = {
        "target_layer_ids": list(toy.target_layer_ids),
        "mask_token_id": toy.mask_token_id,
    }
    return {
        "architectures": ["DFlash2DraftModel" if is_second else "DFlashDraftModel"],
        "dflash_config": {**own, **CONV, **SELECTOR} if is_second else own,
        "block_size": toy.block_size,
        "num_target_layers": toy.num_target_layers,
        "use_cache": True,
        **_body(toy),
    }


def _deepspec_config(toy: ToyDrafter) -> dict[str, Any]:
    is_gemma, is_dspark = toy.kind is Kind.DEEPSPEC_GEMMA4, toy.family == "dspark"
    config = {
        "architectures": ["Gemma4DSparkModel" if is_gemma else "Qwen3DSparkModel"],
        "num_target_layers": toy.num_target_layers,
        "block_size": toy.block_size,
        "mask_token_id": toy.mask_token_id,
        "target_layer_ids": list(toy.target_layer_ids),
        "num_anchors": 4,
        **_dspark_keys(toy, rank=toy.markov_rank if is_dspark else 0),
        **_body(toy),
    }
    if not is_gemma:
        return config
    full = {"partial_rotary_factor": 0.5, "rope_type": "proportional", "rope_theta": 10000.0}
    del config["hidden_act"], config["rope_parameters"]
    return config | {
        "model_type": "gemma4_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 8,  # of sliding layers, which a drafter has none of
        "num_key_value_heads": 4,
        "global_head_dim": toy.head_dim,
        "num_global_key_value_heads": toy.num_kv_heads,
        "attention_k_eq_v": True,
        "final_logit_softcapping": 9.0,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }


def _speculators_config(toy: ToyDrafter) -> dict[str, Any]:
    is_dspark, is_second = toy.family == "dspark", toy.family == "dflash2"
    samples = is_dspark and toy.sample_from_anchor
    body = _body(toy)
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": toy.block_size - (0 if samples else 1),
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    heads = {"dspark": "DSpark", "dflash": "DFlash", "dflash2": "DFlash2"}
    return {
        "architectures": [f"{heads[toy.family]}DraftModel"],
        "speculators_model_type": toy.family,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": toy.family,
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": None},
        },
        "aux_hidden_state_layer_ids": [k + 1 for k in toy.target_layer_ids],
        "block_size": toy.block_size,
        "draft_vocab_size": _draft_vocab(toy),
        "mask_token_id": toy.mask_token_id,
        "sample_from_anchor": samples,
        "sliding_window_non_causal": is_second,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "dtype": toy.dtype,
        **(_dspark_keys(toy, rank=toy.markov_rank) if is_dspark else {}),
        **({**CONV, **SELECTOR} if is_second else {}),
        "transformer_layer_config": body,
    }


def _dspark_keys(toy: ToyDrafter, *, rank: int) -> dict[str, Any]:
    has_confidence = toy.with_confidence and rank > 0
    keys: dict[str, Any] = {"markov_rank": rank, "enable_confidence_head": has_confidence}
    if rank:
        keys |= {"markov_head_type": toy.markov_type, "confidence_head_with_markov": has_confidence}
    return keys


def _body(toy: ToyDrafter) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": toy.vocab_size,
        "num_hidden_layers": toy.num_layers,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "attention_bias": toy.attention_bias,
        "rope_parameters": dict(toy.rope),
        "layer_types": list(toy.layer_types),
        "use_sliding_window": toy.sliding_window is not None,
        "sliding_window": toy.sliding_window,
        **_widths(toy),
    }


def _widths(toy: ToyTarget | ToyDrafter) -> dict[str, Any]:
    """Return the sizes that every config spells alike."""
    return {
        "hidden_size": toy.hidden_size,
        "intermediate_size": toy.intermediate_size,
        "num_attention_heads": toy.num_heads,
        "num_key_value_heads": toy.num_kv_heads,
        "head_dim": toy.head_dim,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "dtype": toy.dtype,
    }


def _qwen3_layer(toy: ToyTarget | ToyDrafter, *, has_bias: bool) -> Shapes:
    hidden, dim = toy.hidden_size, toy.head_dim
    rows = {"q": toy.num_heads * dim, "k": toy.num_kv_heads * dim, "v": toy.num_kv_heads * dim}
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, toy.num_heads * dim),
        "mlp.gate_proj.weight": (toy.intermediate_size, hidden),
        "mlp.up_proj.weight": (toy.intermediate_size, hidden),
        "mlp.down_proj.weight": (hidden, toy.intermediate_size),
    }
    for name, size in rows.items():
        shapes[f"self_attn.{name}_proj.weight"] = (size, hidden)
    if has_bias:
        biases = {**rows, "o": hidden}
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in biases.items()}
    return shapes


def _drafter_layer(toy: ToyDrafter) -> Shapes:
    shapes = _qwen3_layer(toy, has_bias=toy.attention_bias)
    if toy.family == "dflash2":
        taps, groups = CONV["conv_kernel_size"], toy.hidden_size // CONV["conv_group_size"]
        for site in ("attention_conv", "mlp_conv"):
            shapes[f"{site}.base_kernel"] = (2, taps, toy.hidden_size)
            shapes[f"{site}.kernel_projection.weight"] = (2 * taps * groups, toy.hidden_size)
    return shapes


def _gemma4_layer(toy: ToyDrafter) -> Shapes:
    shapes = _qwen3_layer(toy, has_bias=False)
    del shapes["self_attn.v_proj.weight"]  # values are the raw keys
    shapes |= {f"{name}_layernorm.weight": (toy.hidden_size,) for name in GEMMA4_NORMS}
    return shapes | {"layer_scalar": (1,)}


Arrays = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]
CODEBOOKS = ("markov_w1.weight", "markov_w2.weight", "_codebook.weight")


def random_arrays(shapes: Shapes, seed: int) -> Arrays:
    """Return seeded weights that keep activations of order one."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in shapes.items():
        if name.endswith(("norm.weight", "layer_scalar")):
            values = rng.uniform(0.5, 1.5, shape)
        elif name.endswith("base_kernel"):
            values = rng.uniform(-0.4, 0.4, shape)
        elif name.endswith(CODEBOOKS):
            values = rng.standard_normal(shape)
        elif len(shape) == 2:
            values = rng.standard_normal(shape) / math.sqrt(shape[1])
        else:
            values = 0.1 * rng.standard_normal(shape)
        arrays[name] = values.astype(np.float32)
    return arrays
