"""Prompts that follow one another as those of a user do, each decoded on the caches of the last.

Every text is decoded behind the last one: a further turn, an edited or shortened prompt, the same
once more, another one. Some are decoded plainly, some are closed early, some are broken off inside
a model's call. What they were and what came out is noted, to be decoded once more from nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Pair

Report = Callable[[str], None]
Kind = Literal["cut", "turn", "again", "edit", "shortened", "another"]
End = Literal["whole", "closed", "broken off"]

PLAIN, CLOSED, BROKEN_OFF = 0.25, 0.15, 0.15  # shares of the random prompts
MOST_NEW = 8  # tokens that a turn or an edit brings
EVERY = 50  # prompts between two lines of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A prompt that was decoded behind another text.

    Attributes:
        kind: how it follows the text before.
        prompt_ids: it.
        wanted: new tokens that were asked for.
        speculate: whether the drafter took part.
        token_ids: what came.
        draft_ids: what the drafter offered in the first round behind the prompt; it rests on every
            token's context.
        reused_tokens: tokens of the prompt that were not computed.
        end: how it ended.
    """

    kind: Kind
    prompt_ids: tuple[int, ...]
    wanted: int
    speculate: bool
    token_ids: tuple[int, ...]
    draft_ids: tuple[int, ...]
    reused_tokens: int
    end: End


class BreakOffError(Exception):
    """Raised in place of a model's answer."""


class WarmPrompts:
    """Decodes prompts behind each other.

    Attributes:
        done: the prompts, in their order.
    """

    def __init__(self, pair: Pair, texts: Sequence[tuple[int, ...]], max_tokens: int) -> None:
        """Take what prompts are made of.

        Args:
            pair: its caches may hold anything.
            texts: ids of prompts, each at least one.
            max_tokens: most new tokens of a prompt.
        """
        self.done: list[Warm] = []
        self._pair, self._texts, self._max_tokens = pair, texts, max_tokens

    def cut_everywhere(self, most: int, report: Report) -> None:
        """Decode a text and its beginning of every length, other tokens behind it, by turns."""
        prompt = self._texts[0][:most]
        answer = self._decode("another", prompt, self._max_tokens).token_ids
        whole = (*prompt, *answer)
        others = self._texts[-1]
        for place in range(len(whole)):
            other = (whole[place] + 1) % (max(whole) + 1)
            cut = (*whole[:place], other, others[place % len(others)])
            self._decode("cut", cut, self._max_tokens, speculate=place % 4 != 3)
            self._decode("another", prompt, self._max_tokens)
            if (place + 1) % EVERY == 0:
                report(f"cut at {place + 1} of {len(whole)} places")

    def edit(self, count: int, longest: int, rng: random.Random, report: Report) -> None:
        """Decode random prompts, each made of the text before it."""
        text = self._texts[0][:longest]
        for number in range(1, count + 1):
            kind, text = self._follow(text, longest, rng)
            speculate, wanted = rng.random() >= PLAIN, rng.randint(1, self._max_tokens)
            chance = rng.random()
            end: End = "whole"
            if chance < CLOSED:
                end = "closed"
            elif chance < CLOSED + BROKEN_OFF:
                end = "broken off"
            found = self._decode(kind, text, wanted, speculate=speculate, end=end, rng=rng)
            text = (*text, *found.token_ids)
            if number % EVERY == 0:
                report(f"{number} of {count} random prompts")

    def _follow(
        self, text: tuple[int, ...], longest: int, rng: random.Random
    ) -> tuple[Kind, tuple[int, ...]]:
        source = rng.choice(self._texts)
        start = rng.randrange(len(source))
        new = source[start : start + rng.randint(1, MOST_NEW)]
        if len(text) + len(new) > longest:
            return "shortened", (*text[: rng.randrange(longest // 2)], *new)
        chance, place = rng.random(), rng.randrange(len(text))
        if chance < 0.45:
            return "turn", (*text, *new)
        if chance < 0.7:
            return "edit", (*text[:place], *new, *text[place + len(new) :])
        if chance < 0.85:
            return "shortened", text[: place + 1]
        return ("again", text) if chance < 0.93 else ("another", source[:longest])

    def _decode(
        self,
        kind: Kind,
        prompt_ids: tuple[int, ...],
        wanted: int,
        *,
        speculate: bool = True,
        end: End = "whole",
        rng: random.Random | None = None,
    ) -> Warm:
        options = DecodeOptions(max_tokens=wanted, stop_ids=frozenset(), schedule="all")
        rounds = self._pair.rounds(prompt_ids, options, speculate=speculate)
        found, reused, drafts = list[int](), 0, tuple[int, ...]()
        calls = rng.randint(1, 4) if rng is not None else 1
        try:
            with breaking_off(self._pair, calls if end == "broken off" else None):
                for one in rounds:
                    found += one.token_ids
                    reused += one.reused_tokens
                    drafts = one.draft_ids if one.index == 1 else drafts
                    if end == "closed" and one.index >= calls - 1:
                        break
        except BreakOffError:
            pass
        rounds.close()
        self.done.append(
            Warm(
                kind=kind,
                prompt_ids=prompt_ids,
                wanted=wanted,
                speculate=speculate,
                token_ids=tuple(found),
                draft_ids=drafts,
                reused_tokens=reused,
                end=end if len(found) < wanted else "whole",
            )
        )
        return self.done[-1]


@contextmanager
def breaking_off(pair: Pair, calls: int | None) -> Iterator[None]:
    """Break off call number ``calls`` of the models: in front of it, in its middle or behind it.

    Args:
        pair: whose models.
        calls: counted from 1 over both; None breaks off nothing.
    """
    if calls is None:
        yield
        return
    left = calls

    def wrap(run: Callable[..., Any], has_middle: bool) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left or calls % 3 == 0:
                if not left:
                    raise BreakOffError
                return run(*given, **options)
            tokens = given[0]
            if has_middle and len(tokens) > 1:
                run(tokens[: len(tokens) // 2], **options)
            else:
                run(*given, **options)
            raise BreakOffError

        return call

    models: list[tuple[Any, str, bool]] = [
        (pair.target, "prefill", True),
        (pair.target, "verify", calls % 2 == 0),
    ]
    if pair.drafter is not None:
        models.append((pair.drafter, "draft", False))
    for model, name, has_middle in models:
        setattr(model, name, wrap(getattr(model, name), has_middle))
    try:
        yield
    finally:
        for model, name, _ in models:
            delattr(model, name)
