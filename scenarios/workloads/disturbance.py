"""This module computes how a steady load recovers from a fault, from its operations alone.

Of one *episode*, which is a quiet stretch, a fault, and the time after it:

- *hit* operations are those that a fault made begin again; where it made none, those that took
  longer than `SLOWER` times the median of the quiet stretch;
- the *first result* is that of the hit operation that ended first;
- *full throughput* is back when every hit operation has ended and, since the peak of open
  operations, no more have been open than at most in the quiet stretch, or `CHANCE` more: the load
  is open, so what was missed is caught up on by then;
- the *dip* is the area between the offered rate and the throughput. It is the growth of open
  operations up to their peak, so no bucket of time is needed for it.

Times are in seconds since the fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import numpy as np

from raytwin.scenarios.core.scenario import Check, Row
from raytwin.scenarios.workloads.steady_load import Answer, Operation

SLOWER = 2.0
"""Times the median of the quiet stretch: less is noise of a machine with other work. Its slowest
would be another measure on each machine: one operation that waited for a core hides all that a
fault delays by less."""
CHANCE = 1
"""Open operations: how many there are varies by one with when a moment is."""


@dataclass(frozen=True)
class Episode:
    """When one fault was injected into a steady load, on the cluster's clock."""

    began_s: float
    """When the quiet stretch began."""
    fault_s: float
    ended_s: float

    def has(self, moment_s: float) -> bool:
        """Whether a moment is in it."""
        return self.began_s <= moment_s < self.ended_s


@dataclass(frozen=True)
class Disturbance:
    """Times and counts of a steady load's recovery from one fault."""

    hit: int
    first_result_s: float | None
    """None if nothing was hit."""
    full_s: float | None
    """None if nothing was hit and no operation waited, or if it was not back at the end."""
    recovered: bool
    """Whether full throughput was back at the end of the episode, or had never gone."""
    dip_operations: int
    latency_max_s: float
    """Of the operations that ended after the fault, in the episode."""


def disturbance(
    episode: Episode, operations: Sequence[Operation], again: Collection[bytes]
) -> Disturbance:
    """Return what the fault of an episode did to the operations of a load.

    `again` are the IDs of those that began again after it.
    """
    over = [each for each in operations if each.answer is not Answer.OPEN]
    quiet = [each for each in over if episode.began_s <= each.ended_s < episode.fault_s]
    after = [each for each in over if episode.fault_s <= each.ended_s < episode.ended_s]
    usual_s = median([each.ended_s - each.submitted_s for each in quiet] or [0.0])
    hit = [each for each in after if each.task in again] or [
        each for each in after if each.ended_s - each.submitted_s > SLOWER * usual_s
    ]
    level = CHANCE + most_open(operations, episode.began_s, episode.fault_s)
    peak = most_open(operations, episode.fault_s, episode.ended_s)
    open_at = _open_operations(operations)
    peak_s = next((at for at, count in open_at if at >= episode.fault_s and count == peak), 0.0)
    back_s = [each.ended_s for each in hit]
    if peak > level:
        back_s.append(
            next((at for at, count in open_at if at > peak_s and count <= level), float("inf"))
        )
    full_s = max(back_s, default=episode.fault_s)
    lost = any(each.answer is Answer.OPEN and episode.has(each.submitted_s) for each in operations)
    recovered = full_s < episode.ended_s and not lost
    return Disturbance(
        len(hit),
        min(each.ended_s for each in hit) - episode.fault_s if hit else None,
        full_s - episode.fault_s if back_s and recovered else None,
        recovered,
        max(0, peak - level),
        max((each.ended_s - each.submitted_s for each in after), default=0.0),
    )


def ended(operations: Iterable[Operation]) -> list[float]:
    """Return when operations ended that are not open, on the cluster's clock."""
    return [each.ended_s for each in operations if each.answer is not Answer.OPEN]


def throughput(
    episode: Episode, moments: Iterable[float], bucket_s: float
) -> list[tuple[float, float]]:
    """Return the middle of each bucket of an episode, since the fault, and its moments a second."""
    found = Counter(
        int((moment_s - episode.fault_s) // bucket_s)
        for moment_s in moments
        if episode.has(moment_s)
    )
    # Only whole buckets count: those at the ends of an episode have less time for moments.
    first = -int((episode.fault_s - episode.began_s) / bucket_s + 1e-9)
    end = int((episode.ended_s - episode.fault_s) / bucket_s + 1e-9)
    return [
        (round((bucket + 0.5) * bucket_s, 9), found[bucket] / bucket_s)
        for bucket in range(first, end)
    ]


def most_open(operations: Sequence[Operation], begin_s: float, end_s: float) -> int:
    """Return the most operations that were open at one time between two moments."""
    open_at = _open_operations(operations)
    before = [count for at, count in open_at if at < begin_s]
    return max([before[-1] if before else 0, *(n for at, n in open_at if begin_s <= at < end_s)])


def quantile(values: Sequence[float], part: float) -> float:
    """Return the nearest rank: of few values the 99th percentile is the largest.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return float(np.quantile(values, part, method="inverted_cdf"))


def load_checks(rows: Sequence[Row], hung: float) -> list[Check]:
    """Return the checks that plans were carried out, and that no operation hangs or has failed.

    The rows count ``operations``, ``wrong``, ``errors`` and ``steps_missed``, each of one plan.
    """
    columns = ("operations", "wrong", "errors", "steps_missed")
    operations, wrong, errors, missed = (sum(row[name] for row in rows) for name in columns)
    return [
        Check(
            "every step of the plans was carried out",
            not missed,
            f"{missed} missed in {len(rows)} plans",
        ),
        Check("no operation hangs", not hung, f"{hung:g} of {operations:,}", under_faults=True),
        Check(
            "every task came to its value, and every call took effect once, in order",
            not wrong + errors,
            f"{wrong} wrong and {errors} errors of {operations:,} operations",
            under_faults=True,
        ),
    ]


def _open_operations(operations: Sequence[Operation]) -> list[tuple[float, int]]:
    """Return the times at which the number of open operations changes, and the new number."""
    changes: Counter[float] = Counter()
    for each in operations:
        changes[each.submitted_s] += 1
        if each.answer is not Answer.OPEN:
            changes[each.ended_s] -= 1
    times = sorted(changes)
    return list(zip(times, accumulate(changes[at] for at in times), strict=True))
