"""This oracle finds tasks that the cluster has run again without a reason.

Until the first process dies, or the program ends an actor or a group, nothing is lost. So each
task runs once at most, and a flaky one once more for each error that its options ask to retry.
Afterwards actors replay calls and tasks run again that lineage needs: nothing is said of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.oracle.history import History

FINDINGS_MAX = 10


def repeated_tasks(
    history: History, runs: Mapping[str, int], first_death_s: float
) -> list[Finding]:
    """Return the tasks that have begun more often than in a sequential run, before anything was
    lost: `runs` has how often that is, by name."""
    until_s = min(first_death_s, history.first_end_s)
    begun: Counter[str] = Counter()
    for (_, name), begun_s in history.begun_s.items():
        begun[name] += sum(each < until_s for each in begun_s)
    texts = (
        f"{name} has begun {count} times before anything was lost, not {runs.get(name, 0)}"
        for name, count in sorted(begun.items())
        if count > runs.get(name, 0)
    )
    return [Finding(Kind.REPEATED, text) for text in islice(texts, FINDINGS_MAX)]
