"""The GCS's event log: nodes and workers that joined or died, tasks that ran again, and so on.

The log keeps the last `EVENTS_MAX` events, and counts all events of each kind.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Event

EVENTS_MAX = 10_000


class Log(Protocol):
    """`EventLog.add`, for the parts that report events."""

    def __call__(self, kind: str, subject: str, detail: str = "", count: int = 1) -> None:
        """Append an event that happened to `count` things."""


class EventLog:
    """The events of the cluster, oldest first."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.rows: deque[tuple[float, str, str, str, int]] = deque(maxlen=EVENTS_MAX)
        """(time, kind, subject, detail, count)"""
        self.counts: Counter[str] = Counter()
        """Events of each kind; of tasks, how many tasks."""

    def add(self, kind: str, subject: str, detail: str = "", count: int = 1) -> None:
        """Append an event that happened to `count` things."""
        self.rows.append((self._ctx.now(), kind, subject, detail, count))
        self.counts[kind] += count


class RemoteEventLog:
    """The event log of a shard: it forwards events to ``gcs``."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def add(self, kind: str, subject: str, detail: str = "", count: int = 1) -> None:
        """Send an event to the GCS's own log."""
        self._ctx.send("gcs", Event(kind, subject, detail, count))
