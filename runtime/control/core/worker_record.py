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

from raytwin.runtime.control.messages import CancelTask, ObjectValue, RangeResult, TaskSpec


class State(Enum):
    """The state of a worker, as in the drawing above."""

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
        "answer",
        "answered",
        "asked",
        "assigned",
        "cancels",
        "demand",
        "functions",
        "has_children",
        "is_killed",
        "job",
        "kill_cause",
        "kill_error",
        "last_report_s",
        "number",
        "pid",
        "restarts",
        "state",
        "units",
    )

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.pid = 0
        self.state = State.STARTING
        self.demand = ""
        self.units: tuple[tuple[int, int], ...] = ()
        """The GPUs of its lease, or of its last one; see `numbered_units`."""
        self.job = b""
        """The job of its tasks, fixed by the first one."""
        self.actor = b""
        """The actor that it runs, for the rest of its life."""
        self.restarts = False
        """Whether the actor restarts elsewhere after the GCS has ended its incarnation here."""
        self.assigned: deque[TaskSpec] = deque()
        """The ranges assigned to it that are not done, in order; the first one runs."""
        self.ahead_s = 0.0
        """The estimated time of these ranges."""
        self.last_report_s = 0.0
        """The time of its last report of results or items, or of the begin of its lease."""
        self.answer: RangeResult | None = None
        """Its last result, if it has sent it to the driver itself."""
        self.functions: set[bytes] = set()
        """Functions that the node has sent to it."""
        self.has_children = False
        """Whether it has submitted tasks other than actors and calls."""
        self.is_killed = False
        """Whether `KillWorker` is on its way: the worker gets no more tasks."""
        self.kill_cause: CancelTask | None = None
        """The cancellation for which the worker was killed."""
        self.kill_error: ObjectValue | None = None
        """The error of its running task, if the worker was killed for one."""
        self.asked = 0
        """The number of `TakeBack` messages sent to it."""
        self.answered = 0
        """How many of these it has answered; the node may have assigned it tasks in between."""
        self.cancels: list[tuple[int, CancelTask]] = []
        """The cancellations that wait for an answer, each with the number of its `TakeBack`."""
