"""The dispatcher handles the reports of a node's workers, and retries the tasks of dead ones.

The life of a worker::

    STARTING ──WorkerReady──> IDLE ──a demand fits──> LEASED ──nothing left──> IDLE
                                                      │    ↑
                                              Blocked │    │ Unblocked
                                                      ↓    │
                                                      BLOCKED

`WorkerLeases` assigns ranges, `WorkerPool` starts and stops the workers. A task that blocks gives
its CPUs back, and the worker gives back the ranges behind it. An unblocked task continues at once,
even if its CPUs are in use by then; the node starts nothing else until all running tasks fit again.
The node runs the ranges of a dead worker again: the running range element by element, since only
one of its elements can have crashed the worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.call_batches import results_of, split
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.core.resources import NumberedPool, cpu_part
from raytwin.runtime.control.core.task_ranges import is_crash_loop, job_of_task, part_of
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.local_scheduler.blocked_tasks import BlockedTasks
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.local_scheduler.worker_leases import WorkerLeases
from raytwin.runtime.control.local_scheduler.worker_pool import WorkerPool
from raytwin.runtime.control.messages import (
    RETRY,
    Blocked,
    Event,
    RangeResult,
    Resume,
    StreamItems,
    TakenBack,
    TaskExtra,
    TasksDone,
    TaskSpec,
    Timing,
    Unblocked,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import WorkerCrash
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.observability.timeline import RangeLog
from raytwin.runtime.control.ownership.contained_references import ContainedReferences


class Dispatcher:
    """Handles the reports of one node's workers, and queues unfinished ranges again."""

    def __init__(
        self,
        ctx: Context,
        resources: NumberedPool,
        ready: ReadyQueue,
        blocked: BlockedTasks,
        pool: WorkerPool,
        leases: WorkerLeases,
        objects: NodeObjects,
        inputs: TaskInputs,
        results: ResultManager,
        actors: NodeActors,
        canceller: Canceller,
        timeline: RangeLog,
        contained_references: ContainedReferences,
    ) -> None:
        self._ctx = ctx
        self._resources = resources
        self.ready = ready
        self._blocked = blocked
        self._pool = pool
        self.workers = pool.workers
        self.leases = leases
        self._objects = objects
        self._inputs = inputs
        self._results = results
        self._actors = actors
        self._canceller = canceller
        self._timeline = timeline
        self._contained_references = contained_references

    def handlers(self) -> Handlers:
        return {
            WorkerReady: self.on_worker_ready,
            TasksDone: self.on_done,
            StreamItems: self.on_items,
            TakenBack: self.on_taken_back,
            Blocked: self.on_blocked,
            Unblocked: self.on_unblocked,
        }

    @property
    def queue(self) -> int:
        """Elements that wait or run on this node."""
        return self.ready.size + self._inputs.waiting + self.leases.assigned

    def on_worker_ready(self, source: str, message: WorkerReady) -> None:
        worker = self.workers[source]
        self._pool.on_ready(worker, message.pid)
        self._pool.make_idle(worker, bool(self.ready.size))

    def on_done(self, source: str, message: TasksDone) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its tasks run elsewhere
        self.leases.on_report(worker)
        worker.answer = message.results[0] if message.answered else None
        self._results.gather()
        for result in message.results:
            if result.refs is not None:
                self._contained_references.reported(source, result)
        if worker.actor:
            self._actors.on_done(worker, message.results, message.timings)
        else:
            timings = iter(message.timings)
            for result in message.results:
                if result.calls:
                    self._batch_done(worker, result, timings)
                    continue
                timing = next(timings)
                spec = worker.assigned[0]
                self._timeline.ran(worker.number, timing, spec, result)
                assert result.array == spec.array, "out of order"
                owner = self.leases.remove_ended(
                    worker, result.start, result.count, timing.elapsed_s
                )
                if result.status == RETRY:
                    self._run_again(worker, spec, result)
                else:
                    self._made(spec, owner)
                    self._results.finish(result, owner, message.answered)
            if worker.cancels:
                self._canceller.on_back(worker)
        self._results.flush()
        self.leases.drain(worker)

    def _batch_done(self, worker: Worker, batch: RangeResult, timings: Iterator[Timing]) -> None:
        """Single tasks have ended one after another, with small values."""
        owners = []
        ran, remove_ended = self._timeline.ran, self.leases.remove_ended
        for array in split(batch.calls):
            timing = next(timings)
            spec = worker.assigned[0]
            assert spec.array == array, "out of order"
            ran(worker.number, timing, spec, batch)
            owner = remove_ended(worker, spec.start, 1, timing.elapsed_s)
            owners.append(owner)
            if spec.extra is not None:
                self._made(spec, owner)
        if len(set(owners)) == 1:
            self._results.finish_batch(batch, owners[0])
            return
        for result, owner in zip(results_of(batch), owners, strict=True):
            self._results.finish(result, owner)

    def on_items(self, source: str, message: StreamItems) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its task runs elsewhere
        self.leases.on_report(worker)
        for result in message.results:
            if result.refs is not None:
                self._contained_references.reported(source, result)
            if worker.actor:
                self._actors.on_item(worker, result)
                continue
            # Not always the first range: earlier ones may have ended without a report yet.
            spec = next(s for s in worker.assigned if s.array == result.array)
            self._made(spec, spec.owner)
            self._results.finish(result, spec.owner)

    def _made(self, spec: TaskSpec, owner: str) -> None:
        """Tell the result manager which values a run after the first has made."""
        if spec.extra is not None and spec.extra.attempt:
            self._results.made_again(spec.array, owner)

    def _run_again(self, worker: Worker, spec: TaskSpec, result: RangeResult) -> None:
        """Queue elements again whose own errors count as failures of the system."""
        self._ctx.send("gcs", Event("task_retried", spec.name, "it raised"))
        for index in range(result.start, result.start + result.count):
            self._timeline.again(spec.array, index)
            one = part_of(spec, index, 1)
            one.retries = spec.retries - 1 if spec.retries > 0 else -1
            assert spec.extra is not None, "a task without `retry_on` asks for a retry"
            one.extra = replace(_begun(spec, worker), tries=spec.extra.tries + 1)
            self.ready.push(one)

    def on_taken_back(self, source: str, message: TakenBack) -> None:
        """Queue ranges that a worker gives back: whole ones, and the tail of the running one."""
        worker = self.workers.get(source)
        if worker is None:
            return
        worker.answered = message.answers or worker.answered
        staying: deque[TaskSpec] = deque()
        tails: list[TaskSpec] = []
        back = deque(message.ranges)
        for spec in worker.assigned:
            returned = self._returned_of(spec, back)
            if not returned:
                staying.append(spec)
                continue
            self.leases.assigned -= returned
            if returned < spec.count:
                staying.append(part_of(spec, spec.start, spec.count - returned))
            else:
                self._unpin_inputs(spec, source)
            tails.append(part_of(spec, spec.start + spec.count - returned, returned))
        for tail in reversed(tails):
            self.ready.push_front(tail)
        worker.assigned = staying
        worker.ahead_s = sum(
            s.count * self.leases.times.means.get(s.function, 0.0) for s in staying
        )
        self._canceller.on_back(worker)
        self.leases.drain(worker)

    @staticmethod
    def _returned_of(spec: TaskSpec, back: deque[tuple[bytes, int, int]]) -> int:
        """Return how many elements at the end of `spec` came back; take that off `back`.

        Both are in the order of assignment. A range is among them twice if its parent ran twice.
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
            self._objects.memory.unpin(oid, worker)

    def on_blocked(self, source: str, message: Blocked) -> None:
        worker = self.workers[source]
        if worker.state is State.LEASED:
            worker.state = State.BLOCKED
            self._resources.give(cpu_part(worker.demand))
            self._blocked.add(worker)

    def on_unblocked(self, source: str, message: Unblocked) -> None:
        worker = self.workers[source]
        if worker.state is State.BLOCKED:
            worker.state = State.LEASED
            self._resources.retake(cpu_part(worker.demand))
            self._blocked.remove(worker)
            self.leases.on_report(worker)
            self._ctx.send(source, Resume())

    def end_job(self, job: bytes) -> list[Worker]:
        """Take a job's ranges out; return its workers, which are to be ended."""
        for spec in self.ready.take_out(lambda spec: spec if job_of(spec.array) == job else None):
            self._inputs.unclaim(spec)
        self.leases.times.forget(lambda function: job_of(function) == job)
        self._blocked.end_job(job)
        workers = [worker for worker in self.workers.values() if worker.job == job]
        for worker in workers:
            self.leases.assigned -= sum(spec.count for spec in worker.assigned)
            worker.assigned.clear()
        return workers

    def runs_again(self, worker: Worker) -> bool:
        """Whether the task that a dead worker ran, if it is not an actor's, will run again."""
        if worker.kill_error is not None or not worker.assigned:
            return False
        if worker.kill_cause is not None:
            return self._canceller.spares_running(worker, worker.kill_cause)
        return worker.assigned[0].retries != 0

    def died(self, worker: Worker, reason: str) -> None:
        """End the lease of a worker that was removed, and run its ranges again."""
        if worker.state is State.IDLE:
            self._pool.idle.remove(worker)
        elif worker.state is not State.STARTING:
            if worker.state is State.BLOCKED:
                self._resources.retake(cpu_part(worker.demand))
                self._blocked.remove(worker)
            self._resources.end_lease(worker.demand, worker.units)
        self._ctx.send("gcs", Event("worker_died", worker.address, reason))
        if worker.answer is not None:
            self._results.deliver_again(worker.answer)
        if worker.actor:
            self._actors.on_worker_died(worker, reason)
            return
        self._retry(worker, reason)
        self._canceller.on_back(worker)
        self._pool.on_died(worker.state)

    def _retry(self, worker: Worker, reason: str) -> None:
        """Queue a dead worker's ranges again, the running one with less retries."""
        ranges = list(worker.assigned)
        worker.assigned.clear()
        for spec in ranges:
            self.leases.assigned -= spec.count
        for spec in reversed(ranges[1:]):
            self.ready.push_front(spec)
        if not ranges:
            return
        running = ranges[0]
        if worker.kill_error is not None:
            self._inputs.fail(running, worker.kill_error)
            return
        if worker.kill_cause is not None:
            # The range behind it that had only just begun keeps its retries.
            self.ready.push_front(running)
            self._canceller.cancel_waiting(worker.kill_cause)
            return
        if running.retries == 0:
            crash = WorkerCrash(running.name, worker.address, reason)
            self._inputs.fail(running, failed_value(crash))
            return
        self._ctx.send("gcs", Event("task_retried", running.name, reason, running.count))
        crashes = 1 + (0 if running.extra is None else running.extra.crashes)
        # One by one: only one element of the range can have crashed the worker.
        for index in reversed(range(running.start, running.start + running.count)):
            self._timeline.again(running.array, index)
            one = part_of(running, index, 1)
            one.retries = running.retries - 1 if running.retries > 0 else -1
            one.extra = replace(_begun(running, worker), crashes=crashes)
            self.ready.push_front(one)
        if is_crash_loop(crashes):
            detail = f"its process has died {crashes} times, and it runs again: {reason}"
            self._ctx.send(
                "gcs", Event("crash_loop", running.name, detail, job=job_of_task(running))
            )


def _begun(spec: TaskSpec, worker: Worker) -> TaskExtra:
    """Return the extra of a range that has begun on a worker and is to run again."""
    extra = spec.extra or TaskExtra()
    return replace(extra, begun=node_of(worker.address)) if extra.begun == -1 else extra
