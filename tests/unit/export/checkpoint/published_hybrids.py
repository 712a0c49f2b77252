"""Configs of published hybrid targets: Qwen3.5, 3.6 and 3.8, dense.

Sizes are those of the published config files. A checkpoint has more than the language model: a
vision tower and a layer for multi-token prediction, of which a few tensors stand in here.
"""

from __future__ import annotations

from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"


def hybrid(
    sizes: tuple[int, int, int, int, int], value_heads: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    """Return a config of (layers, hidden, mlp, heads, kv heads) and heads of the delta rule."""
    layers, hidden, mlp, heads, groups = sizes
    text: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 248_044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": mlp,
        "layer_types": [FULL if i % 4 == 3 else LINEAR for i in range(layers)],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262_144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": groups,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": 248_320,
        **more,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "image_token_id": 248_056,
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 248_057,
        "vision_config": {"depth": 24, "hidden_size": 1024, "model_type": "qwen3_5"},
        "vision_end_token_id": 248_054,
        "vision_start_token_id": 248_053,
    }


HYBRIDS = {
    "Qwen3.5-0.8B": hybrid((24, 1024, 3584, 8, 2), 16, tied=True),
    "Qwen3.5-4B": hybrid((32, 2560, 9216, 16, 4), 32, tied=True),
    "Qwen3.5-9B": hybrid((32, 4096, 12_288, 16, 4), 32, tied=False),
    "Qwen3.5-27B": hybrid((64, 5120, 17_408, 24, 4), 48, tied=False),
    "Qwen3.6-27B": hybrid((64, 5120, 17_408, 24, 4), 48, tied=False, output_gate_type="swish"),
}
LEFT_OUT = {
    "model.visual.patch_embed.proj.weight": (1024, 1536),
    "mtp.fc.weight": (1024, 2048),
    "mtp.norm.weight": (1024,),
}
