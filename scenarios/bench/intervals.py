"""How much slower one side is than the other, with the interval that its rounds allow.

A *cost* is what a unit takes, in seconds of the clock or of CPU. A *slow-down* is the ratio of the
new cost to the old one, less 1: 0.05 is 5 % slower, and what is below 0 is faster.

Single rounds on a busy machine are off by a factor, up or down. So logarithms are averaged, with a
fifth of the rounds cut off at either end, and the interval is found by bootstrap, which assumes
nothing about how they scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

CONFIDENCE = 0.998
"""Of an interval: each end is wrong once in 1,000, since a gate looks at many of them."""
TRIMMED = 0.2
RESAMPLES = 10_000
BOOTSTRAP_SEED = 1
"""The same rounds give the same interval."""


class Verdict(StrEnum):
    """What an interval says about a threshold."""

    SLOWER = "slower"
    """All of it is beyond the threshold."""
    HOLDS = "holds"
    """None of it is."""
    FASTER = "faster"
    """All of it is as far on the other side."""
    UNDECIDED = "undecided"
    """The threshold is within it: the rounds do not tell."""


@dataclass(frozen=True)
class Slowdown:
    """An estimate with its interval, all as parts of the old cost."""

    middle: float
    low: float
    high: float

    def verdict(self, threshold: float) -> Verdict:
        """Say where the interval lies to `threshold`, a part such as 0.02."""
        if self.low > threshold:
            return Verdict.SLOWER
        if self.high < -threshold:
            return Verdict.FASTER
        return Verdict.HOLDS if self.high <= threshold else Verdict.UNDECIDED


def of_pairs(pairs: Sequence[tuple[float, float]]) -> Slowdown:
    """Return the slow-down from (old cost, new cost) of each round, taken beside one another."""
    return _bootstrapped(np.log([new / old for old, new in pairs]))


def of_files(old: Sequence[float], new: Sequence[float]) -> Slowdown:
    """Return the slow-down from costs of two runs, whose rounds have nothing in common."""
    return _bootstrapped(np.log(new), np.log(old))


def trimmed_mean(values: Any, axis: int = -1) -> Any:
    """Return the mean without the lowest and the highest fifth."""
    from scipy import stats  # here, so that the command line starts quickly

    return stats.trim_mean(values, TRIMMED, axis=axis)


def _difference(new: Any, old: Any | None = None, axis: int = -1) -> Any:
    mean = trimmed_mean(new, axis)
    return mean if old is None else mean - trimmed_mean(old, axis)


def _bootstrapped(*logarithms: Any) -> Slowdown:
    from scipy import stats

    middle = float(_difference(*logarithms))
    found = stats.bootstrap(
        logarithms,
        _difference,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        # The corrections of the other methods are undefined where rounds are equal.
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    return Slowdown(math.expm1(middle), math.expm1(found.low), math.expm1(found.high))
