"""A suspect is called better when it gains enough a round, and its own decoding does too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftrt.validate.doctor import trial as doctor_trial
from draftrt.validate.doctor.examine import DoctorOptions, _examined
from draftrt.validate.doctor.recording import Text
from draftrt.validate.doctor.statistics import paired
from draftrt.validate.doctor.suspects import Suspect
from draftrt.validate.doctor.trial import MIN_GAIN, Case, _judged, _Trial, try_suspects

ROUNDS = 4000
BASE = [[1] * ROUNDS]


@dataclass
class Decoding:
    """A decoding of its own that keeps so many drafts a round."""

    kept: float

    def walk(self) -> Iterator[list[int]]:
        ones = round(ROUNDS * (self.kept - 1))
        yield [2] * ones + [1] * (ROUNDS - ones)


def trial(gain: float, kept: float) -> Any:
    """A suspect with a gain that is far from chance, whatever its size."""
    more = round(ROUNDS * abs(gain))
    counts = [[1 + (1 if gain > 0 else -1)] * more + [1] * (ROUNDS - more)]
    suspect: Any = None
    replay: Any = Decoding(kept)
    return _Trial(suspect, replay, iter(()), counts, paired(counts, BASE))


def test_the_least_gain_is_what_is_written() -> None:
    assert MIN_GAIN == 0.05


@pytest.mark.parametrize(
    ("gain", "kept", "is_walked", "is_better"),
    [
        (0.5, 1.5, True, True),
        (0.06, 1.06, True, True),
        (0.03, 1.5, False, False),
        (-0.5, 1.5, False, False),
        (0.5, 1.03, True, False),
        (0.5, 1.0, True, False),
    ],
)
def test_gains_of_less_than_the_least_change_nothing(
    gain: float, kept: float, is_walked: bool, is_better: bool
) -> None:
    found = _judged(trial(gain, kept), now=2.0, false_alarms=0.01)
    assert (found.length is not None, found.is_better) == (is_walked, is_better)


class Counted:
    """Accepted drafts of suspects, written down beforehand, in texts of ten rounds."""

    read: dict[str, int]
    rounds: dict[str, list[int]]

    def __init__(self, suspect: Suspect, weights: object, texts: object) -> None:
        self._name = suspect.change
        self.read[self._name] = 0

    def accepted(self) -> Iterator[list[int]]:
        counts = self.rounds[self._name]
        for start in range(0, len(counts), 10):
            self.read[self._name] += 10
            yield counts[start : start + 10]

    def walk(self) -> Iterator[list[int]]:
        yield self.rounds[self._name]


def spread(lower: int, higher: int = 0) -> list[int]:
    """400 rounds of one draft each; of every 40 some keep none, and some two."""
    forty = [0] * lower + [2] * higher + [1] * (40 - lower - higher)
    return forty * 10


def rounds_read(monkeypatch: pytest.MonkeyPatch, rounds: dict[str, list[int]]) -> dict[str, int]:
    """Try suspects and return how many rounds of each were replayed."""
    monkeypatch.setattr(Counted, "read", {}, raising=False)
    monkeypatch.setattr(Counted, "rounds", rounds, raising=False)
    monkeypatch.setattr(doctor_trial, "Replay", Counted)
    spec: Any = None
    case = Case(texts=[], weights={}, base=[[1] * 10] * 40)
    try_suspects(case, [Suspect(fact="", change=name, spec=spec) for name in rounds])
    return Counted.read


def test_a_suspect_without_hope_is_given_up_after_a_few_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40 rounds, a one-sided 0.1 %: of 39 degrees of freedom Student's quantile is 3.313.

    A share p of rounds that lose a draft is sqrt(39 p / (1 - p)) standard errors below nothing:
    3.12 for 8 of 40, 3.36 for 9.
    """
    read = rounds_read(monkeypatch, {"lost 8": spread(8), "lost 9": spread(9), "same": spread(0)})
    assert read == {"lost 8": 320, "lost 9": 40, "same": 320}


def test_a_suspect_far_below_the_best_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 40 gain one: certainly 1. Half of that is beyond what 5 of 40 can hope for.

    5 of 40: 0.125 + 3.313 * 0.0530 = 0.30; 12 of 40: 0.3 + 3.313 * 0.0734 = 0.54.
    """
    few, many = spread(0, 5), spread(0, 12)
    read = rounds_read(monkeypatch, {"all": [2] * 400, "few": few, "many": many})
    assert read == {"all": 320, "few": 40, "many": 320}


@pytest.mark.parametrize(
    ("gained", "is_worse"), [(0, False), (16, False), (24, True), (200, True), (-200, False)]
)
def test_a_graph_that_drafts_worse_than_its_module_is_told_from_the_least_gain_on(
    gained: int, is_worse: bool
) -> None:
    """400 rounds: 0.05 a round is 20 drafts more of the module, by far more than chance."""
    more = 1 if gained >= 0 else -1
    base = [1 + more] * abs(gained) + [1] * (400 - abs(gained))
    ran = Text(
        ids=tuple(range(2000)),
        num_prompt=3,
        anchors=tuple(range(4, 404)),
        drafted=((1, 2, 3),) * 400,
        accepted=(1,) * 400,
    )
    bundle: Any = SimpleNamespace(path=Path("bundle"))
    case = Case(texts=[ran], weights={}, base=[base])
    found = _examined(bundle, case, [], "", [], None, DoctorOptions())
    assert found.graph_gain.mean == gained / 400
    assert found.is_graph_worse is is_worse
