"""The GCS's event log: nodes and workers that joined or died, tasks that ran again, and so on.

The log keeps the last `EVENTS_MAX` events, and counts all events of each kind. It sends an event
that names a job to the job's driver, which shows it as a warning: what can never be scheduled, and
what crashes again and again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Event
from raytwin.runtime.control.messages.errors import Failure, brief

EVENTS_MAX = 10_000


class Log(Protocol):
    """`EventLog.add`, for the parts that report events."""

    def __call__(
        self, kind: str, subject: str, detail: str = "", count: int = 1, job: bytes = b"",
        cause: Failure | None = None,
    ) -> None:  # fmt: skip
        """Append an event that happened to `count` things, and warn the driver of `job`."""


class EventLog:
    """The events of the cluster, oldest first."""

    def __init__(self, ctx: Context, driver_of: Callable[[bytes], str]) -> None:
        self._ctx = ctx
        self._driver_of = driver_of
        """Returns the address of a job's driver, empty if the job has ended."""
        self.rows: deque[tuple[float, str, str, str, int]] = deque(maxlen=EVENTS_MAX)
        """(time, kind, subject, detail, count)"""
        self.counts: Counter[str] = Counter()
        """Events of each kind; of tasks, how many tasks."""

    def add(
        self, kind: str, subject: str, detail: str = "", count: int = 1, job: bytes = b"",
        cause: Failure | None = None,
    ) -> None:  # fmt: skip
        """Append an event that happened to `count` things, and warn the driver of `job`."""
        text = detail if cause is None else f"{detail}: {brief(cause)}"
        self.rows.append((self._ctx.now(), kind, subject, text, count))
        self.counts[kind] += count
        if job and (driver := self._driver_of(job)):
            event = Event(kind, subject, detail, count, job, cause)
            self._ctx.send(f"node:{node_of(driver)}", event)


class RemoteEventLog:
    """The event log of a shard: it forwards events to ``gcs``."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def add(
        self, kind: str, subject: str, detail: str = "", count: int = 1, job: bytes = b"",
        cause: Failure | None = None,
    ) -> None:  # fmt: skip
        """Send an event to the GCS's own log."""
        self._ctx.send("gcs", Event(kind, subject, detail, count, job, cause))
