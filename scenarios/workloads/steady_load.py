"""A steady load of tasks and actor calls, submitted at a fixed rate whatever becomes of them.

The load is *open*: operations are submitted at their times, so a cluster that lost capacity or an
operation that waits for a failure detector shows as operations that are open for longer, and what
was missed is caught up on later. Every `CALL_EVERY`-th operation is a call of one of the actors, in
turn; the others are tasks. A call returns how many calls of its actor have taken effect, and a task
the fold of its number, so a lost or doubled effect is a wrong value.

The driver's node is meant to have no CPU, so that all work crosses links and can be hit by faults;
see `nodes`. Actors take checkpoints (`steady_work`), so a later fault costs no more replays
than an early one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import raytwin as ray
from raytwin.runtime.api.exceptions import RayError
from raytwin.scenarios.workloads.steady_work import fold, tally, work

CALL_EVERY = 3
SLOTS = 1_000.0
"""Of a resource that only the nodes with CPUs have, where actors live."""
MARGIN_S = 1e-6
"""Shorter waits are none, in virtual time, too."""


class Answer(Enum):
    """The state of an operation: under way, or how it has ended."""

    OPEN = "open"
    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"


@dataclass
class Operation:
    """A task or a call; times are on the cluster's clock."""

    task: bytes
    """Its ID, by which `executions` knows it."""
    submitted_s: float
    expected: int
    ended_s: float = 0.0
    """When the driver had its result, if it is not open."""
    answer: Answer = Answer.OPEN


def nodes(workers: int, cpus: int) -> list[dict[str, float]]:
    """Return the resources of a driver's node without CPUs, and of `workers` nodes that work."""
    return [{"CPU": 0.0}, *({"CPU": float(cpus), "slot": SLOTS} for _ in range(workers))]


@dataclass
class SteadyLoad:
    """The load of a driver on its cluster: `warm_up`, `run` as often as wanted, `finish`."""

    rate_per_s: float
    task_s: float
    actors: int
    pinned: bool
    """Whether an actor lives on one node and waits there for its return, or moves when it dies."""
    record: str
    """The file in which tasks and calls write down that they have begun; see `executions`."""
    write: Callable[[], None] | None = None
    """Writes to the GCS and waits until that is done; called with every operation."""
    operations: list[Operation] = field(default_factory=list)
    writes: list[tuple[float, float]] = field(default_factory=list)
    """When each write to the GCS began and ended."""
    _open: dict[Any, Operation] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)
    _calls: list[int] = field(default_factory=list)
    """How many calls each actor has got."""
    _due_s: float = 0.0
    """When the next operation is to be submitted."""

    def warm_up(self, slots: int) -> None:
        """Start the actors, and a worker for each of the cluster's `slots`."""
        places = [
            {f"node:{number + 1}": 1 / SLOTS} if self.pinned else {"slot": 1.0}
            for number in range(self.actors)
        ]
        self._handles = [tally.options(resources=place).remote() for place in places]
        self._calls = [0] * self.actors
        ray.get([handle.__ray_ready__.remote() for handle in self._handles])
        ray.get([work.remote(0, self.task_s, "") for _ in range(2 * slots)])
        self._due_s = ray.now()

    def run(self, until_s: float) -> None:
        """Submit operations at their times, and collect results, until a time of the clock.

        What was due since the last run is left out: it would be a burst.
        """
        self._due_s = max(self._due_s, ray.now())
        while (now_s := ray.now()) < until_s - MARGIN_S:
            while self._due_s <= now_s:
                self._submit(now_s)
                self._due_s += 1 / self.rate_per_s
                if self.write is not None:
                    began_s = ray.now()
                    self.write()
                    self.writes.append((began_s, ray.now()))
            self._collect(min(self._due_s, until_s) - now_s)

    def finish(self, patience_s: float) -> int:
        """Collect what is still open; return how many operations hang after `patience_s`."""
        until_s = ray.now() + patience_s
        while self._open and (left_s := until_s - ray.now()) > MARGIN_S:
            self._collect(left_s)
        return len(self._open)

    @property
    def open(self) -> int:
        """How many operations have no result yet."""
        return len(self._open)

    def _submit(self, now_s: float) -> None:
        number = len(self.operations)
        if self._handles and number % CALL_EVERY == 0:
            which = number // CALL_EVERY % self.actors
            self._calls[which] += 1
            ref, expected = (
                self._handles[which].add.remote(self.task_s, self.record),
                self._calls[which],
            )
        else:
            ref, expected = work.remote(number, self.task_s, self.record), fold(number)
        operation = Operation(bytes(ref.task_id().binary()), now_s, expected)
        self.operations.append(operation)
        self._open[ref] = operation

    def _collect(self, timeout_s: float) -> None:
        """Wait for a result, at most for so long, and take all that are there."""
        if not self._open:
            ray.sleep(max(0.0, timeout_s))
            return
        refs = list(self._open)
        ray.wait(refs, timeout=max(0.0, timeout_s), fetch_local=False)
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        now_s = ray.now()
        for ref in ready:
            operation = self._open.pop(ref)
            operation.ended_s = now_s
            try:
                right = ray.get(ref) == operation.expected
                operation.answer = Answer.RIGHT if right else Answer.WRONG
            except RayError:
                operation.answer = Answer.ERROR
