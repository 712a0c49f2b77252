"""Which rounds a comparison drafts, and what is fed in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from draftrt.manifest import GraphEntry
from draftrt.spec import DrafterSpec

SHORT = 5  # context of the short sequence's first round
DEFAULT_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """One round to compare.

    Attributes:
        context_length: rows committed before it; 0 starts a sequence.
        new_rows: T, rows of new context.
        capacity: rows of the caches.
        graph: ONNX file, or what else computes.
    """

    context_length: int
    new_rows: int
    capacity: int
    graph: str = ""


def plan_rounds(spec: DrafterSpec, max_context: int, num_rounds: int) -> list[PlannedRound]:
    """Return the rounds of a short sequence, then of one that fills all rows of the caches.

    After a sequence's first round the number of new rows goes through one (no draft was
    accepted), half the drafts and all of them; rounds that would not fit are left out. The
    capacity of each is what its sequence needs.
    """
    room = max_context - spec.block_size
    wanted = rows_that_fit(spec, num_rounds - 1, room)
    left = room - sum(wanted)
    return [
        PlannedRound(
            context_length=sum(rows[:index]),
            new_rows=count,
            capacity=sum(rows) + spec.block_size,
        )
        for rows in [[first, *wanted] for first in sorted({min(SHORT, left), left})]
        for index, count in enumerate(rows)
    ]


def rows_that_fit(spec: DrafterSpec, num_rounds: int, room: int) -> list[int]:
    """Return the new rows of the rounds behind a first one: none, half and all drafts accepted.

    Args:
        spec: the drafter.
        num_rounds: so many at most.
        room: rows that they and the first round share, one for the first at least.
    """
    drafts, wanted, total = spec.num_draft_tokens, list[int](), 0
    for count in islice(cycle((1, 1 + drafts // 2, 1 + drafts)), max(num_rounds, 0)):
        total += count
        if total >= room:
            break
        wanted.append(count)
    return wanted


def windows_of(spec: DrafterSpec) -> tuple[int, ...]:
    """Return the sliding windows of a drafter's layers, each once."""
    return tuple(sorted({rule.window for rule in spec.layers if rule.window is not None}))


def windows_beyond(spec: DrafterSpec, rounds: Sequence[PlannedRound]) -> tuple[int, ...]:
    """Return the windows that no round's context reaches past, so that nothing was ever cut off."""
    longest = max((one.context_length + one.new_rows for one in rounds), default=0)
    return tuple(window for window in windows_of(spec) if longest <= window)


def feeds_of(
    spec: DrafterSpec, entry: GraphEntry, rounds: Sequence[PlannedRound]
) -> Iterator[Mapping[str, Any]]:
    """Yield the feeds of each round, always the same ones."""
    from draftrt.export.models.signature import round_feeds, walk_to_compare

    rng = np.random.default_rng(0)
    walk = walk_to_compare(entry.signature, entry.precision)
    for one in rounds:
        length = one.context_length
        yield round_feeds(spec, rng, new_rows=one.new_rows, context_length=length, walk=walk)
