"""Whether prompts decoded on caches that held another text have the ids of prompts computed whole.

First all prompts are decoded behind each other, then every one of them alone from its first token
on. Where both part, the two best logits of the whole computing say whether that is a tie: rows that
were computed in calls of other sizes may differ in their last bits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftrt.backends import ONNXRUNTIME
from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.compare.ties import is_tie
from draftrt.errors import FeedError, UnsupportedError
from draftrt.quantization import DRAFT, TARGET
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import Form, read_prompts
from draftrt.spec import Precision
from draftrt.validate.reuse.prompts import EVERY, Warm, WarmPrompts

Report = Callable[[str], None]
MOST_SHOWN = 8
SAME_DRAFTS = 0.95  # share of first drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSettings:
    """What is tried.

    Attributes:
        cases: random prompts.
        seed: of them.
        max_tokens: most new tokens of each.
        longest: most tokens of a prompt, with what was decoded before it.
        prompts: file of the prompts that they are made of; None: the built-in ones.
        form: how those are written out for the target.
        target: as for `draftrt.runtime.load.load`, and so are all below.
    """

    cases: int = 100
    seed: int = 0
    max_tokens: int = 24
    longest: int = 200
    prompts: Path | None = None
    form: Form = field(default_factory=Form)
    target: Path | None = None
    target_port: str | None = None
    backend: str = ONNXRUNTIME
    device: str = "cpu"
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherIds:
    """A prompt whose ids are others than those of the whole computing.

    Attributes:
        number: of the prompt, from 1.
        warm: it, and what came.
        expected: ids of the whole computing.
        place: of the first different new token.
        is_tie: whether that is a choice between two logits as near as rounding.
    """

    number: int
    warm: Warm
    expected: tuple[int, ...]
    place: int
    is_tie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseReport:
    """What came out.

    Attributes:
        bundle: its path.
        runs_as: what ran it, in words.
        seed: of the random prompts.
        prompts: all prompts, in their order.
        differences: those with other ids, ties among them.
        drafted: prompts behind which the drafter was asked.
        same_drafts: those whose first drafts are the same as computed whole.
    """

    bundle: str
    runs_as: str
    seed: int
    prompts: tuple[Warm, ...]
    differences: tuple[OtherIds, ...]
    drafted: int
    same_drafts: int

    @property
    def is_same(self) -> bool:
        """Whether all ids are the same but for ties, and drafts but for a few."""
        return all(one.is_tie for one in self.differences) and self.has_same_drafts

    @property
    def has_same_drafts(self) -> bool:
        """Whether the drafter had the same context: a draft may flip at a tie, most do not."""
        return self.same_drafts >= SAME_DRAFTS * self.drafted

    @property
    def reused_tokens(self) -> int:
        """Tokens of all prompts that were not computed."""
        return sum(one.reused_tokens for one in self.prompts)


def check_reuse(bundle: Path, settings: ReuseSettings, report: Report) -> ReuseReport:
    """Decode prompts behind each other and alone, and compare.

    Raises:
        FeedError: the caches are too short for the prompts wanted.
        UnsupportedError: nothing was reused, so nothing was checked.
        DraftrtError: as `draftrt.runtime.load.load`.
    """
    opened = Bundle.open(bundle, verify=Verify.REMEMBERED)
    graphs = opened.manifest.graphs
    precision = (graphs.get(TARGET) or graphs[DRAFT]).precision
    with load(
        bundle,
        target=settings.target,
        target_port=settings.target_port,
        backend=settings.backend,
        device=settings.device,
        threads=settings.threads,
        verify=False,
    ) as pair:
        warm = WarmPrompts(pair, _texts(pair, settings), settings.max_tokens)
        warm.cut_everywhere(settings.longest // 4, report)
        rng = random.Random(settings.seed)
        warm.edit(settings.cases, settings.longest, rng, report)
        if not any(one.reused_tokens for one in warm.done):
            raise UnsupportedError(
                f"{bundle}: no token of {len(warm.done)} prompts was reused with {pair.runs_as}, "
                "so there is nothing to compare",
                hint="run the target as the bundle's own graph",
            )
        differences, drafts = _compared(pair, warm.done, precision, report)
        return ReuseReport(
            bundle=str(bundle),
            runs_as=pair.runs_as,
            seed=settings.seed,
            prompts=tuple(warm.done),
            differences=tuple(differences),
            drafted=len(drafts),
            same_drafts=sum(drafts),
        )


def _texts(pair: Pair, settings: ReuseSettings) -> list[tuple[int, ...]]:
    """Return the ids that prompts are made of."""
    most = pair.decoder.most_tokens - settings.max_tokens
    if settings.longest > most:
        raise FeedError(
            f"got prompts of up to {settings.longest} tokens and {settings.max_tokens} new ones "
            f"behind them, expected at most {max(most, 0)}: {pair.decoder.held}",
            hint="give a smaller --longest, or export with a larger --max-context",
        )
    requests = read_prompts(settings.prompts)
    form = settings.form.settled(pair.template, requests)
    return [ids for ids in form.encode(pair.encode, requests) if ids]


class _Cold:
    """Prompts computed whole, each once."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._known: dict[tuple[Any, ...], tuple[Round, ...]] = {}

    def rounds(self, one: Warm) -> tuple[Round, ...]:
        """Return the rounds of a prompt that was decoded behind another text."""
        key = (one.prompt_ids, one.wanted, one.speculate)
        if key not in self._known:
            options = DecodeOptions(
                max_tokens=one.wanted, stop_ids=frozenset(), schedule="all", reuse_prefix=False
            )
            rounds = self._pair.rounds(one.prompt_ids, options, speculate=one.speculate)
            self._known[key] = tuple(rounds)
        return self._known[key]


