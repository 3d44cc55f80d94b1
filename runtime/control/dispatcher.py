"""Leases of a node's workers: which worker runs what, from READY to done.

The life of a worker::

    STARTING ──WorkerReady──> IDLE ──a demand fits──> LEASED ──nothing left──> IDLE
                                                      │    ↑
                                              Blocked │    │ its CPUs are free again
                                                      ↓    │
                                                  BLOCKED ──Unblocked──> RESUMING

A leased worker holds the resources of one demand, and ranges of that demand worth
``ahead_s``. What is behind a task that blocks, or that takes far longer than thought
while others are idle, is taken back. Workers beyond those that a node starts with come
when a demand fits and none is idle, and go when too many are.

A worker belongs to the first job that it runs something of (`jobs`). Where tasks of
several jobs wait, the next lease goes to the job that holds the fewest here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from runtime.control.actor_host import Actor, ActorHost
from runtime.control.call_runs import results_of, split
from runtime.control.cancellation import Canceller
from runtime.control.cancelled import cancelled_error
from runtime.control.config import Config
from runtime.control.context import WORKERS_PER_LIFE, Context, Timer
from runtime.control.custody import Custody
from runtime.control.ids import job_of
from runtime.control.jobs import job_of_task
from runtime.control.messages import (
    RETRY,
    SYSTEM_ERROR,
    Assignment,
    Blocked,
    Event,
    FunctionBlob,
    ObjectValue,
    RangeResult,
    Resume,
    RunTasks,
    StartWorker,
    StopWorker,
    StreamItems,
    TakeBack,
    TakenBack,
    TasksDone,
    TaskSpec,
    Timing,
    Unblocked,
    WorkerReady,
)
from runtime.control.objects import ObjectDirectory
from runtime.control.ready_queue import Lane, ReadyQueue, cut, part_of
from runtime.control.resources import ResourcePool, cpu_part
from runtime.control.results import Results
from runtime.control.task_inputs import TaskInputs
from runtime.control.timeline import RangeLog
from runtime.control.worker_table import State, Worker

WORKERS_WITHOUT_CPU_MAX = 64
"""How many workers a node starts for tasks that need no CPU and do not wait."""
_WEIGHTS = tuple(1 - 0.9**count for count in range(11))
STUCK_AHEADS = 4
"""After so many ``ahead_s`` without news, twice, what was given ahead is taken back."""


class Dispatcher:
    """Gives the ready ranges of one node to its workers."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        config: Config,
        pool: ResourcePool,
        objects: ObjectDirectory,
        inputs: TaskInputs,
        results: Results,
        actors: ActorHost,
        canceller: Canceller,
        timeline: RangeLog,
        custody: Custody,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._config = config
        self._pool = pool
        self._objects = objects
        self._inputs = inputs
        self._results = results
        self._actors = actors
        self._canceller = canceller
        self._timeline = timeline
        self._custody = custody
        self.ready = ReadyQueue()
        self.workers: dict[str, Worker] = {}
        self.assigned = 0
        """Elements that are on a worker."""
        self.means: dict[bytes, float] = {}
        """Mean seconds of a task, by its function."""
        self.mean_task_s = 0.0
        self._idle: list[Worker] = []
        self._resuming: deque[Worker] = deque()
        self._names = (incarnation - 1) * WORKERS_PER_LIFE
        self._starting = 0
        """Workers that are on their way."""
        self._watch: Timer | None = None
        self._last_done_s = 0.0
        self._prestart = pool.slots("CPU:1")
        self._idle_max = 2 * self._prestart + 2

    def start(self) -> None:
        """Start the workers that a node begins with."""
        for _ in range(self._prestart):
            self._start_worker()

    def turn(self) -> None:
        """Assign what can run; call it at the end of each turn."""
        self._resume()
        self.dispatch()

    def dispatch(self) -> None:
        """Give ready ranges to workers."""
        if self._actors.queued:
            self._begin_actors()
        ready = self.ready
        if not ready.size:
            self._watch_stuck()
            return
        lanes = ready.lanes()
        if len(lanes) > 1 and len({job for job, _ in lanes}) > 1:
            self._share(lanes)
            self._watch_stuck()
            return
        for lane in lanes:
            while self._lease(lane):
                continue
            if not ready.has(lane):
                continue
            if self._pool.fits(lane[1]):
                self._start_workers_for(lane)
            elif len(ready.lanes()) == 1 and not self._resuming:
                # Only one kind of task waits: nobody starves if leases go on.
                for worker in self.workers.values():
                    leased = worker.state is State.LEASED and not worker.actor
                    if (worker.job, worker.demand) == lane and leased:
                        if worker.ahead_s < self._config.ahead_s:
                            self._give(worker)
                        if not ready.has(lane):
                            break
        self._watch_stuck()

    def _share(self, lanes: list[Lane]) -> None:
        """Give leases to several jobs, each time to the one that holds the fewest."""
        held = Counter(
            w.job for w in self.workers.values() if w.state is State.LEASED and not w.actor
        )
        waiting: dict[bytes, deque[Lane]] = {}
        for lane in lanes:
            waiting.setdefault(lane[0], deque()).append(lane)
        while waiting:
            job = min(waiting, key=held.__getitem__)
            lane = waiting[job][0]
            if self._lease(lane):
                held[job] += 1
                continue
            if self.ready.has(lane) and self._pool.fits(lane[1]) and not self._starting:
                # Others may take the resources meanwhile, but not the next ones.
                self._start_worker()
            waiting[job].popleft()
            if not waiting[job]:
                del waiting[job]

    def _lease(self, lane: Lane) -> bool:
        """Give an idle worker a lease for a lane; return whether that could be."""
        job, demand = lane
        if not (self._idle and self.ready.has(lane) and self._pool.fits(demand)):
            return False
        worker = self._take_idle(job)
        if worker is None:
            return False
        self._pool.take(demand)
        worker.demand = demand
        worker.state = State.LEASED
        self._give(worker)
        self._drain(worker)
        return True

    def _take_idle(self, job: bytes) -> Worker | None:
        """Take the job's idle worker that ran last, or one that has run nothing yet."""
        idle = self._idle
        if idle[-1].job == job:
            return idle.pop()
        for wanted in (job, b""):
            for at in range(len(idle) - 1, -1, -1):
                if idle[at].job == wanted:
                    worker = idle.pop(at)
                    worker.job = job
                    return worker
        return None

    def _give(self, worker: Worker) -> None:
        """Give a worker ranges worth ``ahead_s``, its fair share at most."""
        ready, config, demand = self.ready, self._config, worker.demand
        lane = (worker.job, demand)
        workers = len(self.workers) - len(self._actors.actors)
        share = -(-ready.count(lane) // max(1, min(workers, self._pool.slots(demand))))
        head = ready.peek(lane)
        each_s = self.means.get(head.function, 0.0) if head is not None else 0.0
        # Below `split_s` a fair share costs more than it gains.
        least = int(config.split_s / each_s) if each_s else 1
        room = min(max(share, least), config.ahead_tasks_max)
        batch: list[Assignment] = []
        while room > 0:
            spec = ready.peek(lane)
            if spec is None:
                break
            mean = self.means.get(spec.function)
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
            if inputs is None:
                continue
            room -= part.count
            worker.assigned.append(part)
            worker.ahead_s += part.count * (mean or 0.0)
            self.assigned += part.count
            self.teach(worker, part.function)
            batch.append(Assignment(part, inputs))
        if batch:
            self._ctx.send(worker.address, RunTasks(batch))

    def teach(self, worker: Worker, function: bytes) -> None:
        """Send a worker a function that it was not sent yet."""
        if function not in worker.functions:
            worker.functions.add(function)
            self._ctx.send(worker.address, FunctionBlob(function, self._inputs.functions[function]))

    def _begin_actors(self) -> None:
        """Give queued actors resources and workers, oldest first."""
        queued = self._actors.queued
        waiting: list[Actor] = []
        while queued and self._idle:
            actor = queued.popleft()
            fits = self._pool.fits(actor.spec.demand)
            worker = self._take_idle(job_of_task(actor.spec)) if fits else None
            if worker is not None:
                worker.demand = actor.spec.demand
                worker.state = State.LEASED
                self._pool.take(worker.demand)
                self._actors.begin(actor, worker)
            else:
                waiting.append(actor)
        queued.extendleft(reversed(waiting))
        # Nothing here may look at all queued actors each time that a worker is ready.
        if len(queued) <= self._starting:
            return
        # Those that fit one by one may not fit together: none starts in vain for long,
        # idle workers take tasks as well.
        fitting = sum(self._pool.fits(actor.spec.demand) for actor in queued)
        for _ in range(fitting - self._starting):
            self._start_worker()

    def _start_workers_for(self, lane: Lane) -> None:
        """Start as many workers as waiting tasks could use and none is idle for."""
        demand = lane[1]
        room = self._pool.room(demand, self.ready.count(lane))
        if not cpu_part(demand):
            # Such tasks are not bounded by CPUs; those that wait do not count.
            running = sum(
                w.state is State.LEASED and not cpu_part(w.demand) for w in self.workers.values()
            )
            room = min(room, WORKERS_WITHOUT_CPU_MAX - running)
        for _ in range(room - self._starting):
            self._start_worker()

    def _start_worker(self) -> None:
        if len(self._idle) > self._idle_max:
            # They are of other jobs than the one that needs this worker.
            unused = next((w for w in self._idle if not self._objects.owns(w.address)), None)
            if unused is not None:
                self._idle.remove(unused)
                self._stop(unused)
        self._names += 1
        self._starting += 1
        address = f"worker:{self._node}.{self._names}"
        self.workers[address] = Worker(address, self._names)
        self._ctx.send(f"pool:{self._node}", StartWorker(address))

    def _watch_stuck(self) -> None:
        """Have a look later if a task may wait behind a longer one than thought."""
        if self._watch is None and self._idle and self.assigned > self._leased():
            self._start_watch(1)

    def _start_watch(self, look: int) -> None:
        quiet_s = STUCK_AHEADS * self._config.ahead_s
        self._watch = self._ctx.after(quiet_s, lambda: self._on_watch(look))

    def _leased(self) -> int:
        return len(self.workers) - len(self._idle) - len(self._actors.actors)

    def _on_watch(self, look: int) -> None:
        self._watch = None
        quiet_s = STUCK_AHEADS * self._config.ahead_s
        if self.ready.size or self._ctx.now() - self._last_done_s < quiet_s:
            return
        if look == 1:
            # It may be this scheduler that was held up, and what it handed out
            # has only just left: look again.
            self._start_watch(2)
            return
        for worker in self.workers.values():
            ahead = sum(spec.count for spec in worker.assigned) - 1
            if ahead > 0 and not worker.taking_back and self._pool.fits(worker.demand):
                worker.taking_back = True
                self._ctx.send(worker.address, TakeBack())

    # -- what workers say ------------------------------------------------------

    def on_worker_ready(self, source: str, message: WorkerReady) -> None:
        worker = self.workers[source]
        worker.pid = message.pid
        self._starting -= 1
        self._make_idle(worker)

    def _make_idle(self, worker: Worker) -> None:
        worker.demand = ""
        worker.ahead_s = 0.0
        excess = not self.ready.size and len(self._idle) > self._idle_max
        if excess and not self._objects.owns(worker.address):
            # Workers that stood in for blocked ones are not kept for ever, unless
            # values depend on them.
            self._stop(worker)
            return
        worker.state = State.IDLE
        self._idle.append(worker)

    def _stop(self, worker: Worker) -> None:
        del self.workers[worker.address]
        self._ctx.send(f"pool:{self._node}", StopWorker(worker.address))
        self._custody.worker_gone(worker.address)

    def on_done(self, source: str, message: TasksDone) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its tasks run elsewhere
        self._last_done_s = self._ctx.now()
        self._results.gather()
        for result in message.results:
            if result.refs is not None:
                self._custody.reported(source, result)
        if worker.actor:
            self._actors.on_done(worker, message.results, message.timings)
        else:
            timings = iter(message.timings)
            for result in message.results:
                if result.calls:
                    self._done_together(worker, result, timings)
                    continue
                timing = next(timings)
                spec = worker.assigned[0]
                self._timeline.ran(worker.number, timing, spec, result)
                assert result.array == spec.array, "out of order"
                owner = self._take_off(worker, result.start, result.count, timing.elapsed_s)
                if result.status == RETRY:
                    self._run_again(spec, result)
                else:
                    self._results.finish(result, owner)
        self._results.tell()
        if not worker.actor:
            self._drain(worker)

    def _done_together(self, worker: Worker, run: RangeResult, timings: Iterator[Timing]) -> None:
        """Single tasks have ended one after another, with small values."""
        owners = []
        ran = self._timeline.ran
        for array in split(run.calls):
            timing = next(timings)
            spec = worker.assigned[0]
            assert spec.array == array, "out of order"
            ran(worker.number, timing, spec, run)
            owners.append(self._take_off(worker, spec.start, 1, timing.elapsed_s))
        if len(set(owners)) == 1:
            self._results.finish_together(run, owners[0])
            return
        for result, owner in zip(results_of(run), owners, strict=True):
            self._results.finish(result, owner)

    def _run_again(self, spec: TaskSpec, result: RangeResult) -> None:
        """Queue elements again whose own errors count as failures of the system."""
        self._ctx.send("gcs", Event("task_retried", spec.name, "it raised"))
        for index in range(result.start, result.start + result.count):
            self._timeline.again(spec.array, index)
            one = part_of(spec, index, 1)
            one.retries = spec.retries - 1 if spec.retries > 0 else -1
            self.ready.push(one)

    def on_items(self, source: str, message: StreamItems) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its task runs elsewhere
        self._last_done_s = self._ctx.now()
        for result in message.results:
            if result.refs is not None:
                self._custody.reported(source, result)
            if worker.actor:
                self._actors.on_item(worker, result)
                continue
            # Not always the first: those before it may be done, and not reported yet.
            owner = next(s.owner for s in worker.assigned if s.array == result.array)
            self._results.finish(result, owner)

    def _take_off(self, worker: Worker, start: int, count: int, elapsed_s: float) -> str:
        """Take elements off the worker's list, into the averages; return their owner."""
        spec = worker.assigned[0]
        assert spec.start == start, "out of order"
        if count == spec.count:
            worker.assigned.popleft()
        else:
            end = spec.start + spec.count
            done = start + count
            worker.assigned[0] = part_of(spec, done, end - done)
        self.assigned -= count
        each_s = elapsed_s / count
        mean = self.means.get(spec.function)
        ahead_s = worker.ahead_s - count * (mean or 0.0)
        worker.ahead_s = ahead_s if ahead_s > 0.0 else 0.0
        # A range of n counts as n samples, but never wipes out all the past.
        weight = _WEIGHTS[min(count, 10)]
        self.means[spec.function] = each_s if mean is None else mean + weight * (each_s - mean)
        past = self.mean_task_s
        self.mean_task_s = past + weight * (each_s - past) if past else each_s
        return spec.owner

    def _drain(self, worker: Worker) -> None:
        """Give a worker more, or take its lease away."""
        if worker.state is not State.LEASED:
            return
        if worker.assigned:
            return
        # The lease ends here and may begin again in this turn's dispatch, so
        # that the oldest waiting demand and resuming tasks come first.
        self._pool.give(worker.demand)
        self._make_idle(worker)

    def on_taken_back(self, source: str, message: TakenBack) -> None:
        """Ranges come back unstarted: whole ones, and the tail of the running one."""
        worker = self.workers.get(source)
        if worker is None:
            return
        worker.taking_back = False
        staying: deque[TaskSpec] = deque()
        tails: list[TaskSpec] = []
        back = deque(message.ranges)
        for spec in worker.assigned:
            returned = self._returned_of(spec, back)
            if not returned:
                staying.append(spec)
                continue
            self.assigned -= returned
            if returned < spec.count:
                staying.append(part_of(spec, spec.start, spec.count - returned))
            else:
                self._unpin_inputs(spec, source)
            tails.append(part_of(spec, spec.start + spec.count - returned, returned))
        for tail in reversed(tails):
            self.ready.push_front(tail)
        worker.assigned = staying
        worker.ahead_s = sum(s.count * self.means.get(s.function, 0.0) for s in staying)
        self._canceller.on_taken_back(worker)
        self._drain(worker)

    @staticmethod
    def _returned_of(spec: TaskSpec, back: deque[tuple[bytes, int, int]]) -> int:
        """Return how many elements at the end of `spec` came back; take that off `back`.

        Both are in the order in which they were given, and one range may be
        among them twice: its parent ran twice.
        """
        if not back:
            return 0
        array, start, count = back[0]
        if array != spec.array or start + count != spec.start + spec.count or start < spec.start:
            return 0
        back.popleft()
        return count

    def _unpin_inputs(self, spec: TaskSpec, worker: str) -> None:
        for oid in spec.deps:
            self._objects.unpin(oid, worker)

    def on_blocked(self, source: str, message: Blocked) -> None:
        worker = self.workers[source]
        if worker.state is State.LEASED:
            worker.state = State.BLOCKED
            self._pool.give(cpu_part(worker.demand))

    def on_unblocked(self, source: str, message: Unblocked) -> None:
        worker = self.workers[source]
        if worker.state is State.BLOCKED:
            worker.state = State.RESUMING
            self._resuming.append(worker)

    def _resume(self) -> None:
        """Give CPUs back to tasks that need not wait any more, oldest first."""
        while self._resuming:
            worker = self._resuming[0]
            cpus = cpu_part(worker.demand)
            if not self._pool.fits(cpus):
                return
            self._resuming.popleft()
            self._pool.take(cpus)
            worker.state = State.LEASED
            self._ctx.send(worker.address, Resume())
            if not worker.actor:
                # The task may have ended while another of its threads waited.
                self._drain(worker)

    def end_job(self, job: bytes) -> list[Worker]:
        """Take a job's ranges out; return its workers, which are to be ended."""
        for spec in self.ready.withdraw(lambda spec: job_of(spec.array) == job):
            self._inputs.unclaim(spec)
        for function in [function for function in self.means if job_of(function) == job]:
            del self.means[function]
        workers = [worker for worker in self.workers.values() if worker.job == job]
        for worker in workers:
            self.assigned -= sum(spec.count for spec in worker.assigned)
            worker.assigned.clear()
        return workers

    def died(self, worker: Worker, reason: str) -> None:
        """Take the lease of a worker away that is no longer listed; run again what it had."""
        if worker.state is State.STARTING:
            self._starting -= 1
        elif worker.state is State.IDLE:
            self._idle.remove(worker)
        elif worker.state is State.LEASED:
            self._pool.give(worker.demand)
        elif worker.state in (State.BLOCKED, State.RESUMING):
            for part in worker.demand.split(","):
                if part and part != cpu_part(worker.demand):
                    self._pool.give(part)
            if worker.state is State.RESUMING:
                self._resuming.remove(worker)
        self._ctx.send("gcs", Event("worker_died", worker.address, reason))
        if worker.actor:
            self._actors.on_worker_died(worker, reason)
            return
        self._retry(worker, reason)
        if worker.state is not State.STARTING and len(self.workers) < self._prestart:
            self._start_worker()

    def _retry(self, worker: Worker, reason: str) -> None:
        """Queue a dead worker's ranges again, the running one with less retries."""
        ranges = list(worker.assigned)
        for spec in ranges:
            self.assigned -= spec.count
        for spec in reversed(ranges[1:]):
            self.ready.push_front(spec)
        if not ranges:
            return
        running = ranges[0]
        if worker.kill_error is not None:
            self._inputs.fail(running, worker.kill_error)
            return
        if worker.killed_for is not None:
            # One that had only just begun behind it keeps its retries.
            left, cancelled = cut(running, worker.killed_for)
            if cancelled is not None:
                self._inputs.fail(cancelled, cancelled_error(cancelled.name))
            for part in reversed(left):
                self.ready.push_front(part)
            return
        if running.retries == 0:
            text = f"{worker.address} died while it ran {running.name}: {reason}"
            error = ObjectValue(b"", SYSTEM_ERROR, f"WorkerCrashedError: {text}".encode())
            self._inputs.fail(running, error)
            return
        self._ctx.send("gcs", Event("task_retried", running.name, reason, running.count))
        # One by one: of a range, only one element brought the worker down.
        for index in reversed(range(running.start, running.start + running.count)):
            self._timeline.again(running.array, index)
            one = part_of(running, index, 1)
            one.retries = running.retries - 1 if running.retries > 0 else -1
            self.ready.push_front(one)
