"""A worker, as the local scheduler of its node sees it.

    STARTING ──WorkerReady──> IDLE ⇄ LEASED ──Blocked──> BLOCKED
                                       ↑ └──(all done)       │
                                       └──────Unblocked──────┘

A *lease* is a demand's resources, held for one worker while it runs tasks of
that demand one after another. A blocked worker holds its lease less the CPUs.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from raytwin.runtime.control.messages import CancelTask, ObjectValue, TaskSpec


class State(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    LEASED = "leased"
    BLOCKED = "blocked"


class Worker:
    """One worker process."""

    __slots__ = (
        "actor",
        "address",
        "ahead_s",
        "answered",
        "asked",
        "assigned",
        "cancels",
        "demand",
        "functions",
        "is_killed",
        "job",
        "kill_error",
        "killed_for",
        "news_s",
        "number",
        "pid",
        "restarts",
        "state",
    )

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.pid = 0
        self.state = State.STARTING
        self.demand = ""
        self.job = b""
        """The job that it runs tasks of, from its first one on."""
        self.actor = b""
        """The actor that it runs, for the rest of its life."""
        self.restarts = False
        """Whether that actor restarts on another node, though the GCS ends its incarnation here."""
        self.assigned: deque[TaskSpec] = deque()
        """The ranges assigned to it that are not done, in order; the first one runs."""
        self.ahead_s = 0.0
        """The estimated time of these ranges."""
        self.news_s = 0.0
        """When its lease began, or when it last reported results or items."""
        self.functions: set[bytes] = set()
        """Functions that it was sent already."""
        self.is_killed = False
        """Whether `KillWorker` is on its way: the worker gets no more tasks."""
        self.killed_for: CancelTask | None = None
        """The cancellation for which the worker was killed."""
        self.kill_error: ObjectValue | None = None
        """The error of its running task, if the worker was killed for one."""
        self.asked = 0
        """How many `TakeBack` messages it was sent."""
        self.answered = 0
        """How many of these it has answered; it may have got other tasks before it answered."""
        self.cancels: list[tuple[int, CancelTask]] = []
        """The cancellations for which it was asked, each with the number of the `TakeBack`."""
