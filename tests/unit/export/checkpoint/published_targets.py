"""Configs of published targets and of what common trainers and converters make of them.

Each row has the keys that were published, so that every one of them is met; long lists are written
as one entry and a count. Vocabulary ids and versions are as published; nothing else is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Row:
    """A config and what is in it.

    Attributes:
        name: of the model.
        config: its text, as an object.
        heads: queries, keys and values, elements.
        theta: of the rotary embedding, with its type.
        tied: whether the head is the embedding.
        bias: whether q, k and v have one.
        windows: windows and how many layers have each; empty for none.
    """

    name: str
    config: dict[str, Any]
    heads: tuple[int, int, int]
    theta: tuple[float, str]
    tied: bool
    bias: bool = False
    windows: dict[int, int] = field(default_factory=dict)


def config(
    architecture: str,
    sizes: tuple[int, int, int, int, int, int],
    positions: int,
    **more: Any,
) -> dict[str, Any]:
    """Return a config of (layers, hidden, mlp, heads, kv heads, vocabulary) with further keys."""
    layers, hidden, mlp, heads, groups, vocab = sizes
    return {
        "architectures": [architecture],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": mlp,
        "max_position_embeddings": positions,
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": groups,
        "use_cache": True,
        "vocab_size": vocab,
        **more,
    }


def llama(sizes: tuple[int, int, int, int, int, int], positions: int, **more: Any) -> Any:
    """Return a config with the keys of Llama configs since transformers 4.31."""
    base = {"pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None}
    return config("LlamaForCausalLM", sizes, positions, **{**base, **more})


def llama3(sizes: tuple[int, int, int, int, int, int], positions: int, **more: Any) -> Any:
    """Return a config with the keys of Llama 3 configs."""
    base = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0",
    }
    return llama(sizes, positions, **{**base, **more})


def qwen(
    number: int, sizes: tuple[int, int, int, int, int, int], positions: int, **more: Any
) -> Any:
    """Return a config with the keys of Qwen configs."""
    base = {
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "max_window_layers": sizes[0],
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }
    if number == 3:
        base |= {"attention_bias": False, "head_dim": 128, "rope_scaling": None}
        base |= {"sliding_window": None}
    return config(f"Qwen{number}ForCausalLM", sizes, positions, **{**base, **more})


SMOLLM2 = (30, 576, 1536, 9, 3, 49152)
ROPE5 = {"rope_theta": 1000000.0, "rope_type": "default"}
JS = {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}
GEMMA4_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": True,
    "bos_token_id": 2,
    "enable_moe_block": False,
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3840,
    "hidden_size_per_layer_input": 0,
    "initializer_range": 0.02,
    "intermediate_size": 15360,
    "layer_types": [*[SLIDING] * 5, FULL] * 8,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_unified_text",
    "moe_intermediate_size": None,
    "num_attention_heads": 16,
    "num_experts": None,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        FULL: {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_bidirectional_attention": "vision",
    "use_cache": True,
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
GEMMA4: dict[str, Any] = {
    "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "audio_config": {"model_type": "gemma4_unified_audio", "hidden_size": 640},
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "dtype": "bfloat16",
    "eoa_token_index": 258883,
    "eoi_token_id": 258882,
    "image_token_id": 258880,
    "initializer_range": 0.02,
    "model_type": "gemma4_unified",
    "text_config": GEMMA4_TEXT,
    "tie_word_embeddings": True,
    "transformers_version": "5.10.0.dev0",
    "video_token_id": 258884,
    "vision_config": {"model_type": "gemma4_unified_vision"},
}

MUSE_GLIMMER: dict[str, Any] = {
    "architectures": ["MuseGlimmerForConditionalGeneration"],
    "dtype": "bfloat16",
    "model_type": "muse_glimmer",
    "tie_word_embeddings": False,
    "text_config": {
        "attention_bias": False,
        "final_logit_softcapping": 20.0,
        "head_dim": 128,
        "hidden_activation": "silu",
        "hidden_size": 6656,
        "intermediate_size": 19968,
        "layer_rope_theta": [*[500000.0] * 3, 0] * 13,
        "layer_types": [*[SLIDING] * 3, FULL] * 13,
        "max_position_embeddings": 131072,
        "model_type": "muse_glimmer_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 52,
        "num_key_value_heads": 2,
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": 1e-08,
        "qk_scale_factor": 3.87,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "sliding_window": 2048,
        "tie_word_embeddings": False,
        "vocab_size": 202048,
    },
    "vision_config": {"hidden_size": 1536, "model_type": "muse_glimmer_vision"},
}
ROWS = (
    Row(
        "Muse-Glimmer-30B",
        MUSE_GLIMMER,
        (32, 2, 128),
        (5e5, "default"),
        tied=False,
        windows={2048: 39},
    ),
    Row(
        "SmolLM2-135M-Instruct",
        llama(
            SMOLLM2,
            8192,
            attention_bias=False,
            attention_dropout=0.0,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.041666666666666664,
            is_llama_config=True,
            pad_token_id=2,
            rope_interleaved=False,
            rope_theta=100000,
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            transformers_version="4.42.3",
            **{"transformers.js_config": JS},
        ),
        (9, 3, 64),
        (1e5, "default"),
        tied=True,
    ),
    Row(
        "SmolLM2-135M-Instruct, saved by transformers 5",
        {
            **config("LlamaForCausalLM", SMOLLM2, 8192),
            "attention_bias": False,
            "dtype": "float32",
            "head_dim": 64,
            "is_llama_config": True,
            "mlp_bias": False,
            "pad_token_id": 2,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_parameters": {"rope_theta": 100000, "rope_type": "default"},
            "tie_word_embeddings": True,
            "transformers.js_config": JS,
            "transformers_version": "5.24.0",
            "unk_token_id": 0,
        },
        (9, 3, 64),
        (1e5, "default"),
        tied=True,
    ),
    Row(
        "SmolLM-135M",
        llama(SMOLLM2, 2048, mlp_bias=False, rope_theta=10000.0, tie_word_embeddings=True),
        (9, 3, 64),
        (1e4, "default"),
        tied=True,
    ),
    Row(
        "Llama-2-7b-hf",
        llama(
            (32, 4096, 11008, 32, 32, 32000),
            4096,
            _name_or_path="meta-llama/Llama-2-7b-hf",
            tie_word_embeddings=False,
            torch_dtype="float16",
        ),
        (32, 32, 128),
        (1e4, "default"),
        tied=False,
    ),
    Row(
        "llama-7b",
        {
            **config("LlamaForCausalLM", (32, 4096, 11008, 32, 32, 32000), 2048),
            "max_sequence_length": 2048,
            "num_key_value_heads": None,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.28.0.dev0",
        },
        (32, 32, 128),
        (1e4, "default"),
        tied=False,
    ),
    Row(
        "TinyLlama-1.1B-Chat-v1.0",
        llama((22, 2048, 5632, 32, 4, 32000), 2048, attention_bias=False, rope_theta=10000.0),
        (32, 4, 64),
        (1e4, "default"),
        tied=False,
    ),
    Row(
        "Meta-Llama-3-8B-Instruct",
        llama3((32, 4096, 14336, 32, 8, 128256), 8192, tie_word_embeddings=False),
        (32, 8, 128),
        (5e5, "default"),
        tied=False,
    ),
    Row(
        "Llama-3.1-8B-Instruct",
        llama3(
            (32, 4096, 14336, 32, 8, 128256),
            131072,
            eos_token_id=[128001, 128008, 128009],
            rope_scaling=LLAMA3,
        ),
        (32, 8, 128),
        (5e5, "llama3"),
        tied=False,
    ),
    Row(
        "Llama-3.2-1B",
        llama3(
            (16, 2048, 8192, 32, 8, 128256),
            131072,
            head_dim=64,
            rope_scaling={**LLAMA3, "factor": 32.0},
            tie_word_embeddings=True,
        ),
        (32, 8, 64),
        (5e5, "llama3"),
        tied=True,
    ),
    Row(
        "Llama-3.2-1B-Instruct, from unsloth",
        llama3(
            (16, 2048, 8192, 32, 8, 128256),
            131072,
            _attn_implementation_autoset=True,
            head_dim=64,
            pad_token_id=128004,
            rope_scaling={**LLAMA3, "factor": 32.0},
            tie_word_embeddings=True,
            unsloth_fixed=True,
            unsloth_version="2024.12.4",
            use_cache=False,
        ),
        (32, 8, 64),
        (5e5, "llama3"),
        tied=True,
    ),
    Row(
        "deepseek-coder-1.3b-instruct",
        llama(
            (24, 2048, 5504, 16, 16, 32256),
            16384,
            attention_bias=False,
            rms_norm_eps=1e-06,
            rope_scaling={"factor": 4.0, "type": "linear"},
            rope_theta=100000,
            tie_word_embeddings=False,
        ),
        (16, 16, 128),
        (1e5, "linear"),
        tied=False,
    ),
    Row(
        "Falcon3-1B-Instruct",
        {
            **config("LlamaForCausalLM", (18, 2048, 8192, 8, 4, 131072), 8192),
            "activation": "swiglu",
            "attention_bias": False,
            "head_dim": 256,
            "mlp_bias": False,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000042,
            "tie_word_embeddings": False,
        },
        (8, 4, 256),
        (1000042.0, "default"),
        tied=False,
    ),
    Row(
        "a Llama trained with noise by TRL",
        llama(
            (16, 2048, 8192, 32, 8, 32000),
            4096,
            neftune_noise_alpha=5.0,
            rope_theta=10000.0,
            gradient_checkpointing=True,
            attn_implementation="flash_attention_2",
            model_max_length=4096,
        ),
        (32, 8, 64),
        (1e4, "default"),
        tied=False,
    ),
    Row(
        "Qwen2-0.5B",
        qwen(
            2,
            (24, 896, 4864, 14, 2, 151936),
            131072,
            sliding_window=131072,
            tie_word_embeddings=True,
        ),
        (14, 2, 64),
        (1e6, "default"),
        tied=True,
        bias=True,
    ),
    Row(
        "Qwen2.5-0.5B",
        qwen(
            2,
            (24, 896, 4864, 14, 2, 151936),
            32768,
            sliding_window=32768,
            tie_word_embeddings=True,
            use_mrope=False,
        ),
        (14, 2, 64),
        (1e6, "default"),
        tied=True,
        bias=True,
    ),
    Row(
        "DeepSeek-R1-Distill-Qwen-1.5B",
        qwen(
            2,
            (28, 1536, 8960, 12, 2, 151936),
            131072,
            max_window_layers=21,
            rope_theta=10000,
            sliding_window=4096,
            use_mrope=False,
        ),
        (12, 2, 128),
        (1e4, "default"),
        tied=False,
        bias=True,
    ),
    Row(
        "Qwen2.5-1.5B, saved by transformers 5",
        {
            **config("Qwen2ForCausalLM", (28, 1536, 8960, 12, 2, 151936), 131072),
            "layer_types": [FULL] * 28,
            "max_window_layers": 28,
            "pad_token_id": None,
            "rms_norm_eps": 1e-06,
            "rope_parameters": ROPE5,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_mrope": False,
            "use_sliding_window": False,
            "transformers_version": "5.17.0",
        },
        (12, 2, 128),
        (1e6, "default"),
        tied=True,
        bias=True,
    ),
    Row(
        "a Qwen2 with windows in its last layers",
        qwen(
            2,
            (28, 1536, 8960, 12, 2, 151936),
            131072,
            max_window_layers=21,
            sliding_window=4096,
            use_sliding_window=True,
        ),
        (12, 2, 128),
        (1e6, "default"),
        tied=False,
        bias=True,
        windows={4096: 7},
    ),
    Row(
        "Qwen3-0.6B",
        qwen(3, (28, 1024, 3072, 16, 8, 151936), 40960, tie_word_embeddings=True),
        (16, 8, 128),
        (1e6, "default"),
        tied=True,
    ),
    Row(
        "Qwen3-4B-Instruct-2507",
        qwen(
            3,
            (36, 2560, 9728, 32, 8, 151936),
            262144,
            rope_theta=5000000,
            tie_word_embeddings=True,
            transformers_version="4.51.0",
        ),
        (32, 8, 128),
        (5e6, "default"),
        tied=True,
    ),
    Row(
        "Qwen3-8B, trained by LLaMA-Factory",
        {
            **qwen(3, (36, 4096, 12288, 32, 8, 151936), 40960, layer_types=[FULL] * 36),
            "dtype": "bfloat16",
            "pad_token_id": 151643,
            "tie_word_embeddings": False,
            "transformers_version": "4.57.1",
            "use_cache": False,
        },
        (32, 8, 128),
        (1e6, "default"),
        tied=False,
    ),
    Row(
        "Qwen3-8B with long texts switched on",
        qwen(
            3,
            (36, 4096, 12288, 32, 8, 151936),
            131072,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        ),
        (32, 8, 128),
        (1e6, "yarn"),
        tied=False,
    ),
    Row(
        "Mistral-7B-Instruct-v0.1",
        config(
            "MistralForCausalLM",
            (32, 4096, 14336, 32, 8, 32000),
            32768,
            bos_token_id=1,
            eos_token_id=2,
            rms_norm_eps=1e-05,
            rope_theta=10000.0,
            sliding_window=4096,
            tie_word_embeddings=False,
        ),
        (32, 8, 128),
        (1e4, "default"),
        tied=False,
        windows={4096: 32},
    ),
    Row(
        "a Mistral whose config leaves the window to its class",
        config("MistralForCausalLM", (32, 4096, 14336, 32, 8, 32002), 32768, rms_norm_eps=1e-05),
        (32, 8, 128),
        (1e4, "default"),
        tied=False,
        windows={4096: 32},
    ),
    Row(
        "Mistral-Nemo-Base-2407",
        config(
            "MistralForCausalLM",
            (40, 5120, 14336, 32, 8, 131072),
            128000,
            attention_dropout=0.0,
            head_dim=128,
            rms_norm_eps=1e-05,
            rope_theta=1000000.0,
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        (32, 8, 128),
        (1e6, "default"),
        tied=False,
    ),
    Row(
        "a Mistral-Small fine-tune of unsloth's, transformers 5",
        config(
            "MistralForCausalLM",
            (40, 5120, 32768, 32, 8, 131072),
            131072,
            attention_dropout=0.0,
            dtype="bfloat16",
            head_dim=128,
            pad_token_id=11,
            rms_norm_eps=1e-05,
            rope_parameters={"rope_theta": 1000000000.0, "rope_type": "default"},
            sliding_window=None,
            tie_word_embeddings=False,
            transformers_version="5.10.2",
            unsloth_version="2025.12.5",
        ),
        (32, 8, 128),
        (1e9, "default"),
        tied=False,
    ),
    Row(
        "gemma-4-12B",
        GEMMA4,
        (16, 8, 256),
        (1e4, "default"),
        tied=True,
        windows={1024: 40},
    ),
    Row(
        "gemma-4-12B, from unsloth",
        {**GEMMA4, "unsloth_fixed": True, "unsloth_version": "2026.6.1"},
        (16, 8, 256),
        (1e4, "default"),
        tied=True,
        windows={1024: 40},
    ),
)
BY_NAME = {row.name: row for row in ROWS}
