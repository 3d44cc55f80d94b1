"""The worker pool of a node: starting, idle and leased workers, and their number.

A node starts with one worker per CPU, and replaces those that die. It starts more when tasks or
actors wait whose demand fits and no worker is idle: `WorkerLeases` looks for those at the end of
each turn, and the pool limits the number. ``pool:<n>``, in the world, forks. The pool stops idle
workers beyond a limit, unless they own objects, which would be lost with them. A worker belongs to
the job of the first task that it runs.
"""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import WORKERS_PER_INCARNATION
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.resources import cpu_part
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.messages import StartWorker, StopWorker, TakeBack
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.ownership.contained_references import ContainedReferences

WORKERS_WITHOUT_CPU_MAX = 64
"""The most running workers that a node starts for tasks that need no CPU."""


class WorkerPool:
    """Starts, leases and stops the workers of one node; `workers` has them by address."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        prestart: int,
        objects: NodeObjects,
        contained_references: ContainedReferences,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._contained_references = contained_references
        self.workers: dict[str, Worker] = {}
        self.idle: list[Worker] = []
        """The worker that ran last is at the end."""
        self.starting = 0
        """Workers that were started and are not ready yet."""
        self.prestart = prestart
        """How many workers a node starts with."""
        self._idle_max = 2 * prestart + 2
        self._names = (incarnation - 1) * WORKERS_PER_INCARNATION

    def start(self) -> None:
        """Start the workers that a node begins with."""
        for _ in range(self.prestart):
            self._start_worker()

    def start_for_tasks(self, fitting: int, takes_cpu: bool) -> None:
        """Start workers for waiting tasks; `fitting` of these have resources.

        Tasks that take no CPU have a limit of their own. Actors and blocked tasks do not count,
        because they may never end.
        """
        if not takes_cpu:
            running = sum(
                w.state is State.LEASED and not (w.actor or cpu_part(w.demand))
                for w in self.workers.values()
            )
            fitting = min(fitting, WORKERS_WITHOUT_CPU_MAX - running)
        self.start_for_actors(fitting)

    def start_for_actors(self, fitting: int) -> None:
        """Start a worker for each waiting actor that has resources, less those that start now."""
        for _ in range(fitting - self.starting):
            self._start_worker()

    def on_died(self, state: State) -> None:
        """Uncount a worker that died in a state; replace it if the node has too few."""
        if state is State.STARTING:
            self.starting -= 1  # another one would most likely fail too
        elif len(self.workers) < self.prestart:
            self._start_worker()

    def _start_worker(self) -> None:
        """Start a worker; if too many of other jobs are idle, stop one of those."""
        if len(self.idle) > self._idle_max:
            unused = next((w for w in self.idle if not self._objects.owners.owns(w.address)), None)
            if unused is not None:
                self.idle.remove(unused)
                self.stop(unused)
        self._names += 1
        self.starting += 1
        address = f"worker:{self._node}.{self._names}"
        self.workers[address] = Worker(address, self._names)
        self._ctx.send(f"pool:{self._node}", StartWorker(address))

    def on_ready(self, worker: Worker, pid: int) -> None:
        """A worker's process is up."""
        worker.pid = pid
        self.starting -= 1

    def take_idle(self, job: bytes, for_good: bool = False) -> Worker | None:
        """Take the job's idle worker that ran last, or one that has run nothing yet.

        With `for_good` the worker becomes an actor and ends with it, so it must own no object.
        """
        idle = self.idle
        if not for_good and idle[-1].job == job:
            return idle.pop()
        for wanted in (job, b""):
            for at in range(len(idle) - 1, -1, -1):
                if idle[at].job == wanted:
                    if for_good and self._objects.owners.owns(idle[at].address):
                        continue
                    worker = idle.pop(at)
                    worker.job = job
                    return worker
        return None

    def make_idle(self, worker: Worker, wanted: bool) -> None:
        """Keep or stop a worker whose lease is over; ``wanted``: more tasks are ready."""
        worker.demand = ""
        worker.ahead_s = 0.0
        excess = not wanted and len(self.idle) > self._idle_max
        if excess and not self._objects.owners.owns(worker.address):
            # It was started to replace a blocked worker.
            self.stop(worker)
            return
        worker.state = State.IDLE
        self.idle.append(worker)

    def stop(self, worker: Worker) -> None:
        """Stop an idle worker."""
        del self.workers[worker.address]
        self._ctx.send(f"pool:{self._node}", StopWorker(worker.address))
        self._contained_references.worker_gone(worker.address)

    def take_back(self, worker: Worker) -> int:
        """Ask a worker for the ranges that it has not started; return the request's number."""
        worker.asked += 1
        self._ctx.send(worker.address, TakeBack(worker.asked))
        return worker.asked
