"""Mutations of good checkpoints that must be refused: which tokens, which features.

One row is one mutation. The rows follow the published bugs of this family of models: each is a fact
that was once read from the wrong place while the text still looked right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftrt.errors import CheckpointError, DraftrtError, SpecError, UnsupportedError
from tests.toys.models import REMOVED, Kind

ZLAB, DFLASH2 = Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2
DEEPSPEC, DSPARK, GEMMA = Kind.DEEPSPEC_DFLASH, Kind.DEEPSPEC_DSPARK, Kind.DEEPSPEC_GEMMA4
SPEC_DFLASH, SPEC_DSPARK = Kind.SPECULATORS_DFLASH, Kind.SPECULATORS_DSPARK
ROPE, BODY = "rope_parameters", "transformer_layer_config"
Bad, Lost, No = SpecError, CheckpointError, UnsupportedError


@dataclass(frozen=True)
class Refusal:
    """A mutation and what must be said about it."""

    name: str
    kind: Kind
    error: type[DraftrtError]
    says: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    toy: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def refuse(
    name: str,
    kind: Kind,
    error: type[DraftrtError],
    *says: str,
    config: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
    options: tuple[str, ...] = (),
    **toy: Any,
) -> Refusal:
    return Refusal(name, kind, error, says, config or {}, toy, target or {}, options)


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def yarn(**changes: Any) -> dict[str, Any]:
    return {ROPE: {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, **changes}}


LAYER = "layers.0.self_attn"

TARGET_ROWS = [
    refuse(
        "tap beyond the target",
        ZLAB,
        Bad,
        "got layers [4]",
        "at most 3 (the target has 4 layers)",
        "trained for another target",
        target={"num_layers": 4},
    ),
    refuse(
        "declared depth",
        ZLAB,
        Bad,
        "num_target_layers: got 6, expected 7",
        "another target",
        target={"num_layers": 7},
    ),
    refuse(
        "declared depth, nested",
        SPEC_DFLASH,
        Bad,
        "num_target_layers: got 9, expected 6",
        config={"dflash_config.num_target_layers": 9},
    ),
    refuse(
        "width of the target",
        DEEPSPEC,
        Bad,
        "drafter expects 40, the target has 48",
        target={"hidden_size": 48},
    ),
    refuse(
        "stated width of the target",
        SPEC_DFLASH,
        Bad,
        "drafter expects 64, the target has 40",
        "columns of fc are taps x target hidden size",
        config={"target_hidden_size": 64},
    ),
    refuse(
        "borrowed tables of another width",
        ZLAB,
        Bad,
        "the drafter expects 40, the target has 48",
        target={"hidden_size": 48},
    ),
    refuse(
        "one tap too few",
        ZLAB,
        Lost,
        "'fc.weight': got shape [40, 120], expected [40, 80]",
        "taps, target_hidden_size and the tensor disagree",
        config={"dflash_config.target_layer_ids": [1, 3]},
    ),
    refuse(
        "taps stated twice",
        SPEC_DFLASH,
        Bad,
        "different values",
        "(1, 3, 4)",
        "(0, 2, 3)",
        "count one above",
        config={"target_layer_ids": [1, 3, 4], "aux_hidden_state_layer_ids": [1, 3, 4]},
    ),
    refuse(
        "taps out of order",
        DSPARK,
        Bad,
        "strictly increasing",
        "[3, 1, 4]",
        config={"target_layer_ids": [3, 1, 4]},
    ),
    refuse(
        "a tap below the embedding",
        DSPARK,
        Bad,
        "integers from -1",
        "[-2, 1, 4]",
        config={"target_layer_ids": [-2, 1, 4]},
    ),
    refuse(
        "an aux id below the embedding",
        SPEC_DSPARK,
        Bad,
        "integers from 0",
        "[-1, 2, 5]",
        config={"aux_hidden_state_layer_ids": [-1, 2, 5]},
        draft_vocab_size=96,
    ),
    refuse(
        "no taps and no depth",
        ZLAB,
        Bad,
        "target_layer_ids is missing",
        "lost acceptance",
        config={"dflash_config.target_layer_ids": REMOVED, "num_target_layers": REMOVED},
    ),
    refuse(
        "no taps in speculators",
        SPEC_DFLASH,
        Bad,
        "target_layer_ids is missing",
        config={"aux_hidden_state_layer_ids": REMOVED, "num_target_layers": 6},
    ),
]
BLOCK_ROWS = [
    refuse(
        "block size twice",
        ZLAB,
        Bad,
        "block_size is stated with different values",
        "dflash_config.block_size = 16, block_size = 4",
        config={"dflash_config.block_size": 16},
    ),
    refuse(
        "block size missing",
        DSPARK,
        Bad,
        "block_size is missing",
        "an integer from 2 to 256",
        config={"block_size": REMOVED},
    ),
    refuse("block of one", ZLAB, Bad, "block_size: got 1", config={"block_size": 1}),
    refuse(
        "mask id outside the target's table",
        ZLAB,
        Bad,
        "mask_token_id: got 264, expected 0 to 263 (the target's embedding table)",
        "a table of the draft's own",
        mask_token_id=264,
    ),
    refuse(
        "mask id outside its own table",
        DSPARK,
        Bad,
        "(the draft's own embedding table)",
        config={"mask_token_id": 99_999},
    ),
    refuse(
        "mask id missing",
        SPEC_DFLASH,
        Bad,
        "mask_token_id is missing",
        "cannot be filled",
        config={"mask_token_id": REMOVED},
    ),
    refuse(
        "mask id twice",
        ZLAB,
        Bad,
        "mask_token_id is stated with different values",
        config={"mask_token_id": 12},
    ),
    refuse(
        "alignment missing",
        SPEC_DSPARK,
        Bad,
        "sample_from_anchor is missing in a speculators DSpark config",
        "pass --sample-from-anchor",
        "--no-sample-from-anchor",
        config={"sample_from_anchor": REMOVED},
        draft_vocab_size=96,
    ),
    refuse(
        "alignment against the flag",
        SPEC_DSPARK,
        Bad,
        "different values",
        "--sample-from-anchor",
        options=("--no-sample-from-anchor",),
        draft_vocab_size=96,
    ),
    refuse(
        "alignment twice",
        DSPARK,
        Bad,
        "alignment is stated with different values",
        config={"sample_from_anchor": True, "dspark_bonus_anchor": True},
    ),
    refuse(
        "alignment against the speculated tokens",
        SPEC_DSPARK,
        Bad,
        "4 speculative tokens",
        "block_size 4 with sample_from_anchor False yields 3",
        draft_vocab_size=96,
        config={"sample_from_anchor": False},
    ),
    refuse(
        "alignment no truth value",
        DSPARK,
        Bad,
        "expected true or false",
        config={"sample_from_anchor": "yes"},
    ),
    refuse(
        "alignment by two names",
        ZLAB,
        Bad,
        "alignment is stated with different values",
        config={
            "dflash_config.query_zero_predicts_next": True,
            "dflash_config.sample_from_anchor": False,
        },
    ),
    refuse(
        "DFlash2 from the anchor",
        DFLASH2,
        No,
        "sample_from_anchor is true in a DFlash2",
        config={"dflash_config.sample_from_anchor": True},
    ),
]
