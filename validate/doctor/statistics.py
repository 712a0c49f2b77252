"""Means over rounds, with intervals.

Values come in groups that count as independent of each other. How long a pair's acceptance is
depends on the text, so there a group is a text and the standard error that of a ratio of sums over
groups (Cochran, Sampling Techniques, 3rd ed., section 6.3). Whether a change makes a difference is
asked round by round, both drafters at the same anchor, so there a group is a round.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

POINTS = 200_001  # of the grid that inverts Student's distribution; quantiles to 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over rounds.

    Attributes:
        mean: over all rounds.
        standard_error: of the mean; infinite with a single group.
        num_rounds: rounds.
        num_groups: independent groups of rounds.
    """

    mean: float
    standard_error: float
    num_rounds: int
    num_groups: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the two-sided interval that holds the true mean with probability ``level``."""
        if self.num_groups < 2:
            return -math.inf, math.inf
        half = student_quantile(0.5 + level / 2, self.num_groups - 1) * self.standard_error
        return self.mean - half, self.mean + half

    def is_above(self, value: float, *, false_alarms: float) -> bool:
        """Whether the true mean is above ``value``, wrongly said so with that probability."""
        if self.num_groups < 2:
            return False
        margin = student_quantile(1 - false_alarms, self.num_groups - 1) * self.standard_error
        return self.mean - margin > value


def paired(counts: Sequence[Sequence[int]], base: Sequence[Sequence[int]]) -> Estimate:
    """Return the mean difference of two drafters over the same rounds.

    Args:
        counts: accepted drafts by text and round; may stop behind the first texts.
        base: those of the other drafter.
    """
    pairs = [pair for both in zip(counts, base, strict=False) for pair in zip(*both, strict=True)]
    return estimate([[float(a - b)] for a, b in pairs])


def estimate(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over all rounds.

    Args:
        groups: values of the rounds by independent group; empty groups are left out.
    """
    arrays = [np.asarray(values, np.float64) for values in groups if len(values)]
    count, number = sum(len(one) for one in arrays), len(arrays)
    if not number:
        return Estimate(mean=0.0, standard_error=math.inf, num_rounds=0, num_groups=0)
    mean = sum(float(one.sum()) for one in arrays) / count
    error = math.inf
    if number > 1:
        excess = np.array([float((one - mean).sum()) for one in arrays])
        error = math.sqrt(number / (number - 1) * float((excess**2).sum())) / count
    return Estimate(mean=mean, standard_error=error, num_rounds=count, num_groups=number)


@functools.cache
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

    With t = sqrt(n) tan(a) its density in the angle a is proportional to cos(a)^(n - 1), which is
    summed up and inverted.

    Args:
        probability: strictly between 0 and 1.
        freedom: degrees of freedom n, at least 1.
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, POINTS)
    middles = (angles[1:] + angles[:-1]) / 2
    sums = np.concatenate([[0.0], np.cumsum(np.cos(middles) ** (freedom - 1))])
    angle = float(np.interp(probability, sums / sums[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)