def _compared(
    pair: Pair, prompts: list[Warm], precision: Precision, report: Report
) -> tuple[list[OtherIds], list[bool]]:
    """Return the prompts with other ids, and whether each drafted one had the same drafts."""
    found, drafts, cold = [], [], _Cold(pair)
    for number, one in enumerate(prompts, start=1):
        rounds, got = cold.rounds(one), one.token_ids
        expected = tuple(token for each in rounds for token in each.token_ids)
        if got != expected[: len(got)]:
            places = zip(got, expected, strict=False)
            place = next(at for at, (a, b) in enumerate(places) if a != b)
            logits = _logits(pair, (*one.prompt_ids, *expected[:place]))
            found.append(
                OtherIds(
                    number=number,
                    warm=one,
                    expected=expected,
                    place=place,
                    is_tie=is_tie(logits, got[place], precision),
                )
            )
        if one.draft_ids and got[:1] == expected[:1]:
            drafts.append(one.draft_ids == rounds[1].draft_ids)
        if number % (2 * EVERY) == 0:
            report(f"{number} of {len(prompts)} prompts computed whole")
    return found, drafts


def _logits(pair: Pair, token_ids: tuple[int, ...]) -> Any:
    """Return the target's logits [V] behind a text that is computed whole."""
    pair.target.rollback(0)
    rows = pair.target.prefill(np.array(token_ids, np.int64), want_logits=True)
    assert rows.logits is not None
    return rows.logits[0]


def as_text(found: ReuseReport) -> list[str]:
    """Return the report as lines."""
    kinds = Counter(one.kind for one in found.prompts)
    ends = Counter(one.end for one in found.prompts)
    whole = sum(len(one.prompt_ids) for one in found.prompts)
    plain = sum(not one.speculate for one in found.prompts)
    wrong = [one for one in found.differences if not one.is_tie]
    lines = [
        f"{found.bundle}, {found.runs_as}, seed {found.seed}",
        f"{len(found.prompts)} prompts behind other texts: "
        + ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        f"{plain} decoded plainly, {ends['closed']} closed early, {ends['broken off']} broken off "
        "inside a call",
        f"reused {found.reused_tokens:,} of {whole:,} tokens of prompts "
        f"({found.reused_tokens / whole:.0%})",
    ]
    if ties := len(found.differences) - len(wrong):
        lines.append(f"{ties} texts part at a tie, where both choices are right")
    for one in wrong[:MOST_SHOWN]:
        lines.append(
            f"DIFFERENT: prompt {one.number} ({one.warm.kind}) of {len(one.warm.prompt_ids)} "
            f"tokens, {one.warm.reused_tokens} of them reused: new token {one.place} is "
            f"{one.warm.token_ids[one.place]}, expected {one.expected[one.place]}"
        )
    if len(wrong) > MOST_SHOWN:
        lines.append(f"... and {len(wrong) - MOST_SHOWN} more")
    if found.drafted:
        lines.append(
            f"first drafts the same behind {found.same_drafts} of {found.drafted} prompts"
            + ("" if found.has_same_drafts else f", expected {SAME_DRAFTS:.0%}: DIFFERENT")
        )
    lines.append(
        f"{len(wrong)} of {len(found.prompts)} have other ids than computed whole"
        if wrong
        else "same: every prompt has the ids that it has when it is computed whole"
    )
    return lines


def as_json(found: ReuseReport) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "bundle": found.bundle,
        "runs_as": found.runs_as,
        "seed": found.seed,
        "same": found.is_same,
        "prompts": len(found.prompts),
        "prompt_tokens": sum(len(one.prompt_ids) for one in found.prompts),
        "reused_tokens": found.reused_tokens,
        "closed": sum(one.end == "closed" for one in found.prompts),
        "broken_off": sum(one.end == "broken off" for one in found.prompts),
        "drafted": found.drafted,
        "same_drafts": found.same_drafts,
        "ties": sum(one.is_tie for one in found.differences),
        "different": [
            {
                "prompt": one.number,
                "kind": one.warm.kind,
                "prompt_ids": one.warm.prompt_ids,
                "reused_tokens": one.warm.reused_tokens,
                "place": one.place,
                "got": one.warm.token_ids,
                "expected": one.expected,
            }
            for one in found.differences
            if not one.is_tie
        ],
    }
