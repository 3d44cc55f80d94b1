"""How good the predictions were: predicted, measured, error.

The error is (predicted - measured) / measured, of medians or means. It is signed: a
prediction that is always low is a cost that the model lacks. The noise floor is how far two
repeats of a measurement are apart, relative, in the median over all of them. No aim is finer than
twice the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from raytwin.reports.figures import all_rows, number
from raytwin.scenarios.core.fidelity import AIM, AIM_OF_TAIL, MAKESPAN, RECOVERY, Study, aim_with
from raytwin.scenarios.core.results import Result
from raytwin.scenarios.core.scenario import Compare, Row, Where, matches

OF_RECOVERY = "recovery_s"
"""All times of recoveries as one column."""
REPEAT = "repeat"
"""The column with the number of a repeat, which has a cluster of its own; where there is none, a
scenario has one cluster."""
APART = 0.1
"""Measurements that are closer, relative, have no order that a prediction could miss."""


@dataclass(frozen=True)
class Ranking:
    """How the prediction orders what `Compare.ranks` tells apart, all else equal."""

    agreeing: int
    """Of `compared`."""
    compared: int
    """Two at a time, whose measurements are `APART`."""
    close: int
    """Two at a time, whose measurements are not."""


@dataclass(frozen=True)
class Pair:
    """One prediction and its measurement."""

    key: tuple[Any, ...]
    """Values of the columns `Compare.on`."""
    predicted: float
    measured: float
    low: float
    high: float
    repeats: int
    aim: float | None = None
    """How far it may be off, relative; None: it has no aim."""
    noise: float | None = None
    """The noise floor; None: there are no two repeats, or nothing was measured."""

    @property
    def good(self) -> bool | None:
        """Whether the prediction keeps its aim; None where there is none, or no error."""
        if self.aim is None or self.error is None:
            return None
        return abs(self.error) <= self.aim

    @property
    def error(self) -> float | None:
        """Relative error; None where nothing was measured to relate it to."""
        return (self.predicted - self.measured) / self.measured if self.measured else None


@dataclass(frozen=True)
class Fidelity:
    """All pairs of one `Compare`, and what is left without a partner."""

    compare: Compare
    pairs: tuple[Pair, ...]
    unpaired: tuple[tuple[Any, ...], ...]
    """Keys that were measured and not predicted."""

    @property
    def errors(self) -> list[float]:
        """The sizes of the errors."""
        return [abs(pair.error) for pair in self.pairs if pair.error is not None]

    @property
    def typical(self) -> float | None:
        """The median size of the errors."""
        return median(self.errors) if self.errors else None

    @property
    def worst(self) -> float | None:
        """The largest size of an error."""
        return max(self.errors, default=None)

    @property
    def ranking(self) -> Ranking | None:
        """How well the prediction ranks; None where there is nothing to rank."""
        if not self.compare.ranks:
            return None
        at = self.compare.on.index(self.compare.ranks)
        groups: dict[tuple[Any, ...], list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault((*pair.key[:at], *pair.key[at + 1 :]), []).append(pair)
        agreeing, compared, close = 0, 0, 0
        for group in groups.values():
            for one, other in combinations(group, 2):
                if abs(one.measured - other.measured) < APART * max(one.measured, other.measured):
                    close += 1
                    continue
                compared += 1
                less = one.predicted < other.predicted
                agreeing += less == (one.measured < other.measured)
        return Ranking(agreeing, compared, close) if compared + close else None

    @property
    def noise(self) -> float | None:
        """The median of the noise floors that there are."""
        floors = [each.noise for each in self.pairs if each.noise is not None]
        return median(floors) if floors else None

    @property
    def good(self) -> bool | None:
        """Whether the median error keeps the aim; None where there is none, or no error."""
        aim = _aim(self.compare, self.noise)
        return None if aim is None or self.typical is None else self.typical <= aim


def _aim(compare: Compare, noise: float | None) -> float | None:
    """Return how far a prediction may be off, relative, where this is the noise floor."""
    return None if compare.aim_percent is None else aim_with(compare.aim_percent / 100, noise)


def judge(
    compare: Compare,
    results: Sequence[Result],
    statistic: Callable[[Sequence[float]], float] = median,
) -> Fidelity:
    """Return how the ``sim`` rows of `results` fit the ``local`` ones; of several rows `statistic`
    counts.

    Raises ResultError if a compared cell is no number.
    """
    rows = all_rows(results)
    predicted = _group(compare, compare.on, rows, {**compare.predicted, "backend": "sim"})
    of_local = {**compare.measured, "backend": "local"}
    measured = _group(compare, compare.on, rows, of_local)
    repeats: dict[tuple[Any, ...], list[float]] = {}
    for (*on, repeat), values in _group(compare, (*compare.on, REPEAT), rows, of_local).items():
        if repeat is not None:
            repeats.setdefault(tuple(on), []).append(statistic(values))
    pairs, unpaired = [], []
    for key, values in measured.items():
        if key in predicted:
            found = statistic(values)
            noise = _noise(repeats.get(key, ()), found)
            pairs.append(
                Pair(
                    key,
                    statistic(predicted[key]),
                    found,
                    min(values),
                    max(values),
                    len(values),
                    _aim(compare, noise),
                    noise,
                )
            )
        else:
            unpaired.append(key)
    return Fidelity(compare, tuple(pairs), tuple(unpaired))


def _noise(repeats: Sequence[float], measured: float) -> float | None:
    """Return the noise floor of what several repeats have found; None of one."""
    if len(repeats) < 2 or not measured:
        return None
    return median(abs(a - b) for a, b in combinations(repeats, 2)) / abs(measured)


def of_study(study: Study) -> list[tuple[str, Fidelity]]:
    """Return the makespans of programs that are no scenarios, and apart from these how long
    recoveries took, by group, with the group's name."""
    found: dict[tuple[str, str], list[Pair]] = {}
    for each in study.metrics:
        if each.metric not in (MAKESPAN, *RECOVERY):
            continue
        recovery = each.metric in RECOVERY
        key = f"{each.workload}, {each.metric.removesuffix('_s')}" if recovery else each.workload
        pair = Pair(
            (key,),
            each.predicted,
            each.median,
            min(each.measured),
            max(each.measured),
            len(each.measured),
            each.aim,
            each.noise,
        )
        column = OF_RECOVERY if recovery else MAKESPAN
        found.setdefault((each.group, column), []).append(pair)
    aims = {MAKESPAN: AIM, OF_RECOVERY: AIM_OF_TAIL}
    return [
        (group, Fidelity(Compare(("workload",), each, aim_percent=100 * aims[each]), tuple(of), ()))
        for (group, each), of in found.items()
    ]


def _group(
    compare: Compare, on: Sequence[str], rows: Sequence[Row], where: Where
) -> dict[tuple[Any, ...], list[float]]:
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if matches(row, where) and row.get(compare.column) is not None:
            key = tuple(row.get(column) for column in on)
            groups.setdefault(key, []).append(number(row, compare.column))
    return groups
