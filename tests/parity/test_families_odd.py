"""Shapes and switches that few checkpoints have, one by one, against the slow drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import read_target
from draftrt.export.weights.tensors import draft_tensors
from draftrt.spec import Precision
from draftrt.validate.rounds.module import ReferenceRounds
from tests.parity.family_checkpoints import MASK, Case
from tests.parity.family_rounds import OUTPUTS, compare_rounds
from tests.parity.family_rows import GEMMA_SCALE
from tests.parity.slow_drafter import Meaning, Rule, SlowDrafter
from tests.parity.slow_rope import SlowRope
from tests.toys.formats import drafter_arrays, target_arrays
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytestmark = pytest.mark.parity
CONTEXT = 48
Extra = Callable[[np.random.Generator], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A toy, tensors it adds, and what differs from a plain drafter's meaning."""

    toy: Mapping[str, Any]
    extra: Extra = lambda rng: {}
    means: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)


def random(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    values = rng.standard_normal(shape) / shape[-1] ** 0.5
    return np.asarray(values, np.float32)


def attention(rng: np.random.Generator, name: str, *shape: int) -> dict[str, NDArray[Any]]:
    """A tensor of every layer's attention."""
    return {f"layers.{index}.self_attn.{name}": random(rng, *shape) for index in range(2)}


def own_values(rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
    keys = attention(rng, "k_proj.weight", 64, 40)
    return keys | attention(rng, "v_proj.weight", 64, 40)


def biases(rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
    sizes = {"q_proj.bias": 64, "k_proj.bias": 32, "o_proj.bias": 40}
    return {k: v for name, size in sizes.items() for k, v in attention(rng, name, size).items()}


def wider_target(rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
    return {
        "fc.weight": random(rng, 40, 144),
        "embed_tokens.weight": random(rng, 264, 40),
        "lm_head.weight": random(rng, 264, 40),
    }


def convolutions(taps: int) -> Extra:
    def extra(rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        return {
            f"layers.{index}.{site}.{name}": random(rng, *shape)
            for index in range(2)
            for site in ("attention_conv", "mlp_conv")
            for name, shape in (
                ("base_kernel", (2, taps, 40)),
                ("kernel_projection.weight", (2 * taps * 5, 40)),
            )
        }

    return extra


DFLASH2 = {"family": "dflash2", "drafts_from_row": 1, "top_k": 5, "conv_group": 8}
GEMMA = {
    "family": "dspark",
    "markov": "vanilla",
    "is_gemma": True,
    "key_is_value": True,
    "cap": 9.0,
    "embedding_scale": GEMMA_SCALE,
    "rope": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
DSPARK = {"family": "dspark", "markov": "vanilla"}
ROWS: dict[str, Odd] = {
    "Gemma-4 with values of its own": Odd(
        toy={"kind": Kind.DEEPSPEC_GEMMA4, "overrides": {"attention_k_eq_v": False}},
        extra=own_values,
        means={**GEMMA, "key_is_value": False, "num_groups": 4},
    ),
    "Gemma-4 with biases": Odd(
        toy={"kind": Kind.DEEPSPEC_GEMMA4, "overrides": {"attention_bias": True}},
        extra=biases,
        means=GEMMA,
    ),
    "a target wider than the drafter": Odd(
        toy={"kind": Kind.SPECULATORS_DFLASH, "overrides": {"target_hidden_size": 48}},
        extra=wider_target,
        target={"hidden_size": 48},
    ),
    "a target with a tied head": Odd(
        toy={"kind": Kind.ZLAB_DFLASH}, target={"tie_word_embeddings": True}
    ),
    "the embedding and the last layer as taps": Odd(
        toy={"kind": Kind.DEEPSPEC_DSPARK, "target_layer_ids": (-1, 2, 5)},
        means={**DSPARK, "drafts_from_row": 0},
    ),
    "one layer, block of two": Odd(
        toy={"kind": Kind.ZLAB_DFLASH, "num_layers": 1, "block_size": 2},
        means={"block": 2, "rules": (Rule(),)},
    ),
    "one head": Odd(
        toy={"kind": Kind.ZLAB_DFLASH, "num_heads": 1, "num_kv_heads": 1},
        means={"num_heads": 1, "num_groups": 1},
    ),
    "as many key heads as query heads": Odd(
        toy={"kind": Kind.ZLAB_DFLASH, "num_kv_heads": 4}, means={"num_groups": 4}
    ),
    "one key head": Odd(toy={"kind": Kind.ZLAB_DFLASH, "num_kv_heads": 1}, means={"num_groups": 1}),
    "more taps of a convolution than rows": Odd(
        toy={
            "kind": Kind.ZLAB_DFLASH2,
            "overrides": {"dflash_config.conv_kernel_size": 6},
        },
        extra=convolutions(6),
        means=DFLASH2,
    ),
    "a convolution of one tap": Odd(
        toy={
            "kind": Kind.ZLAB_DFLASH2,
            "overrides": {"dflash_config.conv_kernel_size": 1},
        },
        extra=convolutions(1),
        means=DFLASH2,
    ),
    "one candidate": Odd(
        toy={"kind": Kind.ZLAB_DFLASH2, "overrides": {"dflash_config.selector_top_k": 1}},
        means={**DFLASH2, "top_k": 1},
    ),
    "every id a candidate": Odd(
        toy={"kind": Kind.ZLAB_DFLASH2, "overrides": {"dflash_config.selector_top_k": 264}},
        means={**DFLASH2, "top_k": 264},
    ),
    "a confidence head without a bias": Odd(
        toy={"kind": Kind.DEEPSPEC_DSPARK, "omit": ("confidence_head.proj.bias",)},
        means={**DSPARK, "drafts_from_row": 0},
    ),
    # An epsilon of published size is far below the rows of random weights, and a wide cap does
    # nothing to small logits.
    "z-lab, a large epsilon": Odd(
        toy={"kind": Kind.ZLAB_DFLASH, "overrides": {"rms_norm_eps": 0.3}}, means={"eps": 0.3}
    ),
    "z-lab, selector and convolutions, a large epsilon": Odd(
        toy={"kind": Kind.ZLAB_DFLASH2, "overrides": {"rms_norm_eps": 0.3}},
        means={**DFLASH2, "eps": 0.3},
    ),
    "Gemma-4, a large epsilon and a narrow cap": Odd(
        toy={
            "kind": Kind.DEEPSPEC_GEMMA4,
            "overrides": {"rms_norm_eps": 0.3, "final_logit_softcapping": 1.5},
        },
        means={**GEMMA, "eps": 0.3, "cap": 1.5},
    ),
}


def make(row: Odd, folder: Path) -> Case:
    target_toy = ToyTarget(**row.target)
    arrays = target_arrays(target_toy)
    embed = arrays["model.embed_tokens.weight"]
    tables = {"embed_tokens.weight": embed, "lm_head.weight": arrays.get("lm_head.weight", embed)}
    extra = row.extra(np.random.default_rng(5))
    toy = ToyDrafter(**row.toy, extra=extra)
    write_drafter(folder / "draft", toy)
    rope = row.means.get("rope", {"rope_theta": 1e4})
    meaning: dict[str, Any] = {
        "family": "dflash",
        "block": 4,
        "mask_id": MASK,
        "drafts_from_row": 0 if row.means.get("family") == "dspark" else 1,
        "rules": (Rule(), Rule()),
        "num_heads": 4,
        "num_groups": 2,
        "head_dim": 16,
        "num_drafted": 264,
        **row.means,
        "rope": SlowRope(parameters=rope, head_dim=16),
    }
    own = {k: v for k, v in {**drafter_arrays(toy), **extra}.items() if k not in toy.omit}
    slow = SlowDrafter({**tables, **own}, Meaning(**meaning))
    target = read_target(write_target(folder / "target", target_toy))
    drafts = meaning["block"] - meaning["drafts_from_row"]
    return Case(folder / "draft", target, slow, drafts, 3 * target_toy.hidden_size)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_odd_drafter_computes_what_the_slow_one_does(row: Odd, tmp_path: Path) -> None:
    case = make(row, tmp_path)
    loaded = load_drafter(case.folder, case.target)
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    module = reference_module(loaded.spec, tensors, extra_outputs=OUTPUTS)
    compare_rounds(case, ReferenceRounds(module, Precision.FP32, CONTEXT).run, seed=1)
