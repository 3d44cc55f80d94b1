"""Blocked tasks: how many tasks of one class a node lets wait at the same time.

A task that blocks gives its CPUs back, and each blocked task keeps a worker process. If the next
task of its class got these CPUs, it would block too, and so on: a thousand parents would hold a
thousand processes before the first child runs. So the CPUs are for other classes first: for
children, which another function makes or which are nested more deeply (see `ready_queue`)::

    OPEN ──as many of the class are blocked as have room on the node at once──> CLOSED
      ↑                                                                           │
      ├──one of them goes on, or dies─────────────────────────────────────────────┤
      └──the class has stalled for long enough────────────────────────────────────┘

Tasks may also wait for tasks of their own class that have not started, through an actor for
example. Then the class **stalls**: CPUs are free, and all ranges that could use them are of closed
classes. If none of its tasks has ended `STALL_S` after the first such moment, the class is open
until the next of its tasks blocks. This counts from the first moment, not from the last, because
a task may ask again and again, blocked for a moment each time. Each time that as many again as have
room are blocked, the wait doubles, `DOUBLINGS_MAX` times at most.

So a node has at most two tasks of a class for each that has room on it, one blocked and one
running or about to go on, and as many more blocked ones each time that the class has stalled. A
program that nests its tasks d deep has workers for d such classes. Tasks that take no CPU lend
none, and are not limited.
"""

from __future__ import annotations

from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.resources import ResourcePool, cpu_part
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue, TaskClass, class_of
from raytwin.runtime.control.messages import TaskSpec

STALL_S = 0.02
"""The wait before a stalled class opens, the first time."""
DOUBLINGS_MAX = 6
"""The wait doubles so many times at most."""
EARLY_S = 1e-6
"""A wait may end so much earlier, so that a timer which is early by a rounding error counts."""


class BlockedTasks:
    """Counts the blocked tasks of one node, and closes and opens classes in its `ReadyQueue`."""

    def __init__(self, ctx: Context, resources: ResourcePool, ready: ReadyQueue) -> None:
        self._ctx = ctx
        self._resources = resources
        self._ready = ready
        self._classes: dict[str, TaskClass] = {}
        """The class of each blocked task, by its worker."""
        self._counts: dict[TaskClass, int] = {}
        self.stalled_s: dict[TaskClass, float] = {}
        """The first time that a class stalled since one of its tasks has ended; while it is empty,
        nobody need call `ended`."""
        self._timer: Timer | None = None

    def add(self, worker: Worker) -> None:
        """The running task of a worker blocks."""
        if worker.actor or not (worker.assigned and cpu_part(worker.demand)):
            return
        task_class = self._classes[worker.address] = class_of(worker.assigned[0])
        count = self._counts[task_class] = self._counts.get(task_class, 0) + 1
        if count >= self._room(task_class):
            self._ready.closed.add(task_class)

    def remove(self, worker: Worker) -> None:
        """The blocked task of a worker goes on, or has died."""
        task_class = self._classes.pop(worker.address, None)
        if task_class is None:
            return
        count = self._counts[task_class] - 1
        if count:
            self._counts[task_class] = count
        else:
            del self._counts[task_class]
        if count < self._room(task_class):
            self._ready.closed.discard(task_class)

    def ended(self, spec: TaskSpec) -> None:
        """Tasks of a range have ended, so their class has not stalled for good."""
        self.stalled_s.pop(class_of(spec), None)

    def end_job(self, job: bytes) -> None:
        """Forget the classes of a job, whose tasks were taken out."""
        for task_class in [each for each in self.stalled_s if each[0][0] == job]:
            del self.stalled_s[task_class]

    def open_if_stalled(self) -> bool:
        """Open a class that has stalled long enough; return whether there was one.

        Call it when no worker can be leased or started any more.
        """
        ready = self._ready
        stalled = [each for each in ready.closed if ready.waits(each) and self._is_stalled(each)]
        if not stalled:
            return False
        now = self._ctx.now()
        lefts = [
            (self.stalled_s.setdefault(each, now) + self._wait_s(each) - now, each)
            for each in stalled
        ]
        left_s, first = min(lefts)
        if left_s > EARLY_S:
            if self._timer is None:
                self._timer = self._ctx.after(left_s, self._on_timer)
            return False
        del self.stalled_s[first]
        ready.closed.discard(first)
        return True

    def _is_stalled(self, task_class: TaskClass) -> bool:
        lane = task_class[0]
        return self._resources.fits(lane[1]) and not self._ready.has(lane)

    def _wait_s(self, task_class: TaskClass) -> float:
        """Return how long a class must have stalled before it opens."""
        rounds = self._counts[task_class] // self._room(task_class)
        return STALL_S * 2.0 ** min(rounds - 1, DOUBLINGS_MAX)

    def _room(self, task_class: TaskClass) -> int:
        """Return how many tasks of a class have room on the node at once."""
        return max(1, self._resources.slots(task_class[0][1]))

    def _on_timer(self) -> None:
        """Have the node look again: at the end of this turn."""
        self._timer = None
