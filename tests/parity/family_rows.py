"""Every combination of choices that a drafter can be made of, two by two, with what each means.

Five axes: family with its head, attention, rotary embedding, vocabulary, logit transforms. A row
takes one choice of each; the rows are such that every pair of choices that can stand in one
checkpoint stands in some row. Each choice says what it writes into a checkpoint and, apart from
that, what the slow drafter shall do: nothing is taken from the product.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

from draftrt.spec import Backbone, Family
from tests.parity.family_choices import (
    ATTENTION_AXIS,
    HEADS_AXIS,
    HIDDEN,
    LOGITS_AXIS,
    ROPE_AXIS,
    VOCABULARY_AXIS,
    Choice,
)

AXES = (HEADS_AXIS, ATTENTION_AXIS, ROPE_AXIS, VOCABULARY_AXIS, LOGITS_AXIS)
Row = tuple[str, ...]


def fits(choices: list[Choice]) -> bool:
    """Whether choices can stand in one checkpoint."""
    brought = frozenset(itertools.chain.from_iterable(choice.tags for choice in choices))
    known = brought | (frozenset() if any(c in HEADS_AXIS.values() for c in choices) else ANY_HEAD)
    return all(choice.needs <= known and not choice.bars & brought for choice in choices)


ANY_HEAD = frozenset(itertools.chain.from_iterable(c.tags for c in HEADS_AXIS.values()))


def choices_of_row(row: Row) -> list[Choice]:
    return [axis[name] for axis, name in zip(AXES, row, strict=True)]


def pairs_of(row: Row) -> set[tuple[int, str, int, str]]:
    places = list(enumerate(row))
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(places, 2)}


def all_pairs() -> set[tuple[int, str, int, str]]:
    """Every pair of choices on different axes that some checkpoint can have."""
    wanted = set()
    for (i, first), (j, second) in itertools.combinations(enumerate(AXES), 2):
        for a, b in itertools.product(first, second):
            if fits([first[a], second[b]]):
                wanted.add((i, a, j, b))
    return wanted


def make_rows() -> list[Row]:
    """Rows that cover every pair; greedy, always the same."""
    rng = random.Random(7)
    missing, rows = all_pairs(), []
    while missing:
        i, a, j, b = min(missing)
        best: Row | None = None
        gain = 0
        for _ in range(60):
            row = [rng.choice(list(axis)) for axis in AXES]
            row[i], row[j] = a, b
            if not fits(choices_of_row(tuple(row))):
                continue
            new = len(pairs_of(tuple(row)) & missing)
            if new > gain:
                best, gain = tuple(row), new
        assert best is not None, f"no checkpoint has both {a!r} and {b!r}"
        rows.append(best)
        missing -= pairs_of(best)
    return rows


ROWS = make_rows()
BACKBONE_OF_TAG = {"qwen3": Backbone.QWEN3, "gemma": Backbone.GEMMA4}
FAMILY_OF_TAG = {family.value: family for family in Family}
GEMMA_SCALE = float(np.float32(math.sqrt(HIDDEN)))
