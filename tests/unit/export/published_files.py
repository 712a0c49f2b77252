"""Published drafters as folders: configs and headers of real size over files that are holes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.export.published import DFLASH2, DSPARK, Published

Shapes = dict[str, tuple[int, ...]]


def shapes_of(row: Published) -> Shapes:
    """Return a checkpoint's tensors under the publisher's names."""
    hidden, mlp = row.hidden, row.mlp or 3 * row.hidden
    queries, groups, dim = row.heads
    is_muse = row.architecture.startswith("Muse")
    names = ("encoder.fc", "encoder.output_norm_enc") if is_muse else ("fc", "hidden_norm")
    shapes: Shapes = {
        f"{names[0]}.weight": (hidden, len(row.taps) * row.target[1]),
        f"{names[1]}.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries * dim, hidden),
        "self_attn.k_proj.weight": (groups * dim, hidden),
        "self_attn.v_proj.weight": (groups * dim, hidden),
        "self_attn.o_proj.weight": (hidden, queries * dim),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }
    if row.architecture == DFLASH2:
        for site in ("attention_conv", "mlp_conv"):
            layer[f"{site}.base_kernel"] = (2, 2, hidden)
            layer[f"{site}.kernel_projection.weight"] = (4 * (hidden // 16), hidden)
        for side in ("predecessor", "successor"):
            shapes[f"candidate_selector.{side}_codebook"] = (row.vocab, 256)
        shapes["candidate_selector.hidden_projection.weight"] = (256, hidden)
    for index in range(row.layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    if "DSpark" in row.architecture and row.markov_rank:
        shapes["markov_head.markov_w1.weight"] = (row.vocab, row.markov_rank)
        shapes["markov_head.markov_w2.weight"] = (row.vocab, row.markov_rank)
        shapes["confidence_head.proj.weight"] = (1, hidden + row.markov_rank)
        shapes["confidence_head.proj.bias"] = (1,)
    if row.ships_tables:
        shapes["embed_tokens.weight"] = shapes["lm_head.weight"] = (row.vocab, hidden)
    return shapes


def config_of(row: Published) -> dict[str, Any]:
    """Return its config.json."""
    queries, groups, dim = row.heads
    own: dict[str, Any] = {"target_layer_ids": list(row.taps), "mask_token_id": row.mask}
    config: dict[str, Any] = {
        "architectures": [row.architecture],
        "model_type": "muse_glimmer_assistant" if "Muse" in row.architecture else "qwen3",
        "num_hidden_layers": row.layers,
        "hidden_size": row.hidden,
        "intermediate_size": row.mlp or 3 * row.hidden,
        "num_attention_heads": queries,
        "num_key_value_heads": groups,
        "head_dim": dim,
        "vocab_size": row.vocab,
        "block_size": row.block,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 40_960,
        "num_target_layers": row.target[0],
        "rope_parameters": {"rope_type": "default", "rope_theta": row.theta},
        "layer_types": row.layer_types,
        "use_sliding_window": row.window is not None,
        "sliding_window": row.window,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    if row.architecture == DSPARK:
        config |= own | _dspark_keys(row)
    elif "DSpark" in row.architecture:  # SpecForge's way
        mode = {"attention_mode": "gqa", "projector_type": "dspark", "confidence_head_alpha": 1.0}
        config["auto_map"] = {"AutoModel": "dspark.DSparkDraftModel"}
        config["dflash_config"] = own | mode | _dspark_keys(row)
    else:
        config["dflash_config"] = own
        if row.architecture == DFLASH2:
            own |= {"conv_kernel_size": 2, "conv_group_size": 16}
            own |= {"selector_rank": 256, "selector_top_k": 16}
    for path, value in row.config.items():
        scope, _, key = path.rpartition(".")
        (config[scope] if scope else config)[key] = value
    return config


def _dspark_keys(row: Published) -> dict[str, Any]:
    if not row.markov_rank:
        return {}
    return {
        "markov_rank": row.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def write_headers(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> Path:
    """Write a checkpoint of bf16 tensors whose contents are a hole in the file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return folder


def write_published(folder: Path, row: Published) -> Path:
    """Write the drafter's folder."""
    return write_headers(folder, config_of(row), shapes_of(row))


def write_its_target(folder: Path, row: Published, **changes: Any) -> Path:
    """Write a folder that has what a drafter asks of its target: config and tables."""
    depth, width, logical, rows = row.target
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": depth,
        "hidden_size": width,
        "vocab_size": rows,
        "unpadded_vocab_size": logical,
        "tie_word_embeddings": False,
        **changes,
    }
    tables: Shapes = {"model.embed_tokens.weight": (rows, width), "lm_head.weight": (rows, width)}
    return write_headers(folder, config, tables)
