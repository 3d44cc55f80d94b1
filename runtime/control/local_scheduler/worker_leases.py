"""Worker leases: which of a node's workers runs which of its ready ranges.

A leased worker holds the resources of one demand, and has ranges of that demand for ``ahead_s``
seconds; it gets more when half of these are done. Workers that are leased in one turn get equal
shares of the ranges that are ready, each up to ``ahead_s``. If tasks of several jobs wait, the
next lease goes to the job with the fewest leases on the node. The node starts further workers when
a demand fits and no worker is idle (`WorkerPool`).

If a task runs far longer than the mean of its function, the node takes back the ranges behind it,
for another worker or node, and assigns the worker no more: a timer looks for workers that have been
silent since its last look.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf

from raytwin.runtime.control.actors.actor_record import ActorRecord
from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.resources import NumberedPool, cpu_part
from raytwin.runtime.control.core.task_ranges import job_of_task, part_of
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.local_scheduler.blocked_tasks import BlockedTasks
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import Lane, ReadyQueue
from raytwin.runtime.control.local_scheduler.worker_pool import WorkerPool
from raytwin.runtime.control.messages import (
    Assignment,
    FunctionBlob,
    GrantGpus,
    RunTasks,
)

STUCK_AHEADS = 4
"""The interval between looks, in ``ahead_s``; a worker that is silent for longer is stuck."""
LOOK_S_MIN = 0.004
"""The shortest interval, lest a node that gives no work ahead look all the time."""
GENERATIONS = 2
"""How many tasks of each worker a mean covers."""
SAMPLES_MIN = 10
"""How many tasks a mean covers at least, where workers are few; the first one counts as so many."""


class TaskTimes:
    """Mean times of the tasks that have ended on one node: exponential averages."""

    def __init__(self) -> None:
        self.means: dict[bytes, float] = {}
        """Mean seconds of a task, by its function."""
        self.mean_s = 0.0
        """Mean seconds of a task of any function; 0 while none has ended."""
        self._samples: dict[bytes, int] = {}
        self._samples_of_all = 0

    def add(self, function: bytes, count: int, each_s: float, workers: int) -> None:
        """Add tasks of one function that took `each_s` seconds each, on a node of so many workers.

        Tasks that end together count as so many, but never outweigh the past completely.
        """
        most = GENERATIONS * workers
        if most < SAMPLES_MIN:
            most = SAMPLES_MIN
        past_s = self.means.get(function)
        if past_s is None:
            self._samples[function] = SAMPLES_MIN
            self.means[function] = each_s
        else:
            samples = self._samples.get(function, SAMPLES_MIN)
            if samples != most:
                self._samples[function] = samples = min(samples + count, most)
            weight = 1 / samples if count == 1 else _weight(count, samples)
            self.means[function] = past_s + weight * (each_s - past_s)
        samples = self._samples_of_all
        if samples != most:
            self._samples_of_all = samples = min(max(SAMPLES_MIN, samples + count), most)
        weight = 1 / samples if count == 1 else _weight(count, samples)
        self.mean_s += weight * (each_s - self.mean_s) if self.mean_s else each_s

    def forget(self, is_over: Callable[[bytes], bool]) -> None:
        """Forget the functions for which `is_over` returns true."""
        for function in [function for function in self.means if is_over(function)]:
            del self.means[function]
            self._samples.pop(function, None)


class WorkerLeases:
    """Leases the workers of one node to its ready ranges."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        resources: NumberedPool,
        ready: ReadyQueue,
        blocked: BlockedTasks,
        pool: WorkerPool,
        inputs: TaskInputs,
        actors: NodeActors,
    ) -> None:
        self._ctx = ctx
        self._config = config
        self._resources = resources
        self._ready = ready
        self._blocked = blocked
        self._pool = pool
        self.workers = pool.workers
        self._inputs = inputs
        self._actors = actors
        self.assigned = 0
        """Elements that are on a worker."""
        self.times = TaskTimes()
        self._watch: Timer | None = None
        self._looked_s = -inf
        """The time of the watch's last look."""
        self._last_heartbeat_s = -inf
        """The time of the last timely heartbeat."""
        self._listened_s = -inf
        """The time of the timely heartbeat before. By the last one, workers had received every
        assignment made before this time, and their earlier reports had arrived."""

    @property
    def busy_s(self) -> float:
        """Estimated seconds until one of the running tasks ends; 0 if none runs.

        A task that has run for longer than its function's mean is expected to run as long again,
        if its worker was silent between two timely heartbeats: after a late heartbeat this
        scheduler was busy, and the worker's report may be waiting.
        """
        if not self.assigned:
            return 0.0
        lefts_s = []
        now = self._ctx.now()
        for worker in self.workers.values():
            if worker.state is State.LEASED and worker.assigned:
                ran_s = now - worker.last_report_s
                mean_s = self.times.means.get(worker.assigned[0].function, 0.0)
                overdue_s = ran_s if worker.last_report_s < self._listened_s else 0.0
                lefts_s.append(mean_s - ran_s if ran_s < mean_s else overdue_s)
        return min(lefts_s, default=0.0)

    def on_timely_heartbeat(self) -> None:
        """Note a timely heartbeat: this scheduler was free when it was due."""
        self._listened_s, self._last_heartbeat_s = self._last_heartbeat_s, self._ctx.now()

    def dispatch(self) -> None:
        """Give ready ranges to workers; call it at the end of each turn."""
        if self._actors.queued:
            self._begin_actors()
        if self._ready.size:
            self._serve()
            while self._ready.closed and self._blocked.open_if_stalled():
                self._serve()
        self._watch_stuck()

    def _serve(self) -> None:
        """Lease workers to ready ranges as far as there are resources."""
        ready = self._ready
        lanes = ready.lanes()
        if len(lanes) > 1 and len({job for job, _ in lanes}) > 1:
            self._share(lanes)
            return
        for lane in lanes:
            served = 0
            while self._lease(lane, served):
                served += 1
            if not ready.has(lane):
                continue
            if self._resources.fits(lane[1]):
                fitting = self._resources.room(lane[1], ready.count(lane))
                self._pool.start_for_tasks(fitting, bool(cpu_part(lane[1])))
            elif len(ready.lanes()) == 1 and not self._resources.is_over(lane[1]):
                # Only one kind of task waits: no other starves if leases continue.
                quiet_since_s = self._quiet_since_s()
                for worker in self.workers.values():
                    leased = worker.state is State.LEASED and not (worker.actor or worker.is_killed)
                    if (worker.job, worker.demand) == lane and leased:
                        is_low = worker.ahead_s < self._config.ahead_s / 2
                        if is_low and worker.last_report_s > quiet_since_s:
                            self._give(worker)
                            if not ready.has(lane):
                                break

    def _share(self, lanes: list[Lane]) -> None:
        """Give leases to several jobs, each time to the one that holds the fewest."""
        held = Counter(
            w.job for w in self.workers.values() if w.state is State.LEASED and not w.actor
        )
        served: Counter[Lane] = Counter()
        waiting: dict[bytes, deque[Lane]] = {}
        for lane in lanes:
            waiting.setdefault(lane[0], deque()).append(lane)
        while waiting:
            job = min(waiting, key=held.__getitem__)
            lane = waiting[job][0]
            if self._lease(lane, served[lane]):
                held[job] += 1
                served[lane] += 1
                continue
            if self._ready.has(lane) and self._resources.fits(lane[1]):
                # Others may take the resources meanwhile, but not the next ones.
                self._pool.start_for_tasks(1, bool(cpu_part(lane[1])))
            waiting[job].popleft()
            if not waiting[job]:
                del waiting[job]

    def _lease(self, lane: Lane, served: int) -> bool:
        """Give an idle worker a lease for a lane; return False if there is none.

        `served` workers have had their shares of the lane's ranges in this turn.
        """
        job, demand = lane
        if not (self._pool.idle and self._ready.has(lane) and self._resources.fits(demand)):
            return False
        worker = self._pool.take_idle(job)
        if worker is None:
            return False
        self._take(worker, demand)
        worker.state = State.LEASED
        self.on_report(worker)
        self._give(worker, served)
        self.drain(worker)
        return True

    def _take(self, worker: Worker, demand: str) -> None:
        """Give a worker the resources of a demand, and tell it the GPUs that are other ones now."""
        worker.demand = demand
        units = self._resources.lease(demand)
        if units != worker.units:
            worker.units = units
            self._ctx.send(worker.address, GrantGpus(tuple(number for number, _ in units)))

    def on_report(self, worker: Worker) -> None:
        worker.last_report_s = self._ctx.now()

    def _give(self, worker: Worker, served: int = 0) -> None:
        """Give a worker ranges worth ``ahead_s``, its fair share at most."""
        ready, config, demand = self._ready, self._config, worker.demand
        lane = (worker.job, demand)
        workers = min(self._workers_for_tasks(), self._resources.slots(demand))
        share = -(-ready.count(lane) // max(1, workers - served))
        spec = ready.peek(lane)
        each_s = self.times.means.get(spec.function, 0.0) if spec is not None else 0.0
        # A fair share below `split_s` costs more than it gains. A worker that has work gains
        # nothing now: it gets the missing half in one piece.
        least_s = config.ahead_s / 2 if worker.assigned else config.split_s
        least = int(least_s / each_s) if each_s else 1
        room = min(max(share, least), config.ahead_tasks_max)
        batch: list[Assignment] = []
        while spec is not None and room > 0:
            mean = self.times.means.get(spec.function)
            if mean is None:
                if worker.assigned:
                    break
                most = 1
            elif mean > 0:
                most = int((config.ahead_s - worker.ahead_s) / mean)
                if most < 1:
                    if worker.assigned:
                        break
                    most = 1
            else:
                most = room
            part = ready.take(lane, min(room, most))
            inputs = self._inputs.take(part, worker.address)
            spec = ready.peek(lane)
            if inputs is None:
                continue
            room -= part.count
            worker.assigned.append(part)
            worker.ahead_s += part.count * (mean or 0.0)
            self.assigned += part.count
            self.send_function(worker, part.function)
            batch.append(Assignment(part, inputs))
        if batch:
            self._ctx.send(worker.address, RunTasks(batch))

    def _workers_for_tasks(self) -> int:
        return len(self.workers) - len(self._actors.actors)

    def send_function(self, worker: Worker, function: bytes) -> None:
        """Send a worker a function that it was not sent yet."""
        if function not in worker.functions:
            worker.functions.add(function)
            self._ctx.send(worker.address, FunctionBlob(function, self._inputs.functions[function]))

    def remove_ended(self, worker: Worker, start: int, count: int, elapsed_s: float) -> str:
        """Remove ended elements from the worker, add them to the averages; return their owner."""
        spec = worker.assigned[0]
        assert spec.start == start, "out of order"
        if self._blocked.stalled_s:
            self._blocked.ended(spec)
        if count == spec.count:
            worker.assigned.popleft()
        else:
            end = spec.start + spec.count
            done = start + count
            worker.assigned[0] = part_of(spec, done, end - done)
        self.assigned -= count
        ahead_s = worker.ahead_s - count * self.times.means.get(spec.function, 0.0)
        worker.ahead_s = ahead_s if ahead_s > 0.0 else 0.0
        self.times.add(spec.function, count, elapsed_s / count, self._workers_for_tasks())
        return spec.owner

    def _begin_actors(self) -> None:
        """Give queued actors resources and workers, oldest first."""
        queued = self._actors.queued
        waiting: list[ActorRecord] = []
        while queued and self._pool.idle:
            actor = queued.popleft()
            fits = self._resources.fits(actor.spec.demand)
            job = job_of_task(actor.spec)
            worker = self._pool.take_idle(job, for_good=True) if fits else None
            if worker is not None:
                worker.state = State.LEASED
                self._take(worker, actor.spec.demand)
                self._actors.begin(actor, worker)
            else:
                waiting.append(actor)
        queued.extendleft(reversed(waiting))
        # Nothing here may look at all queued actors each time that a worker is ready.
        if len(queued) <= self._pool.starting:
            return
        # They may not all fit together; a worker too many takes tasks, or is stopped.
        fitting = sum(self._resources.fits(actor.spec.demand) for actor in queued)
        self._pool.start_for_actors(fitting)

    def drain(self, worker: Worker) -> None:
        """End a worker's lease once it has no range left; an actor keeps its lease for life."""
        if worker.state is not State.LEASED or worker.actor or worker.assigned:
            return
        if worker.is_killed:
            return  # a new range would die with it
        # The lease ends here and may begin again in this turn's dispatch, so
        # that the oldest waiting demand comes first.
        self._resources.end_lease(worker.demand, worker.units)
        self._pool.make_idle(worker, bool(self._ready.size))

    def _watch_stuck(self) -> None:
        """Start the watch if a worker has a range behind another."""
        if self._watch is not None or self.assigned <= 1:
            return
        if self.assigned > self._workers_for_tasks() - len(self._pool.idle):
            quiet_s = max(LOOK_S_MIN, STUCK_AHEADS * self._config.ahead_s)
            self._watch = self._ctx.after(quiet_s, self._look_for_stuck)

    def _quiet_since_s(self) -> float:
        """Return the time since which a worker that is not stuck has reported something."""
        return self._ctx.now() - STUCK_AHEADS * self._config.ahead_s

    def _look_for_stuck(self) -> None:
        """Take ranges back from the workers that have been silent since the look before.

        All that they had reported by now has been read, even if this scheduler was too busy to look
        in time.
        """
        self._watch = None
        for worker in self.workers.values():
            if (
                worker.last_report_s < self._looked_s
                and worker.answered == worker.asked
                and sum(spec.count for spec in worker.assigned) > 1
            ):
                self._pool.take_back(worker)
        self._looked_s = self._ctx.now()
        self._watch_stuck()


def _weight(count: int, samples: int) -> float:
    """Return what `count` tasks weigh in a mean that covers `samples`."""
    return 1 - (1 - 1 / samples) ** min(count, samples)
