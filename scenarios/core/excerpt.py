"""What a scenario's timeline keeps of a long run: all that failed, and what was around it.

Every event of the GCS's log is kept, and every range that was executed again, was a replay or
failed, however many they are. Of all other ranges, of transfers and of placements it is the
nearest in time to those, a limited number each; of a run in which nothing happened it is the
beginning. What is left out is counted: see `Excerpt.missing`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raytwin.runtime.api.trace import Event, Recording
from raytwin.runtime.control.messages import OK
from raytwin.runtime.control.observability.timeline import REPLAY

CATEGORY = "left out"
"""Of the one event that says what is not there."""
_ROUTINE = frozenset({"node_added", "actor_created", "job_ended"})

Row = list[Any]


@dataclass(frozen=True)
class Excerpt:
    """A part of a recording."""

    recording: Recording
    missing: dict[str, tuple[int, int]]
    """By kind, where any are: how many rows are left out, and of how many."""

    def events(self) -> list[Event]:
        """Return the trace's events, by time; the first says what was left out, if anything."""
        events = self.recording.events()
        if self.missing:
            parts = (f"{out:,} of {of:,} {kind}" for kind, (out, of) in self.missing.items())
            notice: Event = {
                "name": f"left out: {', '.join(parts)}",
                "cat": CATEGORY,
                "ph": "i",
                "s": "g",
                "ts": events[0]["ts"] if events else 0.0,
                "pid": "trace",
                "tid": CATEGORY,
                "args": {kind: {"missing": n, "of": of} for kind, (n, of) in self.missing.items()},
            }
            events.insert(0, notice)
        return events


def excerpt(whole: Recording, most: int, happened: int) -> Excerpt:
    """Return the part that is kept, with at most `most` rows of each kind beyond the rest.

    ``happened``: of how many events the GCS has told; its log has the last of them.
    """
    marked = [row for row in whole.ranges if _is_marked(row)]
    others = [row for row in whole.ranges if not _is_marked(row)]
    moments = sorted(
        [at for row in marked for at in (row[3], row[3] + row[4])]
        + [row[0] for row in whole.gcs_events if row[1] not in _ROUTINE]
    )
    around = _nearest(others, most, moments, lambda row: (row[3], row[4]))
    part = Recording(
        sorted([*marked, *around], key=lambda row: (row[3], row[1], row[2])),
        _nearest(whole.transfers, most, moments, lambda row: (row[2], row[3])),
        _nearest(whole.placements, most, moments, lambda row: (row[0], 0.0)),
        list(whole.gcs_events),
    )
    counts = {
        "executed ranges": (len(part.ranges), len(whole.ranges)),
        "transfers": (len(part.transfers), len(whole.transfers)),
        "placements": (len(part.placements), len(whole.placements)),
        "events": (sum(row[4] for row in part.gcs_events), happened),
    }
    return Excerpt(part, {kind: (of - n, of) for kind, (n, of) in counts.items() if n < of})


def _is_marked(row: Row) -> bool:
    return bool(row[8]) or row[9] == REPLAY or row[10] != OK


def _distance(moments: list[float], start_s: float, elapsed_s: float) -> float:
    """Return how far something is from the nearest moment, in seconds; 0 if one is in it."""
    at = bisect_left(moments, start_s)
    before_s = start_s - moments[at - 1] if at else float("inf")
    after_s = max(0.0, moments[at] - start_s - elapsed_s) if at < len(moments) else float("inf")
    return min(before_s, after_s)


def _nearest(
    rows: list[Row], most: int, moments: list[float], when: Callable[[Row], tuple[float, float]]
) -> list[Row]:
    """Return so many rows, the nearest to the moments, by time."""
    by_distance = sorted(rows, key=lambda row: (_distance(moments, *when(row)), when(row)))
    return sorted(by_distance[:most], key=when)
