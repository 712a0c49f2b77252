"""Good checkpoints, each with another way to write its config that means the same."""

from __future__ import annotations

from tests.toys.formats import drafter_config
from tests.toys.models import REMOVED, Kind, ToyDrafter
from tests.unit.export.right_answer_rows import (
    BODY,
    DFLASH2,
    DSPARK,
    GEMMA,
    SPEC_DFLASH,
    SPEC_DSPARK,
    THETA,
    ZLAB,
    Same,
)

CONFIG_ROWS: dict[str, Same] = {
    # RoPE
    "transformers 4 RoPE keys": Same(
        kind=ZLAB, config={"rope_parameters": REMOVED, "rope_theta": THETA, "rope_scaling": None}
    ),
    "theta in both places, the same": Same(kind=ZLAB, config={"rope_theta": THETA}),
    "yarn as rope_scaling": Same(
        kind=ZLAB,
        toy={
            "rope": {
                "rope_type": "yarn",
                "rope_theta": THETA,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
        config={
            "rope_parameters": REMOVED,
            "rope_theta": THETA,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "one RoPE for each layer type": Same(
        kind=ZLAB,
        toy={"sliding_window": 6},
        config={
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": THETA},
                "sliding_attention": {"rope_type": "default", "rope_theta": THETA},
                "rope_theta": None,
            }
        },
    ),
    "M-RoPE over text": Same(
        kind=ZLAB,
        config={
            "rope_parameters": {
                "rope_type": "mrope",
                "rope_theta": THETA,
                "mrope_section": [4, 2, 2],
            }
        },
    ),
    "a share of the head copied from the target": Same(
        kind=DSPARK,
        config={
            "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": THETA,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
            },
        },
    ),
    "neox said by both keys": Same(
        kind=DFLASH2, config={"is_neox_style": True, "rope_is_neox_style": True}
    ),
    # block, taps, mask
    "block_size in dflash_config": Same(
        kind=ZLAB, config={"block_size": REMOVED, "dflash_config.block_size": 4}
    ),
    "z-lab's keys at the top level": Same(
        kind=ZLAB,
        config={"dflash_config": REMOVED, "target_layer_ids": [1, 3, 4], "mask_token_id": 259},
    ),
    "taps as hidden-state indices": Same(
        kind=DSPARK,
        config={"target_layer_ids": REMOVED, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    ),
    "taps in both conventions": Same(
        kind=DSPARK, config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    ),
    "taps by default": Same(
        kind=ZLAB,
        toy={"num_layers": 3, "target_layer_ids": (1, 2, 3)},
        config={"dflash_config.target_layer_ids": REMOVED},
    ),
    "the tap of a single layer by default": Same(
        kind=ZLAB,
        toy={"num_layers": 1, "target_layer_ids": (3,)},
        config={"dflash_config.target_layer_ids": REMOVED},
    ),
    "mask id as pard_token": Same(
        kind=ZLAB, config={"dflash_config.mask_token_id": REMOVED, "pard_token": 259}
    ),
    "integers written as floats": Same(kind=ZLAB, config={"block_size": 4.0, "hidden_size": 40.0}),
    # alignment
    "dspark_bonus_anchor": Same(
        kind=SPEC_DSPARK,
        toy={"draft_vocab_size": 96},
        config={"sample_from_anchor": REMOVED, "dspark_bonus_anchor": False},
    ),
    "shift_label": Same(kind=DSPARK, config={"shift_label": True}),
    "the flag for a config that is silent": Same(
        kind=SPEC_DSPARK,
        toy={"draft_vocab_size": 96, "sample_from_anchor": False},
        config={"sample_from_anchor": REMOVED},
        options={"sample_from_anchor": False},
    ),
    # attention
    "windows as use_swa": Same(
        kind=ZLAB,
        toy={"sliding_window": 6, "num_layers": 1},
        config={
            "layer_types": ["full_attention"],
            "use_sliding_window": REMOVED,
            "sliding_window": REMOVED,
            "dflash_config.use_swa": True,
            "dflash_config.swa_window_size": 6,
        },
    ),
    "layer types by max_window_layers": Same(
        kind=ZLAB,
        toy={"sliding_window": 6, "num_layers": 1},
        config={"layer_types": REMOVED, "max_window_layers": 0},
    ),
    "no layer types": Same(kind=DSPARK, config={"layer_types": REMOVED}),
    "causality in dflash_config": Same(
        kind=ZLAB,
        toy={"overrides": {"is_causal": True}},
        config={"is_causal": REMOVED, "dflash_config.causal": True},
    ),
    "windows of speculators' second family by default": Same(
        kind=Kind.SPECULATORS_DFLASH2,
        toy={"sliding_window": 3},
        config={"sliding_window_non_causal": REMOVED},
    ),
    # heads
    "keys of a head that is not there": Same(
        kind=Kind.SPECULATORS_DFLASH2,
        config={
            "projector_type": "dflash",
            "pure_draft_prefix_len": 1,
            "emb_dim": 256,
            "gru_hidden_dim": 1024,
            "lambda_base_start": 1.0,
            "lambda_base_decay_ratio": 1.0,
            "auf": False,
            "shift_label": False,
        },
    ),
    "candidate keys in dflash_config": Same(
        kind=Kind.SPECULATORS_DFLASH2,
        config={"selector_top_k": REMOVED, "dflash_config": {"selector_top_k": 5}},
    ),
    "head keys in dspark_config": Same(
        kind=DSPARK,
        config={
            "markov_rank": REMOVED,
            "markov_head_type": REMOVED,
            "enable_confidence_head": REMOVED,
            "confidence_head_with_markov": REMOVED,
            "dspark_config": {
                "markov_rank": 12,
                "markov_head_type": "vanilla",
                "use_confidence_head": True,
                "confidence_head_with_markov": True,
            },
        },
    ),
    "head keys with a prefix": Same(
        kind=DSPARK,
        config={
            "markov_rank": REMOVED,
            "dspark_markov_rank": 12,
            "dspark_markov_head_type": "vanilla",
        },
    ),
    "SpecForge's nested head keys": Same(
        kind=DSPARK,
        config={
            "architectures": ["DSparkDraftModel"],
            "markov_rank": REMOVED,
            "markov_head_type": REMOVED,
            "enable_confidence_head": REMOVED,
            "confidence_head_with_markov": REMOVED,
            "dflash_config": {
                "attention_mode": "gqa",
                "confidence_head_alpha": 1.0,
                "confidence_head_with_markov": True,
                "enable_confidence_head": True,
                "markov_head_type": "vanilla",
                "markov_rank": 12,
                "projector_type": "dspark",
                "mask_token": "<|MASK|>",
            },
        },
    ),
    "LiquidAI's architecture, which leaves the confidence head's input open": Same(
        kind=DSPARK,
        config={
            "architectures": ["Lfm2DSparkDraftModel"],
            "confidence_head_with_markov": REMOVED,
        },
    ),
    "no head keys at all": Same(
        kind=DSPARK,
        config={
            "markov_rank": REMOVED,
            "markov_head_type": REMOVED,
            "enable_confidence_head": REMOVED,
            "confidence_head_with_markov": REMOVED,
        },
    ),
    "SpecForge's confidence_head_alpha": Same(
        kind=DSPARK, config={"enable_confidence_head": REMOVED, "confidence_head_alpha": 0.5}
    ),
    "DSparkDraftModel with Qwen3 layers": Same(
        kind=DSPARK, config={"architectures": ["DSparkDraftModel"]}
    ),
    "family by projector_type": Same(
        kind=DSPARK, config={"architectures": REMOVED, "dflash_config.projector_type": "dspark"}
    ),
    "selector keys at the top level": Same(
        kind=DFLASH2,
        config={"dflash_config.selector_rank": REMOVED, "selector_rank": 6},
    ),
    "a soft cap of zero is off": Same(kind=ZLAB, config={"final_logit_softcapping": 0.0}),
    "logit_scale as the multiplier": Same(
        kind=ZLAB,
        toy={"overrides": {"dflash_config.output_multiplier": 0.25}},
        config={"dflash_config.output_multiplier": REMOVED, "logit_scale": 0.25},
    ),
    "speculators without a layer config of its own": Same(
        kind=SPEC_DFLASH,
        config={BODY: REMOVED, **drafter_config(ToyDrafter(kind=SPEC_DFLASH))[BODY]},
    ),
    "speculators with the layers' keys at the top as well": Same(
        kind=SPEC_DFLASH, config=drafter_config(ToyDrafter(kind=SPEC_DFLASH))[BODY]
    ),
    "keys copied from a hybrid target": Same(
        kind=DSPARK,
        config={
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "mtp_num_hidden_layers": 1,
            "text_config": {"model_type": "qwen3_5_text"},
            "vision_config": {"depth": 27},
        },
    ),
    "a tied head said and not shipped": Same(kind=ZLAB, config={"tie_word_embeddings": True}),
    "a Gemma-4 drafter without its dtype": Same(kind=GEMMA, config={"dtype": REMOVED}),
}
