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
    "MiniCPM5-2B DSpark": ("deepspec-dspark-no-tables",),
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
    "z-lab gemma-4-12B, -26B drafters": "config text not found; read like the 31B's, with the "
    "target's scale and cap",
    "z-lab Qwen3.5-9B, -27B, -122B, -397B, Qwen3.6-35B drafters": "config text not found",
    "z-lab Qwen3-Coder-30B, -Next drafters": "config text not found; experts: no target graph",
    "z-lab gpt-oss, Kimi-K2, GLM-5, MiniMax, Llama drafters": "config text not found",
    "incoai GLM-5.3, GLM-5.3-Flash DFlash2": "config text not found",
    "RedHatAI `.dflash2`": "config text not found; read as speculators' own code writes it",
}
# start of a checkpoint's name, without its publisher: what its config says that it drafts for
TARGETS: dict[str, str] = {
    "Qwen3-4B": "Qwen3-4B",
    "Qwen3-8B": "Qwen3-8B",
    "dspark_qwen3_4b": "Qwen3-4B",
    "dspark_qwen3_8b": "Qwen3-8B",
    "dspark_qwen3_14b": "Qwen3-14B",
    "dflash_qwen3_4b": "Qwen3-4B",
    "dflash_qwen3_8b": "Qwen3-8B",
    "dflash_qwen3_14b": "Qwen3-14B",
    "dspark_gemma4_12b": "gemma-4-12B-it",
    "gemma-4-31B-it": "gemma-4-31B-it",
    "Qwen3.5-4B": "Qwen3.5-4B",
    "Qwen3.5-35B-A3B": "Qwen3.5-35B-A3B",
    "Qwen3.6-27B": "Qwen3.6-27B",
    "Qwen3.8-27B": "Qwen3.8-27B",
    "Muse-Glimmer-30B": "Muse-Glimmer-30B",
    "LFM2.5-1.2B": "LFM2.5-1.2B-Instruct",
    "LFM2.5-2.6B": "LFM2.5-2.6B",
    "MiniCPM5-2B": "MiniCPM5-2B",
    "Kimi-K3": "Kimi-K3",
    "GLM-5.2": "GLM-5.2",
    "Inkling-Small": "Inkling-Small",
    "Inkling": "Inkling",
}


def target_of(checkpoint: str) -> str:
    """Return the target of a published drafter, empty for a form that has several."""
    name = checkpoint.rpartition("/")[2].removeprefix("SpecForge ").removeprefix("RadixArk ")
    return next((found for start, found in TARGETS.items() if name.startswith(start)), "")
