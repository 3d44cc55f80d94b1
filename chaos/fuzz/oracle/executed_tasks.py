"""The timeline against the tasks that ran: what the nodes say, and what the program has counted.

A task of the program counts on its node when it begins, and when it returns. The timeline has a
row for each range that has ended, whatever its end was: so no node has more rows of a task than
have begun there, nor fewer than have returned. A node that has died has taken its rows with it, and
a worker that has died what it had not reported; of a cancelled task an end may count that nobody
waits for, and a node forgets rows where the case limits their number. There only the first holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.oracle.history import History
from raytwin.runtime.control.observability.timeline import TASK


def wrong_timeline(
    timeline: Iterable[Sequence[Any]],
    history: History,
    dead: Container[int],
    lossy: Container[int],
) -> list[Finding]:
    """Return the tasks of which the timeline has too many or too few rows.

    `timeline` are the rows of that query. Nothing is known of the nodes in `dead`, and of those in
    `lossy` rows may rightly be missing.
    """
    rows: Counter[tuple[int, str]] = Counter()
    for name, node, _, _, _, count, _, _, _, kind, *_ in timeline:
        # Tasks of the system have other names.
        if kind == TASK and name.startswith("k") and node not in dead:
            rows[node, name] += count
    found = []
    for node, name in sorted({*rows, *history.returned}):
        if node in dead:
            continue
        most, number = len(history.begun_s.get((node, name), ())), rows[node, name]
        exact = node not in lossy and name not in history.cancelled
        least = history.returned[node, name] if exact else 0
        if not least <= number <= most:
            text = (
                f"the timeline has {number} runs of {name} on node {node}, where {most} have begun"
                f" and {least} returned"
            )
            found.append(Finding(Kind.TIMELINE, text))
    return found[:10]
