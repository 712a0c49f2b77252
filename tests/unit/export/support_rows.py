"""What was tried of published drafters beside their dimensions; shown in docs/formats.md."""

from __future__ import annotations

# checkpoint: golden cases of its form, computed by its publisher's own code
GOLDEN: dict[str, tuple[str, ...]] = {
    "z-lab/Qwen3-4B-DFlash-b16": ("zlab-dflash",),
    "z-lab/Qwen3-8B-DFlash-b16": ("zlab-dflash",),
    "z-lab/Qwen3.5-4B-DFlash": ("zlab-dflash",),
    "z-lab/Qwen3.6-27B-DFlash": ("zlab-dflash-swa-causal",),
    "incoai/Qwen3.8-27B-DFlash2": ("zlab-dflash2-swa-noncausal",),
    "Muse-Glimmer-30B DFlash2": ("zlab-dflash2-swa-noncausal",),
    "deepseek-ai/dspark_qwen3_4b_block7": ("deepspec-dspark-vanilla",),
    "deepseek-ai/dspark_qwen3_8b_block7": ("deepspec-dspark-vanilla",),
    "deepseek-ai/dspark_qwen3_14b_block7": ("deepspec-dspark-vanilla",),
    "deepseek-ai/dflash_qwen3_4b_block7": ("deepspec-dflash-block7",),
    "deepseek-ai/dflash_qwen3_8b_block7": ("deepspec-dflash-block7",),
    "deepseek-ai/dflash_qwen3_14b_block7": ("deepspec-dflash-block7",),
    "deepseek-ai/dspark_gemma4_12b_block7": ("deepspec-gemma4-dspark",),
    "RadixArk/Inkling-Small-DSpark": ("deepspec-dspark-padded-vocab",),
    "RedHatAI, speculators `dflash`": ("speculators-dflash-swa-causal",),
    "RedHatAI, speculators `dspark`": (
        "speculators-dspark-fill-in",
        "speculators-dspark-reduced-vocab",
    ),
}
# checkpoint: the reason, and the row of the refusal tables that shows it
REFUSED: dict[str, tuple[str, str]] = {
    "nvidia/Nemotron-3.5-Lightning-30B-A3B-NVFP4-DSpark, -DFlash": ("NVFP4 weights", "NVFP4"),
    "poolside/Laguna-XS.2-speculator.dflash": (
        "attention gate and a norm of each feature slice",
        "Laguna's gate",
    ),
    "deepseek-ai/DeepSeek-V4-Flash-DSpark, -Pro-DSpark": (
        "stages embedded in the target",
        "DeepSeek-V4",
    ),
    "Inferact/Kimi-K3-DSpark": ("multi-head latent attention", "MLA by type"),
    "XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash": (
        "pickled `mask_embedding.pt`; converted to safetensors, its form is read",
        "pickled_mask",
    ),
}
UNTRIED: dict[str, str] = {
    "z-lab gemma-4 drafters": "read with the target's scale and cap; dimensions are not documented",
    "z-lab gpt-oss, Kimi-K2, GLM-5, MiniMax, Llama drafters": "dimensions are not documented",
}
