"""Suspects against the bundle's own drafter, on the same rounds; only real gains count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftrt.validate.doctor.recording import Text
from draftrt.validate.doctor.replay import Replay
from draftrt.validate.doctor.statistics import Estimate, estimate, paired
from draftrt.validate.doctor.suspects import Suspect

if TYPE_CHECKING:
    from torch import Tensor

FALSE_ALARMS = 0.01  # of a whole examination
MIN_GAIN = 0.05  # tokens a round; less is not worth a changed config
FEW_ROUNDS = 40  # after so many, suspects without hope are given up
HOPE = 0.998  # certainty of being below something, to be without hope
MAX_ROUNDS = 320


@dataclass(slots=True, kw_only=True)
class Case:
    """What suspects are judged on: texts with states, weights, and how the bundle itself does.

    Attributes:
        texts: recorded, with the states of every layer needed.
        weights: the bundle's, by name.
        base: accepted drafts of the bundle's own module, by text and round.
        fresh: weights of the checkpoint read anew; empty without one.
    """

    texts: Sequence[Text]
    weights: Mapping[str, Tensor]
    base: list[list[int]]
    fresh: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one suspect gave.

    Attributes:
        suspect: what was changed.
        gain: accepted drafts more than the bundle's own module, a round.
        is_better: whether the gain is real and worth something.
        length: acceptance length of a decoding with it; None where it was not walked.
    """

    suspect: Suspect
    gain: Estimate
    is_better: bool
    length: float | None = None


@dataclass(slots=True)
class _Trial:
    """A suspect on its way through the texts."""

    suspect: Suspect
    replay: Replay
    rest: Iterator[list[int]]
    counts: list[list[int]]
    gain: Estimate

    def go_on(self, base: Sequence[Sequence[int]], num_rounds: int) -> None:
        """Replay further texts until that many rounds are compared."""
        while self.gain.num_rounds < num_rounds:
            text = next(self.rest, None)
            if text is None:
                return
            self.counts.append(text)
            self.gain = paired(self.counts, base)


def try_suspects(case: Case, suspects: Sequence[Suspect]) -> list[Tried]:
    """Replay suspects and judge the gain of each; best first.

    After a few rounds those that are clearly below the bundle's own drafter, or below half of what
    the best suspect certainly gains, are given up. A round begins where the bundle's drafter left
    off, which may be where it does badly, so a change is only called better if a decoding of its
    own goes better too.
    """
    trials = []
    for one in suspects:
        replay = Replay(one, case.fresh if one.is_fresh else case.weights, case.texts)
        trials.append(_Trial(one, replay, replay.accepted(), [], paired([], [])))
    for trial in trials:
        trial.go_on(case.base, FEW_ROUNDS)
    best = max((trial.gain.interval(HOPE)[0] for trial in trials), default=0.0)
    for trial in trials:
        if trial.gain.interval(HOPE)[1] >= max(0.0, best / 2):
            trial.go_on(case.base, MAX_ROUNDS)
    each = FALSE_ALARMS / max(len(suspects), 1)
    now = estimate(case.base).mean + 1
    found = [_judged(trial, now, each) for trial in trials]
    return sorted(found, key=lambda one: (not one.is_better, -one.gain.mean))


def _judged(trial: _Trial, now: float, false_alarms: float) -> Tried:
    length = None
    if trial.gain.mean >= MIN_GAIN and trial.gain.is_above(0.0, false_alarms=false_alarms):
        length = estimate(list(trial.replay.walk())).mean + 1
    is_better = length is not None and length >= now + MIN_GAIN
    return Tried(suspect=trial.suspect, gain=trial.gain, is_better=is_better, length=length)
