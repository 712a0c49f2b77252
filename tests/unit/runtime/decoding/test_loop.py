"""The loop gives the target's own text, whatever is drafted, cancelled or cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftrt.errors import BusyError, FeedError, UnsupportedError
from draftrt.runtime.decoding.acceptance import Chooser
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.loop import NOTHING, DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import DraftDistribution, Proposal
from draftrt.runtime.decoding.stats import Round, Stats
from draftrt.runtime.targets.base import TargetRows

PROMPT = (3, 1, 4, 1, 5)


def options_of(**given: Any) -> DecodeOptions:
    """Options under which every round takes all drafts of the drafter."""
    return DecodeOptions(schedule="all", **given)


def build(
    toy: SimpleNamespace,
    num_right: Sequence[int],
    *,
    sample_from_anchor: bool = False,
    confidence: bool = False,
    capacity: int = 200,
) -> tuple[DecodeLoop, Any, Any]:
    spec = toy.spec(sample_from_anchor=sample_from_anchor, confidence=confidence)
    session = toy.session(
        toy.signature(spec.num_draft_tokens, spec.block_size, capacity, confidence=confidence),
        num_right,
    )
    target = toy.target(max_context=200)
    return DecodeLoop(target, DraftSession(spec, session)), target, session


def tokens(rounds: Sequence[Round]) -> list[int]:
    return [token for one in rounds for token in one.token_ids]


@pytest.mark.parametrize("sample_from_anchor", [False, True], ids=["fill-in", "from the anchor"])
@pytest.mark.parametrize(
    "num_right", [(0,), (9,), (2,), (0, 3, 1, 9, 2)], ids=["none", "all", "some", "mixed"]
)
def test_greedy_text_is_the_targets_own_for_every_rejection_pattern(
    toy: SimpleNamespace, num_right: tuple[int, ...], sample_from_anchor: bool
) -> None:
    decoder, _, session = build(toy, num_right, sample_from_anchor=sample_from_anchor)
    rounds = list(decoder.decode(PROMPT, options_of(max_tokens=60)))
    assert tokens(rounds) == toy.greedy(PROMPT, 60)
    assert [one.num_accepted for one in rounds[1:]] == session.offered
    assert decoder.token_ids == PROMPT + tuple(toy.greedy(PROMPT, 60))


def test_plain_decoding_drafts_nothing_and_gives_the_same_text(toy: SimpleNamespace) -> None:
    target = toy.target()
    rounds = list(DecodeLoop(target).decode(PROMPT, options_of(max_tokens=30)))
    assert tokens(rounds) == toy.greedy(PROMPT, 30)
    assert target.calls == [len(PROMPT)] + [1] * 29
    assert Stats.of(rounds).num_rounds == 0


def test_a_round_says_what_happened_in_it(toy: SimpleNamespace) -> None:
    decoder, target, _ = build(toy, (2,), confidence=True)
    rounds = list(decoder.decode(PROMPT, options_of(max_tokens=8)))
    assert [one.index for one in rounds] == [0, 1, 2, 3]
    assert [one.is_prefill for one in rounds] == [True, False, False, False]
    assert [len(one.token_ids) for one in rounds] == [1, 3, 3, 1]
    assert rounds[1].draft_ids[:2] == rounds[1].token_ids[:2]
    assert [one.num_verified for one in rounds] == [0, 4, 4, 4]
    assert [one.num_accepted for one in rounds] == [0, 2, 2, 2]  # the cut is not counted
    assert rounds[1].confidences == pytest.approx((0.9, 0.9, 0.1, 0.1))
    assert [one.finish for one in rounds] == [None, None, None, "length"]
    assert target.calls == [5, 5, 5, 5]
    assert min(one.draft_s for one in rounds[1:]) > 0
    assert all(one.verify_s > 0 and one.host_s > 0 for one in rounds)


@pytest.mark.parametrize("num_right", [(0,), (1, 9, 3)], ids=["none", "mixed"])
def test_a_stop_token_ends_the_text_behind_itself(
    toy: SimpleNamespace, num_right: tuple[int, ...]
) -> None:
    text = toy.greedy(PROMPT, 60)
    stop = text[17]
    decoder, *_ = build(toy, num_right)
    rounds = list(decoder.decode(PROMPT, options_of(max_tokens=60, stop_ids=frozenset({stop}))))
    assert tokens(rounds) == text[: text.index(stop) + 1]
    assert rounds[-1].finish == "stop"
    assert decoder.token_ids == PROMPT + tuple(tokens(rounds))


def test_the_first_token_can_be_the_last(toy: SimpleNamespace) -> None:
    first = toy.next_token(PROMPT)
    decoder, target, _ = build(toy, (9,))
    rounds = list(decoder.decode(PROMPT, options_of(stop_ids=frozenset({first}))))
    assert (tokens(rounds), rounds[0].finish) == ([first], "stop")
    rounds = list(decoder.decode(PROMPT, options_of(max_tokens=1)))
    assert (tokens(rounds), rounds[0].finish) == ([first], "length")
    assert target.calls == [5, 5]


def test_no_stop_token_comes_before_the_minimum(toy: SimpleNamespace) -> None:
    stop = toy.next_token(PROMPT)  # would end the text at once

    def follow(text: Sequence[int]) -> int:
        logits = toy.logits(text)
        if len(text) < len(PROMPT) + 20:
            logits[stop] = -np.inf
        return int(logits.argmax())

    expected = toy.greedy(PROMPT, 60, follow)
    assert stop in expected[20:]
    expected = expected[: expected.index(stop, 20) + 1]
    for num_right in ((0,), (9,), (1, 3)):
        decoder, *_ = build(toy, num_right)
        options = options_of(max_tokens=60, min_tokens=20, stop_ids=frozenset({stop}))
        assert tokens(list(decoder.decode(PROMPT, options))) == expected


@pytest.mark.parametrize("num_right", [(0,), (9,), (1, 3, 0)], ids=["none", "all", "mixed"])
def test_the_repetition_penalty_sees_prompt_text_and_kept_drafts(
    toy: SimpleNamespace, num_right: tuple[int, ...]
) -> None:
    def follow(text: Sequence[int]) -> int:
        logits = toy.logits(text).astype(np.float64)
        for token in set(text):
            logits[token] = logits[token] / 2 if logits[token] > 0 else logits[token] * 2
        return int(logits.argmax())

    expected = toy.greedy(PROMPT, 50, follow)
    assert expected != toy.greedy(PROMPT, 50)
    decoder, *_ = build(toy, num_right)
    options = options_of(max_tokens=50, repetition_penalty=2.0)
    assert tokens(list(decoder.decode(PROMPT, options))) == expected


def test_cancelling_between_rounds_leaves_both_caches_usable(toy: SimpleNamespace) -> None:
    rng = random.Random(5)
    expected = toy.greedy(PROMPT, 120)
    decoder, *_ = build(toy, (0, 2, 9, 1, 3))
    for _ in range(50):
        found: list[int] = []
        rounds = decoder.decode(PROMPT, options_of(max_tokens=120))
        while len(found) < 120:
            found += next(rounds).token_ids
            if rng.random() < 0.3:
                rounds.close()
                if rng.random() < 0.3:
                    break
                if len(found) < 120:
                    rounds = decoder.resume(options_of(max_tokens=120 - len(found)))
        assert found == expected[: len(found)]


@pytest.mark.parametrize("where", ["draft", "verify", "prefill"])
def test_an_interrupt_inside_a_model_costs_only_the_unfinished_round(
    toy: SimpleNamespace, where: str
) -> None:
    decoder, target, session = build(toy, (2, 0, 3))
    found: list[int] = []
    rounds = decoder.decode(PROMPT, options_of(max_tokens=40))
    if where != "prefill":
        for _ in range(4):
            found += next(rounds).token_ids
    session.interrupt = where == "draft"
    target.fail_after_rows = None if where == "draft" else 2
    with pytest.raises(KeyboardInterrupt):
        next(rounds)
    session.interrupt, target.fail_after_rows = False, None
    if where == "prefill":
        with pytest.raises(FeedError, match="no sequence to go on with"):
            decoder.resume(options_of())
        rest = decoder.decode(PROMPT, options_of(max_tokens=40))
    else:
        rest = decoder.resume(options_of(max_tokens=40 - len(found)))
    assert found + tokens(list(rest)) == toy.greedy(PROMPT, 40)


def test_going_on_after_a_cut_equals_decoding_in_one_go(toy: SimpleNamespace) -> None:
    decoder, *_ = build(toy, (9, 1))
    found = tokens(list(decoder.decode(PROMPT, options_of(max_tokens=7))))
    for length in (1, 2, 10, 3):
        found += tokens(list(decoder.resume(options_of(max_tokens=length))))
    assert found == toy.greedy(PROMPT, 23)


def test_a_second_decoding_ends_the_first_loudly(toy: SimpleNamespace) -> None:
    decoder, *_ = build(toy, (1,))
    first = decoder.decode(PROMPT, options_of(max_tokens=20))
    next(first)
    next(decoder.decode((1, 2), options_of(max_tokens=20)))
    with pytest.raises(BusyError, match="another decoding was started"):
        next(first)
    second = decoder.resume(options_of(max_tokens=2))
    target: Any = decoder.target
    target.fail_after_rows = 0
    with pytest.raises(KeyboardInterrupt):
        next(decoder.decode(PROMPT, options_of()))
    with pytest.raises(BusyError, match="another prompt was begun"):
        next(second)


@pytest.mark.parametrize("is_first_plain", [False, True], ids=["drafted first", "plain first"])
@pytest.mark.parametrize("num_rounds", [1, 4], ids=["after the prefill", "after rounds"])
@pytest.mark.parametrize("length", [1, 2, 5, 40], ids=["short", "shorter", "as long", "longer"])
def test_two_decoders_on_one_target_do_not_mix_their_texts(
    toy: SimpleNamespace, is_first_plain: bool, num_rounds: int, length: int
) -> None:
    decoder, target, _ = build(toy, (1,))
    first, second = (
        (DecodeLoop(target), decoder) if is_first_plain else (decoder, DecodeLoop(target))
    )
    rounds = first.decode(PROMPT, options_of(max_tokens=20))
    for _ in range(num_rounds):
        next(rounds)
    other = (2, 7, 2, 7, 2) * 8
    list(second.decode(other[:length], options_of(max_tokens=20)))
    with pytest.raises(BusyError, match="another decoder has used them") as refusal:
        next(rounds)
    assert "one pair decodes one text at a time" in refusal.value.hint
    again = tokens(list(first.decode(PROMPT, options_of(max_tokens=20))))
    assert again == toy.greedy(PROMPT, 20)


def test_two_targets_with_one_drafter_do_not_mix_their_contexts(toy: SimpleNamespace) -> None:
    decoder, _, _ = build(toy, (1,))
    rounds = decoder.decode(PROMPT, options_of(max_tokens=20))
    for _ in range(3):
        next(rounds)
    other = DecodeLoop(toy.target(), decoder.drafter)
    list(other.decode((2, 7) * 20, options_of(max_tokens=20)))
    with pytest.raises(BusyError, match="another decoder has used them"):
        next(rounds)


def test_a_target_rolled_back_by_hand_is_noticed(toy: SimpleNamespace) -> None:
    decoder, target, _ = build(toy, (1,))
    rounds = decoder.decode(PROMPT, options_of(max_tokens=20))
    next(rounds)
    target.rollback(2)
    with pytest.raises(BusyError, match="they were rolled back"):
        next(rounds)


@pytest.mark.parametrize(("capacity", "limits"), [(40, "drafter"), (1000, "target")])
def test_what_does_not_fit_the_caches_is_refused_before_anything_runs(
    toy: SimpleNamespace, capacity: int, limits: str
) -> None:
    decoder, target, _ = build(toy, (9,), capacity=capacity)
    # From the last anchor on: a block of 5 in the drafter's 40 rows, 5 rows in the target's 200.
    most = (40 if limits == "drafter" else 200) - 5 + 2 - len(PROMPT)
    with pytest.raises(FeedError, match=f"expected at most {most} more: the caches hold"):
        decoder.decode(PROMPT, options_of(max_tokens=most + 1))
    assert target.calls == []
    for options in (options_of(max_tokens=most), options_of()):
        for num_right in (0, 9):  # the fakes refuse any row beyond their capacity
            decoder, *_ = build(toy, (num_right,), capacity=capacity)
            assert tokens(list(decoder.decode(PROMPT, options))) == toy.greedy(PROMPT, most)


def test_a_prompt_longer_than_the_caches_is_refused(toy: SimpleNamespace) -> None:
    decoder, target, _ = build(toy, (0,), capacity=40)
    with pytest.raises(FeedError, match="expected at most 0 more") as refusal:
        decoder.decode((1,) * 60, options_of())
    assert refusal.value.hint == "shorten the prompt, or export with a larger --max-context"
    with pytest.raises(FeedError, match="the prompt has no tokens"):
        decoder.decode((), options_of())
    assert target.calls == []


def test_a_target_without_a_tapped_layer_is_refused_with_both_widths(toy: SimpleNamespace) -> None:
    spec = toy.spec()
    session = toy.session(toy.signature(4, 5, 40, confidence=False))
    with pytest.raises(FeedError) as refusal:
        DecodeLoop(toy.target(feature_size=3), DraftSession(spec, session))
    assert "width 3 (1 layers of 3), expected 6 = 2 layers [1, 3] of 3" in str(refusal.value)
    assert "lacks a tapped layer" in refusal.value.hint


@pytest.mark.parametrize("num_right", [0, 2, 9])
def test_a_confidence_threshold_verifies_only_the_drafts_before_the_first_doubt(
    toy: SimpleNamespace, num_right: int
) -> None:
    decoder, target, _ = build(toy, (num_right,), confidence=True)
    options = options_of(max_tokens=30, confidence_threshold=0.5)
    rounds = list(decoder.decode(PROMPT, options))
    assert tokens(rounds) == toy.greedy(PROMPT, 30)
    assert {one.num_verified for one in rounds[1:]} == {min(num_right, 4)}
    assert set(target.calls[1:]) == {min(num_right, 4) + 1}
    assert {len(one.draft_ids) for one in rounds[1:]} == {4}


def test_a_threshold_without_a_confidence_head_is_refused(toy: SimpleNamespace) -> None:
    decoder, *_ = build(toy, (0,))
    with pytest.raises(UnsupportedError, match="without a confidence head"):
        decoder.decode(PROMPT, options_of(confidence_threshold=0.1))


def test_one_seed_gives_one_text_and_two_seeds_two(toy: SimpleNamespace) -> None:
    texts = [
        tokens(
            list(
                build(toy, (1, 3))[0].decode(
                    PROMPT, options_of(max_tokens=40, temperature=2.0, seed=seed)
                )
            )
        )
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("num_right", [(0,), (9,), (1, 2)], ids=["none", "all", "mixed"])
def test_sampled_text_has_the_targets_distribution(
    toy: SimpleNamespace, num_right: tuple[int, ...]
) -> None:
    """All texts of three tokens, seeds 0..999; a right loop fails one such set in a thousand."""
    options = options_of(max_tokens=3, temperature=1.0, top_k=2)
    expected: dict[tuple[int, ...], float] = {}

    def walk(text: tuple[int, ...], probability: float) -> None:
        if len(text) == len(PROMPT) + 3:
            expected[text] = probability
            return
        logits = toy.logits(text).astype(np.float64)
        kept = np.argsort(-logits)[:2]
        shares = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
        for token, share in zip(kept.tolist(), shares.tolist(), strict=True):
            walk((*text, token), probability * share)

    walk(PROMPT, 1.0)
    decoder, *_ = build(toy, num_right)
    counts = dict.fromkeys(expected, 0)
    for seed in range(1000):
        for _ in decoder.decode(PROMPT, replace(options, seed=seed)):
            pass
        counts[decoder.token_ids] += 1
    statistic = sum(
        (counts[text] - 1000 * share) ** 2 / (1000 * share) for text, share in expected.items()
    )
    assert len(expected) == 8
    assert statistic < 24.322  # upper 0.1 % point of chi-square with 7 degrees of freedom


def test_going_on_draws_on_and_does_not_begin_the_seed_again(toy: SimpleNamespace) -> None:
    options = options_of(max_tokens=24, temperature=2.0, seed=5)
    whole = tokens(list(DecodeLoop(toy.target()).decode(PROMPT, options)))
    decoder = DecodeLoop(toy.target())
    found = tokens(list(decoder.decode(PROMPT, replace(options, max_tokens=8))))
    for _ in range(2):
        found += tokens(list(decoder.resume(replace(options, max_tokens=8))))
    assert found == whole  # plain decoding draws once a token


def test_a_stop_token_that_is_the_last_wanted_one_is_a_stop(toy: SimpleNamespace) -> None:
    text = toy.greedy(PROMPT, 30)
    for stop in {*text}:
        length = text.index(stop) + 1
        options = options_of(max_tokens=length, stop_ids=frozenset({stop}))
        for num_right in ((0,), (9,), (1, 3)):
            rounds = list(build(toy, num_right)[0].decode(PROMPT, options))
            assert (tokens(rounds), rounds[-1].finish) == (text[:length], "stop")


@pytest.mark.parametrize("temperature", [0.049, 0.01, 1e-6])
def test_low_temperatures_are_drawn_from(toy: SimpleNamespace, temperature: float) -> None:
    """Two tokens a temperature apart: their shares are 1 to e, far from the greedy choice."""
    options = options_of(temperature=temperature)
    assert not options.is_greedy
    logits = np.full((1, 4), -100.0, np.float32)
    logits[0, 1:3] = 0.0, -temperature
    rows = TargetRows(
        features=np.zeros((1, 1, 0), np.float32), token_ids=np.array([1]), logits=logits
    )
    chooser = Chooser(options, np.random.default_rng(2))
    second = sum(chooser.accept(NOTHING, rows, PROMPT, 0).bonus == 2 for _ in range(2000))
    assert 440 < second < 640  # 2000 / (1 + e) = 538, five standard deviations


@pytest.mark.parametrize("length", [0, 1, 2])
def test_drawn_drafts_that_are_cut_keep_what_they_were_drawn_from(length: int) -> None:
    """The first token of 4000 rounds has the target's distribution, however many are verified.

    It has so too where the drafts are judged as certain ones, whatever they were drawn from; but
    then a draft is kept with probability sum(p q), 0.25 here, and not sum(min(p, q)), 0.5.
    """
    rng = np.random.default_rng(3)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    rows = TargetRows(
        features=np.zeros((1, length + 1, 0), np.float32),
        token_ids=np.zeros(length + 1, np.int64),
        logits=np.log(np.tile(p, (length + 1, 1))).astype(np.float32),
    )
    chooser = Chooser(options_of(temperature=1.0), rng)
    counts, num_kept = np.zeros(3), 0
    for _ in range(4000):
        offered = Proposal(
            token_ids=rng.choice(3, size=2, p=q),
            distribution=DraftDistribution(probabilities=np.tile(q, (2, 1))),
        )
        kept = offered.head(length)
        outcome = chooser.accept(kept, rows, PROMPT, 0)
        counts[kept.token_ids[0] if outcome.num_accepted else outcome.bonus] += 1
        num_kept += outcome.num_accepted > 0
    statistic = ((counts - 4000 * p) ** 2 / (4000 * p)).sum()
    assert statistic < 13.816  # upper 0.1 % point of chi-square with 2 degrees of freedom
    assert abs(num_kept - 2000 * (length > 0)) < 160  # five standard deviations


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_right", [(0,), (9,), (2, 0)], ids=["none", "all", "mixed"])
def test_log_probabilities_are_the_targets_own_whatever_was_drafted(
    toy: SimpleNamespace, num_right: tuple[int, ...], temperature: float
) -> None:
    decoder, *_ = build(toy, num_right)
    options = options_of(max_tokens=20, logprobs=3, temperature=temperature, seed=4)
    text = list(PROMPT)
    for one in decoder.decode(PROMPT, options):
        assert one.logprobs is not None
        assert [told.token_id for told in one.logprobs] == list(one.token_ids)
        for told in one.logprobs:
            shares = np.exp(toy.logits(text).astype(np.float64))
            expected = np.log(shares / shares.sum())
            assert told.logprob == pytest.approx(expected[told.token_id])
            best = np.argsort(-expected)[:3].tolist()
            assert [token for token, _ in told.top] == best
            assert [lp for _, lp in told.top] == pytest.approx(expected[best].tolist())
            text.append(told.token_id)
    if not temperature:
        assert text == [*PROMPT, *toy.greedy(PROMPT, 20)]
    assert all(one.logprobs is None for one in decoder.decode(PROMPT, options_of(max_tokens=5)))
