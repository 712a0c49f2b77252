"""A suspect is called better when it gains enough a round, and its own decoding does too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from draftrt.validate.doctor_statistics import paired
from draftrt.validate.doctor_trial import MIN_GAIN, _judged, _Trial

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
