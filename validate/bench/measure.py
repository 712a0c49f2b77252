"""Speculation against plain decoding: same prompts, same process, one after the other.

Every system decodes every prompt in turn, in an order that rotates, so that whatever else the
machine does meets all of them. Knows how to time a system, not how one works or what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Protocol

from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round, Stats
from draftrt.runtime.pair import Pair

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
