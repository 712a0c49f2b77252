"""Rounds by what they bring: never slower than without a drafter, and never another text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftrt.manifest import Costs
from draftrt.runtime.decoding import loop as loop_module
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.lookup import TextIndex
from draftrt.runtime.decoding.loop import DecodeLoop, paces
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.pace import Odds, Pace, RoundChoice, fastest
from draftrt.runtime.decoding.stats import Round
from tests.unit.runtime.decoding.test_sampled_exact import chi_square

PROMPT = (3, 1, 4, 1, 5)
DRAFTS = 7
PLAIN_MS, ROW_MS, DRAFT_MS = 20.0, 1.5, 8.0


def slow_find(text: Sequence[int], most: int) -> tuple[int, list[int]]:
    """Look at every earlier place, the last one first, longer runs before shorter ones."""
    for length in (4, 3, 2):
        run = list(text[len(text) - length :]) if len(text) >= length else None
        for end in range(len(text) - 1, length - 1, -1):
            if run is not None and list(text[end - length : end]) == run:
                grown = list(text)
                for _ in range(most):
                    grown.append(grown[end + len(grown) - len(text)])
                return length, grown[len(text) :]
    return 0, []


def test_what_followed_the_last_tokens_before_is_found() -> None:
    rng = np.random.default_rng(1)
    found = set()
    for size in (2, 3, 6):
        index, text = TextIndex(), list[int]()
        for _ in range(150):
            text.append(int(rng.integers(0, size)))
            index.follow(text)
            assert index.find(6) == slow_find(text, 6)
            found.add(index.find(6)[0])
        for length in (149, 60, 3):  # another text, or a shorter one
            index.follow(text[:length])
            assert index.find(6) == slow_find(text[:length], 6)
        other = [int(token) for token in rng.integers(0, size, 151)]
        index.follow(other)
        assert index.find(6) == slow_find(other, 6)
    assert found == {0, 2, 3, 4}


def test_the_fastest_length_is_that_of_the_most_tokens_a_millisecond() -> None:
    rng = np.random.default_rng(2)
    lengths = set()
    for _ in range(300):
        odds = rng.random(5).tolist()
        times = (5 + np.cumsum(rng.random(6) * 4)).tolist()
        rates = [
            (1 + sum(float(np.prod(odds[: kept + 1])) for kept in range(count))) / times[count]
            for count in range(6)
        ]
        length, rate = fastest(odds, times)
        assert rate == pytest.approx(max(rates))
        assert rates[length] == pytest.approx(rate)
        lengths.add(length)
    assert lengths == {0, 1, 2, 3, 4, 5}


def test_odds_follow_what_was_kept_and_later_places_those_before() -> None:
    odds = Odds(3, 0.7)
    assert odds.estimates() == pytest.approx([0.7] * 3)
    for _ in range(40):
        odds.note(3, 1)
    first, second, third = odds.estimates()
    assert first > 0.9
    assert second < 0.2
    assert third == pytest.approx(second)  # never reached


class Bench:
    """A pair without models: rounds take their time and keep drafts with given odds."""

    def __init__(self, costs: Costs | None, *, seed: int = 0, noise: float = 0.1) -> None:
        self.pace = Pace(DRAFTS, costs)
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.sources: list[str] = []

    def decode(
        self, num_tokens: int, kept: float, *, agreed: int = 0, copied: float = 0.0
    ) -> float:
        """Decode with these odds of the drafter's and the text's drafts; return milliseconds."""
        spent, done, waited = 0.0, 0, 0
        self.pace.begin()
        while done < num_tokens:
            choice = self.pace.choose(lambda: (agreed, DRAFTS if agreed else 0))
            odds = {"drafter": kept, "text": copied, "none": 0.0}[choice.source]
            drafted = choice.source == "drafter"
            length = self.pace.cut(None, choice.length) if drafted else choice.length
            accepted = 0
            while accepted < length and self.rng.random() < odds:
                accepted += 1
            late = 1 + self.noise * self.rng.random()
            verify_ms = (PLAIN_MS + ROW_MS * length) * late
            draft_ms = DRAFT_MS * late if drafted else 0.0
            self.pace.note(
                choice.source,
                agreed=agreed,
                num_verified=length,
                num_accepted=accepted,
                verify_ms=verify_ms,
                draft_ms=draft_ms if drafted and waited == 0 else None,
            )
            waited = 0 if drafted else waited + 1
            spent, done = spent + verify_ms + draft_ms, done + accepted + 1
            self.sources.append(choice.source)
        return spent


COSTS = Costs(draft_ms=DRAFT_MS, verify_ms={1: PLAIN_MS, 8: PLAIN_MS + 7 * ROW_MS}, context=256)


def plainly(num_tokens: int) -> float:
    """Milliseconds of as many tokens without drafts, the noise at its mean."""
    return num_tokens * PLAIN_MS * 1.05


@pytest.mark.parametrize("costs", [None, COSTS], ids=["measured", "known"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.25])
def test_drafts_that_do_not_pay_cost_little(kept: float, costs: Costs | None) -> None:
    shares = []
    for seed in range(10):
        bench = Bench(costs, seed=seed)
        spent = sum(bench.decode(128, kept) for _ in range(8))
        shares.append(plainly(8 * 128) / spent)
        assert bench.sources.count("drafter") > 8  # it is tried again
    assert min(shares) > 0.96
    assert float(np.mean(shares)) > 0.97


@pytest.mark.parametrize("costs", [None, COSTS], ids=["measured", "known"])
def test_drafts_that_pay_are_taken(costs: Costs | None) -> None:
    every = 1 + sum(0.8**count for count in range(1, DRAFTS + 1))
    most = every / ((PLAIN_MS + DRAFTS * ROW_MS + DRAFT_MS) * 1.05)
    shares = []
    for seed in range(10):
        bench = Bench(costs, seed=seed)
        shares.append(4 * 128 / sum(bench.decode(128, 0.8) for _ in range(4)) / most)
    assert float(np.mean(shares)) > 0.93
    assert bench.sources.count("drafter") > 0.9 * len(bench.sources)


def test_a_text_that_changes_is_followed_in_both_directions() -> None:
    bench = Bench(None)
    bench.decode(200, 0.05)
    assert bench.sources[-40:].count("drafter") < 8
    bench.decode(400, 0.85)
    assert bench.sources[-40:].count("drafter") > 36
    bench.decode(400, 0.05)
    assert bench.sources[-100:].count("drafter") < 15


def test_rests_grow_up_to_a_bound() -> None:
    bench = Bench(COSTS, noise=0.0)
    bench.decode(2000, 0.0)
    places = [at for at, source in enumerate(bench.sources) if source == "drafter"]
    gaps = [later - earlier for earlier, later in pairwise(places)]
    assert gaps[-1] > 100
    assert max(gaps) < 140
    assert sorted(gaps) == gaps


def test_drafts_from_the_text_take_the_place_of_a_drafter() -> None:
    bench = Bench(COSTS)
    spent = bench.decode(400, 0.1, agreed=4, copied=0.95)
    assert plainly(400) / spent > 3
    assert bench.sources.count("text") > 0.9 * len(bench.sources)


def test_a_copy_that_is_none_is_given_up() -> None:
    bench = Bench(COSTS)
    assert plainly(400) / bench.decode(400, 0.0, agreed=2, copied=0.0) > 0.96


def build(
    toy: SimpleNamespace, num_right: Sequence[int], *, confidence: bool = False
) -> tuple[DecodeLoop, Any]:
    spec = toy.spec(confidence=confidence)
    signature = toy.signature(spec.num_draft_tokens, spec.block_size, 200, confidence=confidence)
    target = toy.target(max_context=200)
    return DecodeLoop(target, DraftSession(spec, toy.session(signature, num_right))), target


def at_random(
    pace: Pace, rng: np.random.Generator
) -> Callable[[Callable[[], tuple[int, int]]], RoundChoice]:
    """Choices that look at nothing."""

    def choose(find: Callable[[], tuple[int, int]]) -> RoundChoice:
        agreed, num_found = find()
        source = rng.choice(["drafter", "text", "none"] if agreed else ["drafter", "none"])
        most = {"drafter": 4, "text": num_found, "none": 0}[str(source)]
        return RoundChoice(str(source), int(rng.integers(0, most + 1)))  # type: ignore[arg-type]

    return choose


@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize("num_right", [(0,), (9,), (0, 3, 1, 9, 2)], ids=["none", "all", "mixed"])
def test_whatever_is_chosen_the_greedy_text_is_the_targets_own(
    toy: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    num_right: tuple[int, ...],
    confidence: bool,
) -> None:
    sources: set[str] = set()
    for seed in range(6):
        decoder, _ = build(toy, num_right, confidence=confidence)
        if seed:
            choose = at_random(decoder._pace, np.random.default_rng(seed))
            monkeypatch.setattr(decoder._pace, "choose", choose)
        found: list[Round] = []
        for length in (40, 1, 30):  # a text that is gone on with
            options = DecodeOptions(max_tokens=length)
            begun = decoder.resume(options) if found else decoder.decode(PROMPT * 2, options)
            found += list(begun)
        text = [token for one in found for token in one.token_ids]
        assert text == toy.greedy(PROMPT * 2, 71)
        sources |= {one.source for one in found}
        assert all((one.source == "none") == (not one.draft_ids) for one in found)
    assert sources == {"drafter", "text", "none"}


def test_a_text_that_is_broken_off_goes_on_as_it_would_have(toy: SimpleNamespace) -> None:
    decoder, target = build(toy, (1, 0, 3))
    rounds = decoder.decode(PROMPT, DecodeOptions(max_tokens=60))
    found: list[int] = []
    for rows in (2, 1, 0, 3, 1) * 4:
        try:
            for one in rounds:
                found += one.token_ids
                target.fail_after_rows = rows if len(found) % 3 == 0 else None
        except KeyboardInterrupt:
            target.fail_after_rows = None
            rounds = decoder.resume(DecodeOptions(max_tokens=60 - len(found)))
        if len(found) == 60:
            break
    assert found == toy.greedy(PROMPT, 60)


def test_a_seed_and_a_temperature_take_the_drafts_of_every_round() -> None:
    assert paces(DecodeOptions())
    assert paces(DecodeOptions(seed=3))  # greedy: the seed decides nothing
    assert paces(DecodeOptions(temperature=1.0))
    assert not paces(DecodeOptions(temperature=1.0, seed=3))
    assert not paces(DecodeOptions(schedule="all"))


@pytest.mark.parametrize("num_right", [(0,), (1, 2)], ids=["none", "mixed"])
def test_whatever_is_chosen_sampled_texts_have_the_targets_distribution(
    toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, num_right: tuple[int, ...]
) -> None:
    """Texts of two tokens behind a prompt whose end stood in it before."""
    monkeypatch.setattr(loop_module, "paces", lambda options: True)
    prompt = (7, 2, 9, 7, 2)
    shares: dict[tuple[int, ...], float] = {}

    def walk(text: tuple[int, ...], probability: float) -> None:
        if len(text) == len(prompt) + 3:
            shares[text] = probability
            return
        logits = toy.logits(text).astype(np.float64)
        kept = np.argsort(-logits)[:2]
        weights = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
        for token, share in zip(kept.tolist(), weights.tolist(), strict=True):
            walk((*text, token), probability * share)

    walk(prompt, 1.0)
    decoder, _ = build(toy, num_right)
    monkeypatch.setattr(decoder._pace, "choose", at_random(decoder._pace, np.random.default_rng(4)))
    counts = dict.fromkeys(shares, 0)
    for seed in range(1500):
        options = DecodeOptions(max_tokens=3, temperature=1.0, top_k=2, seed=seed)
        for _ in decoder.decode(prompt, options):
            pass
        counts[decoder.token_ids] += 1
    found, limit = chi_square(np.array([*counts.values()]), np.array([*shares.values()]))
    assert found < limit
