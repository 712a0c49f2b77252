"""Published drafters by their dimensions.

Depth, widths, vocabularies, taps, mask ids and rotary bases are the publishers'. MLP widths that
were not to be found are taken as three times the hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DFLASH, DFLASH2, DSPARK = "DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A drafter and its target.

    Attributes:
        architecture: as in its config.
        target: depth, width and logical vocabulary of the target; rows of its tables.
        hidden: width H.
        heads: query heads, key/value heads, elements of a head.
        vocab: rows of the vocabulary that the config states.
        block: block size.
        taps: ``target_layer_ids``.
        mask: ``mask_token_id``.
        theta: rotary base.
        layers: depth.
        mlp: MLP width; 0: three times H.
        markov_rank: width of the Markov embedding (DSpark).
        window: of every sliding layer; the last layer is full where ``full_last``.
        full_last: whether the last layer is full although the others slide.
        ships_tables: whether the checkpoint has its own embedding and LM head.
        config: further keys.
    """

    architecture: str
    target: tuple[int, int, int, int]
    hidden: int
    heads: tuple[int, int, int]
    vocab: int
    block: int
    taps: tuple[int, ...]
    mask: int
    theta: float
    layers: int = 5
    mlp: int = 0
    markov_rank: int = 256
    window: int | None = None
    full_last: bool = False
    ships_tables: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layer_types(self) -> list[str]:
        """Attention type of each layer."""
        if self.window is None:
            return ["full_attention"] * self.layers
        types = ["sliding_attention"] * self.layers
        return [*types[:-1], "full_attention"] if self.full_last else types


QWEN3, QWEN35 = (36, 2560, 151_936, 151_936), (32, 2560, 248_320, 248_320)
QWEN3_8B, QWEN3_14B = (36, 4096, 151_936, 151_936), (40, 5120, 151_936, 151_936)
QWEN36 = (64, 5120, 248_320, 248_320)
MUSE = (52, 6656, 202_048, 202_048)
MUSE_LAYERS: dict[str, Any] = {
    "mlp": 19_968,
    "taps": (1, 13, 25, 37, 49),
    "mask": 201_818,
    "theta": 5e5,
    "window": 2048,
}
FIVE = (1, 9, 17, 25, 33)
WIDE, NARROW = (32, 8, 128), (64, 16, 64)
INKLING: dict[str, Any] = {
    "heads": NARROW,
    "block": 7,
    "taps": (5, 17, 35, 47, 59),
    "mask": 200_064,
    "theta": 8e6,
}
RANK_0 = {"markov_rank": 0, "enable_confidence_head": False}


def qwen3(architecture: str, target: tuple[int, int, int, int], **fields: Any) -> Published:
    return Published(
        **{
            "architecture": architecture,
            "target": target,
            "hidden": target[1],
            "heads": WIDE,
            "vocab": target[3],
            "block": 7 if architecture == DSPARK else 16,
            "taps": FIVE,
            "mask": 151_669,
            "theta": 1e6,
            "ships_tables": architecture == DSPARK,
            **fields,
        }
    )


def newer(architecture: str, target: tuple[int, int, int, int], **fields: Any) -> Published:
    return qwen3(
        architecture,
        target,
        **{"mask": 248_070, "theta": 1e7, "ships_tables": False, **fields},
    )


