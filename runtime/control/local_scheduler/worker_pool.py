"""The workers of a node: how many there are, who is idle, who may take what job's task.

A node starts with one worker per CPU. More come when a demand fits and none is idle (see
`leases`), and go when too many are idle, unless somebody needs what they own. A worker
belongs to the first job that it runs something of.
"""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import WORKERS_PER_LIFE
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.messages import StartWorker, StopWorker
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.ownership.contained_references import Custody


class WorkerSupply:
    """Starts, hands out and stops the workers of one node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        prestart: int,
        objects: ObjectDirectory,
        custody: Custody,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._custody = custody
        self.workers: dict[str, Worker] = {}
        self.idle: list[Worker] = []
        """The one that ran last at the end."""
        self.starting = 0
        """Workers that are on their way."""
        self.prestart = prestart
        """How many a node starts with."""
        self._idle_max = 2 * prestart + 2
        self._names = (incarnation - 1) * WORKERS_PER_LIFE

    def start(self) -> None:
        """Start the workers that a node begins with."""
        for _ in range(self.prestart):
            self.start_worker()

    def start_worker(self) -> None:
        """Start one more; where too many of other jobs are idle, in place of one of them."""
        if len(self.idle) > self._idle_max:
            # They are of other jobs than the one that needs this worker.
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

        With `for_good` it is to end with what it runs, an actor: one that owns nothing, as
        what it has put or submitted would end with it.
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
        """A worker's lease is over; ``wanted``: there is more to run, so it is kept."""
        worker.demand = ""
        worker.ahead_s = 0.0
        excess = not wanted and len(self.idle) > self._idle_max
        if excess and not self._objects.owners.owns(worker.address):
            # Workers that stood in for blocked ones are not kept for ever, unless
            # values depend on them.
            self.stop(worker)
            return
        worker.state = State.IDLE
        self.idle.append(worker)

    def stop(self, worker: Worker) -> None:
        """End a worker that is not needed any more."""
        del self.workers[worker.address]
        self._ctx.send(f"pool:{self._node}", StopWorker(worker.address))
        self._custody.worker_gone(worker.address)
