"""What runs more often than it has to: only a death, or the error of a flaky task, is a reason.

Until the first process dies, or the program ends an actor or a group, nothing is lost. So each
task runs once at most, and a flaky one once more for each error that its options ask to retry.
Afterwards actors replay calls and tasks run again that lineage needs: nothing is said of these.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.oracle.history import History

FINDINGS_MAX = 10


def repeated_tasks(
    history: History, runs: Mapping[str, int], first_death_s: float
) -> list[Finding]:
    """Return the tasks that have begun more often than in a sequential run, before anything was
    lost: `runs` has how often that is, by name."""
    found, until_s = [], min(first_death_s, history.first_end_s)
    for name, begun_s in sorted(history.begun_s.items()):
        begun = sum(each < until_s for each in begun_s)
        if begun > runs.get(name, 0):
            most = runs.get(name, 0)
            text = f"{name} has begun {begun} times before anything was lost, not {most}"
            found.append(Finding(Kind.REPEATED, text))
    return found[:FINDINGS_MAX]
