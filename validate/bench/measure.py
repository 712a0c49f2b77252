"""Speculation against plain decoding, and the times of a round's two calls.

Speculation against plain decoding: same prompts, same process, one after the other.

Every system decodes every prompt in turn, in an order that rotates, so that whatever else the
machine does meets all of them. Knows how to time a system, not how one works or what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from draftrt.errors import FeedError
from draftrt.manifest import Costs
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round, Stats
from draftrt.runtime.pair import Pair
from draftrt.runtime.targets.graph import GraphTarget

PLAIN, SPECULATIVE = "plain", "speculative"
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One decoding of one prompt.

    Attributes:
        token_ids: new ids.
        total_s: seconds from prompt to last token.
        first_s: seconds to the first token; None where a system does not say.
        rounds: its rounds; empty where a system does not say.
    """

    token_ids: tuple[int, ...]
    total_s: float
    first_s: float | None = None
    rounds: tuple[Round, ...] = ()


class System(Protocol):
    """Something that decodes greedily, without end tokens."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def decode(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Decoded:
        """Decode exactly ``max_tokens`` tokens."""


class Own:
    """A loaded pair, with its drafter or without.

    Attributes:
        name: `PLAIN` or `SPECULATIVE`.
    """

    def __init__(self, pair: Pair, options: DecodeOptions, *, speculate: bool) -> None:
        self.name = SPECULATIVE if speculate else PLAIN
        self._pair, self._speculate = pair, speculate
        self._options = replace(options, stop_ids=frozenset())

    def decode(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Decoded:
        """Decode exactly ``max_tokens`` tokens; see `Pair.rounds` for errors."""
        options = replace(self._options, max_tokens=max_tokens)
        started = perf_counter()
        rounds = tuple(self._pair.rounds(prompt_ids, options, speculate=self._speculate))
        total_s = perf_counter() - started
        return Decoded(
            token_ids=tuple(token for one in rounds for token in one.token_ids),
            total_s=total_s,
            first_s=rounds[0].verify_s + rounds[0].host_s,
            rounds=rounds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one system did over all prompts.

    Attributes:
        name: the system.
        tokens_per_s: new tokens over seconds from prompt to last token, all decodings together.
        first_ms: median time to the first token; None where the system does not say.
        times_plain: how many times as fast as plain decoding, median over pairs of decodings of
            one prompt.
        num_decodings: decodings of this system.
        num_same: how many of them gave the same ids as plain decoding.
        stats: acceptance and times over all rounds; None where the system does not say.
    """

    name: str
    tokens_per_s: float
    first_ms: float | None
    times_plain: float
    num_decodings: int
    num_same: int
    stats: Stats | None


def compare(
    systems: Sequence[System],
    prompts: Prompts,
    *,
    max_tokens: int,
    repeats: int,
    report: Callable[[str], None] = lambda line: None,
) -> list[Summary]:
    """Let every system decode every prompt ``repeats`` times and sum up each.

    Args:
        systems: the first is plain decoding, which the others are compared with.
        prompts: ids, at least one prompt.
        max_tokens: new tokens of each.
        repeats: rounds over all prompts, behind one unmeasured decoding of the first prompt.
        report: takes progress, a line at a time.
    """
    for system in systems:
        system.decode(prompts[0], max_tokens)
    done: dict[str, list[Decoded]] = {system.name: [] for system in systems}
    turn = 0
    for repeat in range(repeats):
        for prompt in prompts:
            for index in range(len(systems)):
                system = systems[(turn + index) % len(systems)]
                done[system.name].append(system.decode(prompt, max_tokens))
            turn += 1
        report(f"pass {repeat + 1} of {repeats} over {len(prompts)} prompts")
    plain = done[systems[0].name]
    return [summarise(name, decodings, plain) for name, decodings in done.items()]


def summarise(name: str, decodings: Sequence[Decoded], plain: Sequence[Decoded]) -> Summary:
    """Sum up one system's decodings, each beside plain decoding of the same prompt."""
    firsts = [one.first_s for one in decodings if one.first_s is not None]
    rounds = [one for decoding in decodings for one in decoding.rounds]
    pairs = list(zip(decodings, plain, strict=True))
    return Summary(
        name=name,
        tokens_per_s=sum(len(one.token_ids) for one in decodings)
        / sum(one.total_s for one in decodings),
        first_ms=1e3 * median(firsts) if firsts else None,
        times_plain=median(other.total_s / one.total_s for one, other in pairs),
        num_decodings=len(decodings),
        num_same=sum(one.token_ids == other.token_ids for one, other in pairs),
        stats=Stats.of(rounds) if rounds else None,
    )


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


def _measure(pair: Pair, drafter: DraftSession, context: int, rows: list[int]) -> Costs:
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
    pair.drafter.context_length, pair.drafter.generation = context, 0
    if isinstance(pair.target, GraphTarget):
        pair.target.skip_to(context)
    else:
        pair.target.rollback(0)
        pair.target.prefill(np.zeros(context, np.int64))
