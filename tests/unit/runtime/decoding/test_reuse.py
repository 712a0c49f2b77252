"""A prompt behind a text that begins alike: only what is new is computed, and the text is the same.

Both fakes check what they are fed: the target counts its rows, and the drafter's session refuses
context rows that are not those of its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from draftrt.errors import BusyError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.reuse import Holdings
from draftrt.runtime.decoding.stats import Round, Stats

HISTORY = (3, 1, 4, 1, 5, 9, 2, 6)
OPTIONS = DecodeOptions(max_tokens=12, schedule="all")
OPEN_ROWS = 6  # rows of its last call that `StatefulTarget` takes back


def loops(
    toy: SimpleNamespace, num_right: Sequence[int], target: Any = None
) -> tuple[DecodeLoop, DecodeLoop, Any, Any]:
    """Return a loop with a drafter and a plain one, the target and the session of both."""
    target, spec, held = target or toy.target(), toy.spec(), Holdings()
    session = toy.session(toy.signature(spec.num_draft_tokens, 5, 200, confidence=False), num_right)
    drafted = DecodeLoop(target, DraftSession(spec, session), held=held)
    return drafted, DecodeLoop(target, held=held), target, session


def told(rounds: Sequence[Round]) -> tuple[list[int], int]:
    """Return the tokens of all rounds, and how many of the prompt were not computed."""
    return [token for one in rounds for token in one.token_ids], Stats.of(rounds).reused_tokens


def stateful(toy: SimpleNamespace) -> Any:
    """Return a fake target that takes back only rows of its last call, without snapshots."""

    class StatefulTarget(toy.target):  # type: ignore[misc, name-defined]
        rewinds = "last call"
        first_open = 0

        def verify(self, token_ids: Any, **wants: Any) -> Any:
            assert self.length >= self.first_open, "rows were taken back that it cannot take back"
            self.first_open = max(self.length, self.length + len(token_ids) - OPEN_ROWS)
            return super().verify(token_ids, **wants)

        def rollback(self, length: int) -> None:
            super().rollback(length)
            if length == 0:
                self.first_open = 0

        def reach(self, length: int) -> int:
            return length if self.first_open <= length <= self.length else 0

    return StatefulTarget()


@pytest.mark.parametrize("num_right", [(0,), (9,), (0, 3, 1, 9, 2)], ids=["none", "all", "mixed"])
@pytest.mark.parametrize("kind", ["any", "last call"])
def test_a_further_turn_computes_its_new_tokens_only(
    toy: SimpleNamespace, num_right: tuple[int, ...], kind: str
) -> None:
    drafted, _, target, _ = loops(toy, num_right, stateful(toy) if kind == "last call" else None)
    prompt: tuple[int, ...] = HISTORY
    for turn in range(4):
        answer, reused = told(list(drafted.decode(prompt, OPTIONS)))
        assert answer == toy.greedy(prompt, 12)
        before = 0 if turn == 0 else len(prompt) - 3  # all but the last of the text, and 2 new
        assert reused == before
        assert target.calls[0] == len(prompt) - before
        target.calls.clear()
        prompt = (*prompt, *answer, turn, 7)


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
@pytest.mark.parametrize("speculate", [True, False], ids=["drafted", "plain"])
def test_a_prompt_cut_anywhere_keeps_what_it_shares(
    toy: SimpleNamespace, cut: int, speculate: bool
) -> None:
    drafted, plain, target, _ = loops(toy, (2, 0))
    list(drafted.decode(HISTORY, OPTIONS))
    target.calls.clear()
    for prompt in ((*HISTORY[:cut], 22, 21, 20), HISTORY[:cut] or (1,)):
        loop = drafted if speculate else plain
        answer, reused = told(list(loop.decode(prompt, OPTIONS)))
        assert answer == toy.greedy(prompt, 12)
        assert reused == min(cut, len(prompt) - 1)  # one is always fed: the answer is behind it
        assert target.calls[0] == len(prompt) - reused
        target.calls.clear()


def test_a_plain_turn_between_two_drafted_ones_leaves_the_drafters_context(
    toy: SimpleNamespace,
) -> None:
    drafted, plain, target, session = loops(toy, (2, 0))
    answer, _ = told(list(drafted.decode(HISTORY, OPTIONS)))
    prompt = (*HISTORY, *answer, 8)
    more, reused = told(list(plain.decode(prompt, OPTIONS)))
    assert (more, reused) == (toy.greedy(prompt, 12), len(prompt) - 2)
    prompt = (*prompt, *more, 8)
    target.calls.clear()
    last, reused = told(list(drafted.decode(prompt, OPTIONS)))
    # The drafter lacks the features of the plain turn: the target gives them once more.
    assert (last, reused) == (toy.greedy(prompt, 12), len(HISTORY) + 11)
    assert session.cache[: len(prompt)] == list(prompt)


def test_a_prompt_may_be_computed_whole_all_the_same(toy: SimpleNamespace) -> None:
    drafted, _, target, _ = loops(toy, (2,))
    list(drafted.decode(HISTORY, OPTIONS))
    target.calls.clear()
    cold = DecodeOptions(max_tokens=12, schedule="all", reuse_prefix=False)
    assert told(list(drafted.decode(HISTORY, cold))) == (toy.greedy(HISTORY, 12), 0)
    assert target.calls[0] == len(HISTORY)
    assert told(list(drafted.decode(HISTORY, OPTIONS)))[1] == len(HISTORY) - 1


def test_a_prefill_that_is_broken_off_leaves_what_it_began_with(toy: SimpleNamespace) -> None:
    drafted, _, target, _ = loops(toy, (2,))
    list(drafted.decode(HISTORY, OPTIONS))
    target.fail_after_rows = 1
    with pytest.raises(KeyboardInterrupt):
        list(drafted.decode((*HISTORY[:5], 20, 20, 20), OPTIONS))
    target.fail_after_rows = None
    assert told(list(drafted.decode(HISTORY, OPTIONS))) == (toy.greedy(HISTORY, 12), 5)


def test_another_decoder_on_the_same_caches_ends_what_was_noted(toy: SimpleNamespace) -> None:
    drafted, _, target, _ = loops(toy, (2,))
    list(drafted.decode(HISTORY, OPTIONS))
    list(DecodeLoop(target).decode((*HISTORY[:4], 20, 20, 20), OPTIONS))
    assert told(list(drafted.decode(HISTORY, OPTIONS))) == (toy.greedy(HISTORY, 12), 0)


def test_a_cache_taken_back_by_hand_is_noticed(toy: SimpleNamespace) -> None:
    drafted, _, target, _ = loops(toy, (2,))
    list(drafted.decode(HISTORY, OPTIONS))
    target.rollback(5)
    assert told(list(drafted.decode(HISTORY, OPTIONS))) == (toy.greedy(HISTORY, 12), 5)
    assert drafted.drafter is not None
    drafted.drafter.crop(2)
    assert told(list(drafted.decode(HISTORY, OPTIONS))) == (toy.greedy(HISTORY, 12), 2)


def test_the_older_stream_ends_though_the_later_one_goes_on_with_its_text(
    toy: SimpleNamespace,
) -> None:
    drafted, _, _, _ = loops(toy, (2,))
    older = drafted.decode(HISTORY, OPTIONS)
    next(older)
    later = drafted.decode((*HISTORY, 4), OPTIONS)
    assert next(later).reused_tokens == len(HISTORY)
    with pytest.raises(BusyError):
        next(older)


@pytest.mark.parametrize("kind", ["any", "last call"])
def test_edits_cancels_interrupts_and_plain_turns_never_change_a_text(
    toy: SimpleNamespace, kind: str
) -> None:
    rng = random.Random(5)
    target = stateful(toy) if kind == "last call" else None
    drafted, plain, target, session = loops(toy, (0, 3, 1, 9, 2), target)
    text, reused, interrupts = list(HISTORY), 0, 0
    for _ in range(400):
        text = _edited(text, rng)
        loop, wanted = rng.choice((drafted, drafted, plain)), rng.randint(1, 20)
        expected = toy.greedy(text, wanted)
        rounds = loop.decode(text, DecodeOptions(max_tokens=wanted))
        found: list[int] = []
        with suppress(KeyboardInterrupt):
            _break_off(rng, target, session)
            for one in rounds:
                found += one.token_ids
                reused += one.reused_tokens
                if rng.random() < 0.15:
                    break  # closed in the middle
        interrupts += target.fail_after_rows is not None or session.interrupt
        target.fail_after_rows, session.interrupt = None, False
        rounds.close()
        assert found == expected[: len(found)]
        text = [*text, *found]
    assert reused > 3000
    assert interrupts > 40


def _edited(text: list[int], rng: random.Random) -> list[int]:
    """Return a text that goes on, was cut, or was edited in its middle."""
    new = [rng.randrange(23) for _ in range(rng.randint(1, 6))]
    if len(text) > 90 or rng.random() < 0.3:
        return text[: rng.randint(0, len(text))] + new
    if rng.random() < 0.3:
        place = rng.randrange(len(text))
        return [*text[:place], (text[place] + 1) % 23, *text[place + 1 :]]
    return text + new if rng.random() < 0.8 else text


def _break_off(rng: random.Random, target: Any, session: Any) -> None:
    """Let a call of one of the models be interrupted, now and then."""
    if rng.random() < 0.1:
        target.fail_after_rows = rng.randint(0, 4)
    elif rng.random() < 0.1:
        session.interrupt = True


@pytest.mark.parametrize("wrong", [1, "no", None])
def test_the_option_is_true_or_false(wrong: Any) -> None:
    build: Callable[..., DecodeOptions] = DecodeOptions
    with pytest.raises(ValueError, match=r"reuse_prefix is .*, expected True or False"):
        build(reuse_prefix=wrong)


def test_features_kept_for_the_drafter_are_those_of_their_tokens(toy: SimpleNamespace) -> None:
    drafted, _, _, session = loops(toy, (1,))
    for prompt in (HISTORY, HISTORY[:5], (*HISTORY[:3], 9, 9, 9, 9)):
        list(drafted.decode(prompt, DecodeOptions(max_tokens=1)))  # nothing is drafted in between
    answer, reused = told(list(drafted.decode((*HISTORY[:3], 9, 9, 8), OPTIONS)))
    assert (answer, reused) == (toy.greedy((*HISTORY[:3], 9, 9, 8), 12), 5)
    assert session.cache[:6] == [*HISTORY[:3], 9, 9, 8]
