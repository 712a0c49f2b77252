"""Times of a round's two calls, by rows to verify and by cached context."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from draftrt.errors import FeedError
from draftrt.runtime.decoding.drafter import Drafter
from draftrt.runtime.decoding.schedule import Costs
from draftrt.runtime.pair import Pair
from draftrt.runtime.targets.graph import GraphTarget

CONTEXTS = (256, 4096)
ROWS = (1, 2, 4, 8, 16)
LEAST_CALLS, MOST_CALLS, SECONDS = 5, 60, 3.0


def measure_costs(pair: Pair, report: Callable[[str], None]) -> list[Costs]:
    """Measure behind each of `CONTEXTS` that the caches allow, the shorter one first.

    A long context is only pretended (times do not depend on what the rows hold), so it needs a
    target that runs as a graph; other targets are measured behind the shorter one alone.

    Raises:
        FeedError: the caches are too short for any measurement.
    """
    assert pair.drafter is not None
    rows = sorted({*ROWS, pair.drafter.spec.num_draft_tokens + 1})
    room = min(pair.target.max_context, pair.drafter.capacity - 2 * pair.drafter.spec.block_size)
    fitting = [context for context in CONTEXTS if context + rows[-1] <= room] or [room - rows[-1]]
    if fitting[0] < 1:
        raise FeedError(
            f"the caches hold {room} tokens, expected more than the {rows[-1]} of one call",
            hint="export with a larger --max-context",
        )
    if not isinstance(pair.target, GraphTarget):
        del fitting[1:]
    found = []
    for context in fitting:
        report(f"costs behind {context} tokens")
        found.append(_measure(pair, pair.drafter, context, rows))
    pair.target.rollback(0)
    pair.drafter.crop(0)
    return found


def _measure(pair: Pair, drafter: Drafter, context: int, rows: list[int]) -> Costs:
    """Call everything in turn until the time is up; medians."""
    _fill(pair, context)
    ids = np.random.default_rng(0).integers(0, 256, rows[-1])
    num_new = 1 + drafter.spec.num_draft_tokens // 2  # as if half the drafts were kept
    features = np.zeros((1, num_new, drafter.spec.feature_size), np.float32)
    times: dict[int, list[float]] = {count: [] for count in (0, *rows)}
    until = None
    while len(times[0]) < LEAST_CALLS or (
        len(times[0]) < MOST_CALLS and until is not None and perf_counter() < until
    ):
        for count, spent in times.items():
            started = perf_counter()
            if count:
                pair.target.verify(ids[:count])
            else:
                drafter.draft(int(ids[0]), features)
            spent.append(1e3 * (perf_counter() - started))
            pair.target.rollback(context)
            drafter.crop(context)
        if until is None:  # the first calls of each size bind buffers
            times = {count: [] for count in times}
            until = perf_counter() + SECONDS
    return Costs(
        draft_ms=median(times[0]),
        verify_ms={count: median(times[count]) for count in rows},
        context=context,
    )


def _fill(pair: Pair, context: int) -> None:
    """Let both caches hold ``context`` tokens."""
    assert pair.drafter is not None
    pair.drafter.context_length = context
    if isinstance(pair.target, GraphTarget):
        pair.target.skip_to(context)
    else:
        pair.target.rollback(0)
        pair.target.prefill(np.zeros(context, np.int64))
