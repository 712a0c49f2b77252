"""A row of choices as a real checkpoint, its target, and the slow drafter that it should equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.checkpoint.target import TargetCheckpoint
from tests.parity.family_choices import (
    BLOCK,
    DIM,
    HEADS,
    HIDDEN,
    LOGICAL,
    REDUCED,
    TAPS,
    VOCABULARY,
)
from tests.parity.family_rows import GEMMA_SCALE, Row, choices_of_row
from tests.parity.slow_drafter import Meaning, Rule, SlowDrafter
from tests.parity.slow_rope import SlowRope
from tests.toys.formats import drafter_arrays
from tests.toys.models import ToyDrafter
from tests.toys.toys import write_drafter

Arrays = dict[str, NDArray[Any]]
MASK = 259
BODY_KEYS = ("rope_parameters", "max_position_embeddings")


@dataclass(frozen=True)
class Case:
    """A checkpoint on disk and what it should compute."""

    folder: Path
    target: TargetCheckpoint
    slow: SlowDrafter
    num_drafts: int
    feature_size: int = len(TAPS) * HIDDEN


def make_case(row: Row, folder: Path, target: TargetCheckpoint, tables: Mapping[str, Any]) -> Case:
    """Write a row's checkpoint.

    Args:
        row: a choice for each axis.
        folder: where to write.
        target: the toy target, 264 ids.
        tables: its ``embed_tokens.weight`` and ``lm_head.weight`` as arrays.
    """
    choices = choices_of_row(row)
    tags = frozenset().union(*(choice.tags for choice in choices))
    wanted = frozenset().union(*(frozenset(choice.extra) for choice in choices))
    toy_fields = {key: value for choice in choices for key, value in choice.toy.items()}
    config = {key: value for choice in choices for key, value in choice.config.items()}
    means = {key: value for choice in choices for key, value in choice.means.items()}
    toy = ToyDrafter(**toy_fields)
    extra, omit = _tensors(toy, wanted)
    toy = dataclasses.replace(
        toy, extra=extra, omit=omit, overrides=_placed(config, tags, has_rope=True)
    )
    write_drafter(folder, toy)
    arrays = {**drafter_arrays(toy), **extra}
    arrays = {**tables, **{name: array for name, array in arrays.items() if name not in omit}}
    if "logical target" in wanted:
        target = dataclasses.replace(
            target, spec=dataclasses.replace(target.spec, vocab_size=LOGICAL)
        )
    meaning = _meaning(means, tags)
    return Case(folder, target, SlowDrafter(arrays, meaning), BLOCK - meaning.drafts_from_row)


def _placed(config: dict[str, Any], tags: frozenset[str], *, has_rope: bool) -> dict[str, Any]:
    """Put keys where the format has them."""
    if "gemma" in tags and has_rope:
        other = {"rope_type": "default", "rope_theta": 10_000.0}
        entries = {"full_attention": config["rope_parameters"], "sliding_attention": other}
        config = {**config, "rope_parameters": entries}
    if "spec" not in tags:
        return config
    body = "transformer_layer_config."
    return {(body + key if key in BODY_KEYS else key): value for key, value in config.items()}


def _tensors(toy: ToyDrafter, wanted: frozenset[str]) -> tuple[Arrays, tuple[str, ...]]:
    """Return the tensors to add to a toy's own and those to leave out."""
    rng = np.random.default_rng(11)
    own = drafter_arrays(toy)

    def random(*shape: int) -> NDArray[np.float32]:
        values = rng.standard_normal(shape) / shape[-1] ** 0.5
        return np.asarray(values, np.float32)

    extra: Arrays = {}
    omit: list[str] = []
    if "own tables" in wanted:
        extra["embed_tokens.weight"] = random(VOCABULARY, HIDDEN)
        extra["lm_head.weight"] = random(VOCABULARY, HIDDEN)
    else:
        omit += ["embed_tokens.weight", "lm_head.weight"]
    if "reduced" in wanted:
        kept = np.sort(rng.permutation(VOCABULARY)[:REDUCED]).astype(np.int64)
        is_absolute = "absolute" in wanted
        extra["d2t"] = kept if is_absolute else kept - np.arange(REDUCED)
        extra["lm_head.weight"] = random(REDUCED, HIDDEN)
        if "markov_head.markov_w2.weight" in own and "no markov" not in wanted:
            extra["markov_head.markov_w2.weight"] = random(REDUCED, toy.markov_rank)
    if "plain confidence" in wanted:
        extra["confidence_head.proj.weight"] = random(1, HIDDEN)
    if "no markov" in wanted:
        omit += [name for name in own if name.startswith("markov_head.")]
    if "mask embedding" in wanted:
        extra["mask_embedding"] = random(HIDDEN)
    for name in wanted:
        if name.endswith("attention_sink_bias"):
            extra[name] = rng.standard_normal(HEADS).astype(np.float32)
    names = set(own)
    return extra, tuple(name for name in omit if name in names and name not in extra)


def _meaning(means: dict[str, Any], tags: frozenset[str]) -> Meaning:
    is_gemma = "gemma" in tags
    rules = tuple(
        Rule(causal=causal, window=window, from_anchor="spec" in tags)
        for window, causal in means.pop("layers")
    )
    rope = SlowRope(
        parameters=means.pop("rope"),
        head_dim=DIM,
        max_position=means.pop("max_position"),
        interleaved=means.pop("interleaved"),
    )
    gemma = {"cap": 9.0, "embedding_scale": GEMMA_SCALE} if is_gemma else {}
    return Meaning(
        block=BLOCK,
        mask_id=MASK,
        rules=rules,
        rope=rope,
        num_heads=HEADS,
        num_groups=2,
        head_dim=DIM,
        is_gemma=is_gemma,
        key_is_value=is_gemma,
        **{**gemma, **means},
    )


def rounds(case: Case, seed: int) -> list[tuple[NDArray[np.float32], int]]:
    """Features and anchor of each round: a prompt, then none, all and some accepted, then many."""
    rng = np.random.default_rng(seed)
    counts = (6, 1, case.num_drafts + 1, 2, 9)
    anchors = [*rng.integers(0, LOGICAL, len(counts) - 1), MASK]
    return [
        (rng.standard_normal((count, case.feature_size)).astype(np.float32), int(anchor))
        for count, anchor in zip(counts, anchors, strict=True)
    ]