ROWS: dict[str, Published] = {
    "z-lab/Qwen3-4B-DFlash-b16": qwen3(DFLASH, QWEN3, mlp=9728),
    "z-lab/Qwen3-8B-DFlash-b16": qwen3(DFLASH, QWEN3_8B, mlp=12_288),
    "z-lab/Qwen3.5-4B-DFlash": newer(DFLASH, QWEN35, mlp=9216, taps=(1, 8, 15, 22, 29)),
    "z-lab/Qwen3.6-27B-DFlash": newer(
        DFLASH, QWEN36, mlp=17_408, taps=(1, 16, 31, 46, 61), window=2048, full_last=True
    ),
    "z-lab/Qwen3.5-35B-A3B-DFlash": newer(
        DFLASH,
        (40, 2048, 248_320, 248_320),
        heads=(32, 4, 128),
        layers=8,
        taps=(1, 10, 19, 28, 37),
    ),
    "meta-models/Muse-Glimmer-30B-assistant": newer(
        "MuseGlimmerAssistantModel",
        MUSE,
        **MUSE_LAYERS,
    ),
    "Muse-Glimmer-30B DFlash2": newer(
        DFLASH2,
        MUSE,
        **MUSE_LAYERS,
        config={
            "is_causal": False,
            "rms_norm_eps": 1e-5,
            "dflash_config.final_logit_softcapping": 20.0,
            "dflash_config.output_multiplier": 26**-0.5,
        },
    ),
    "incoai/Qwen3.8-27B-DFlash2": newer(
        DFLASH2,
        QWEN36,
        mlp=17_408,
        block=8,
        taps=(5, 19, 33, 47, 61),
        window=2048,
        config={"is_causal": False},
    ),
    "deepseek-ai/dspark_qwen3_4b_block7": qwen3(DSPARK, QWEN3, mlp=9728),
    "deepseek-ai/dspark_qwen3_8b_block7": qwen3(DSPARK, QWEN3_8B, mlp=12_288),
    "deepseek-ai/dspark_qwen3_14b_block7": qwen3(
        DSPARK, QWEN3_14B, mlp=17_408, taps=(1, 10, 19, 28, 37)
    ),
    "deepseek-ai/dflash_qwen3_4b_block7": qwen3(
        DSPARK, QWEN3, mlp=9728, markov_rank=0, config=RANK_0
    ),
    "deepseek-ai/dflash_qwen3_8b_block7": qwen3(
        DSPARK, QWEN3_8B, mlp=12_288, markov_rank=0, config=RANK_0
    ),
    "deepseek-ai/dflash_qwen3_14b_block7": qwen3(
        DSPARK,
        QWEN3_14B,
        mlp=17_408,
        taps=(1, 10, 19, 28, 37),
        markov_rank=0,
        config=RANK_0,
    ),
    "LiquidAI/LFM2.5-2.6B-DSpark": newer(
        "Lfm2DSparkDraftModel",
        (30, 2048, 128_000, 128_000),
        mlp=6144,
        heads=(32, 8, 64),
        block=9,
        taps=(2, 9, 17, 21, 27),
        mask=125_017,
        config={"rope_is_neox_style": False, "rms_norm_eps": 1e-5},
    ),
    "RadixArk/Kimi-K3-DSpark": newer(
        "DSparkDraftModel",
        (93, 7168, 163_840, 163_840),
        mlp=14_336,
        heads=NARROW,
        block=7,
        taps=(7, 23, 51, 67, 83),
        mask=163_824,
        theta=1e4,
        config={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 16.0,
                "original_max_position_embeddings": 4096,
            }
        },
    ),
    "RadixArk GLM-5.2 DSpark": newer(
        "DSparkDraftModel",
        (78, 6144, 154_880, 154_880),
        mlp=12_288,
        heads=NARROW,
        block=7,
        taps=(1, 19, 38, 57, 76),
        mask=154_856,
        theta=8e6,
    ),
    "SpecForge Inkling DSpark": newer(
        "DSparkDraftModel",
        (66, 6144, 200_058, 201_024),
        mlp=12_288,
        **INKLING,
    ),
    "RadixArk/Inkling-Small-DSpark": newer(
        "DSparkDraftModel",
        (66, 4096, 200_058, 201_024),
        **INKLING,
    ),
    "RadixArk/Qwen3.8-27B-DSpark": newer(
        "DSparkDraftModel",
        QWEN36,
        mlp=17_408,
        block=7,
        taps=(5, 19, 33, 47, 61),
        config={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e7,
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 8192,
            },
            "rope_theta": 1e7,
            "target_hidden_size": None,
        },
    ),
    "SpecForge Qwen3.6-27B DSpark": newer(
        "DSparkDraftModel", QWEN36, mlp=17_408, taps=(2, 17, 32, 47, 62)
    ),
    "SpecForge Qwen3.6-27B DFlash2": newer(
        DFLASH2,
        QWEN36,
        mlp=17_408,
        block=8,
        taps=(5, 19, 33, 47, 61),
        window=2048,
        config={"is_causal": False, "dflash_config.block_size": 8, "max_window_layers": 5},
    ),
    "SpecForge Qwen3.5-4B DSpark": newer(
        "DSparkDraftModel", QWEN35, mlp=9728, taps=(1, 8, 15, 22, 29)
    ),
    "SpecForge Qwen3-8B DSpark": newer(
        "DSparkDraftModel", QWEN3_8B, mlp=12_288, taps=FIVE, mask=151_669, theta=1e6
    ),
    "SpecForge Qwen3-4B DSpark, 3 layers": newer(
        "DSparkDraftModel",
        QWEN3,
        mlp=9728,
        layers=3,
        taps=(1, 17, 33),
        mask=151_669,
        theta=1e6,
    ),
    "SpecForge LFM2.5-1.2B DFlash": newer(
        DFLASH,
        (16, 2048, 65_536, 65_536),
        mlp=6144,
        heads=(32, 8, 64),
        layers=8,
        taps=(1, 4, 7, 10, 13),
        mask=16,
        theta=1e6,
        config={"rms_norm_eps": 1e-5},
    ),
    "z-lab/gemma-4-31B-it-DFlash": newer(
        DFLASH,
        (60, 5376, 262_144, 262_144),
        mlp=21_504,
        taps=(1, 15, 29, 43, 57),
        mask=4,
        theta=1e6,
    ),
}
