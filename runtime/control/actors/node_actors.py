"""The actors of one node: created, rebuilt, called in order, ended.

The life of an actor here, from `AssignTasks` with its creation::

    WAITING   for its class and its constructor's arguments
       ↓
    QUEUED    for its resources and a worker of its own
       ↓
    CREATING  its constructor runs ──raised──> ended for good
       ↓
    RESTORING (not the first time) its last checkpoint, then the calls logged since
       ↓
    ALIVE     ──its worker died──> ended; the GCS decides whether it starts again
       ├──────it exits itself────> ended for good, once its worker has ended
       └─no client has a handle──> ended; its worker ends after the calls that run

The parts of `NodeActors`::

    ActorCalls ──> `CallQueue` ──> worker ──TasksDone──> `CallQueue` ──> log, callers
                      ↑                                       │
    ActorLineage ──> `ActorReconstruction` <────replayed──────┘

Each actor is an `ActorRecord`, which the parts share, and has a `ReplyCache`.

Cost: a call is one dictionary entry and a share of three messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from raytwin.runtime.control.actors.actor_reconstruction import ActorReconstruction
from raytwin.runtime.control.actors.actor_record import ActorRecord, ActorState
from raytwin.runtime.control.actors.call_queue import CallQueue
from raytwin.runtime.control.actors.node_services import NodeServices
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.task_ranges import job_of_task
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    READY_METHOD,
    USER_ERROR,
    ActorCalls,
    ActorFailed,
    ActorLineage,
    Assignment,
    CallsDrained,
    CallsLogged,
    CallsRan,
    CancelCall,
    DrainCalls,
    Exit,
    ExitActor,
    FetchLineage,
    ObjectValue,
    RangeResult,
    RunTasks,
    SaveActor,
    StopActor,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    DeathCause,
    Failure,
    brief,
    unpack,
)
from raytwin.runtime.control.observability.timeline import ACTOR, CALL, REPLAY


class NodeActors:
    """Runs the actors of one node, each on a worker of its own."""

    def __init__(self, ctx: Context, node: int, services: NodeServices) -> None:
        self._ctx = ctx
        self._node = node
        self._services = services
        self.actors: dict[bytes, ActorRecord] = {}
        self.queued: deque[ActorRecord] = deque()
        self.unsent: dict[bytes, ActorRecord] = {}
        """Actors that have something to send at the end of this turn."""
        self.calls = CallQueue(ctx, node, services, self.unsent, self._end_for_good)
        self.reconstruction = ActorReconstruction(
            ctx, node, services, self.calls, self._end_for_good
        )

    def handlers(self) -> Handlers:
        return {
            ActorCalls: lambda _, m: self.on_calls(m),
            CancelCall: lambda _, m: self.cancel(m),
            ActorLineage: lambda _, m: self.on_lineage(m),
            CallsLogged: lambda _, m: self.on_logged(m),
            StopActor: lambda _, m: self.on_stop(m),
            DrainCalls: self.on_drain,
            SaveActor: lambda s, m: self.on_save(self._services.leases.workers[s], m),
            ExitActor: lambda s, m: self.on_exit(self._services.leases.workers[s], m),
            CallsRan: lambda s, m: self.on_calls_ran(self._services.leases.workers[s], m),
        }

    # -- actors that begin -------------------------------------------------------

    def accept(self, spec: TaskSpec) -> bool:
        """Accept an actor that was placed here; return whether to start it."""
        assert spec.extra is not None and spec.extra.actor is not None
        info = spec.extra.actor
        known = self.actors.get(spec.array)
        if known is not None:
            if known.incarnation >= info.incarnation:
                return False
            self._drop(known, "it was started elsewhere", restarts=True)
        actor = self.actors[spec.array] = ActorRecord(spec, info)
        self._services.pool.reserve(spec.demand)
        if not actor.has_lineage:
            self._ctx.send("gcs", FetchLineage(actor.id, actor.incarnation))
        return True

    def ready(self, spec: TaskSpec) -> None:
        """An actor's class and the constructor's arguments are here."""
        actor = self._of_creation(spec)
        if actor is None:
            self._services.inputs.unclaim(spec)
        elif actor.state is ActorState.WAITING:
            actor.state = ActorState.QUEUED
            self.queued.append(actor)
        elif actor.state is ActorState.CREATING:
            self._create(actor)

    def pass_on(self, spec: TaskSpec) -> None:
        """Forget an actor that will run on another node, or not at all."""
        actor = self._of_creation(spec)
        if actor is not None:
            self._forget(actor)

    def creation_failed(self, spec: TaskSpec, error: ObjectValue) -> None:
        """An argument of an actor's constructor is an error."""
        actor = self._of_creation(spec)
        if actor is not None:
            result = RangeResult(actor.id, 0, 1, error.status, error.payload, self._node)
            self._on_created(actor, result)

    def first_queued(self, most: int) -> list[ActorRecord]:
        """Return up to `most` actors that wait for resources or a worker, the oldest first."""
        return list(islice(self.queued, most))

    def withdraw(
        self, chosen: Callable[[TaskSpec], bool], most: int | None = None
    ) -> list[TaskSpec]:
        """Forget queued actors that are `chosen`, up to `most`; return their creation tasks."""
        waiting = list(islice((actor for actor in self.queued if chosen(actor.spec)), most))
        for actor in waiting:
            self._forget(actor)
        return [actor.spec for actor in waiting]

    def begin(self, actor: ActorRecord, worker: Worker) -> None:
        """Give an actor, whose resources are taken, its worker."""
        actor.worker = worker
        worker.actor = actor.id
        actor.state = ActorState.CREATING
        self._create(actor)

    def _create(self, actor: ActorRecord) -> None:
        """Run the constructor; if an input was evicted meanwhile, `ready` does it later."""
        worker = actor.worker
        assert worker is not None
        values = self._services.inputs.take(actor.spec, worker.address)
        if values is not None:
            self._services.leases.send_function(worker, actor.spec.function)
            self._ctx.send(worker.address, RunTasks([Assignment(actor.spec, values)]))

    def _on_created(self, actor: ActorRecord, result: RangeResult) -> None:
        owner = actor.spec.owner
        if result.status != OK:
            why = self._creation_failure(actor, result)
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, why, True))
            self._services.results.finish_call(result, owner)
            self._drop(actor, "its constructor failed")
            return
        self._services.results.finish_call(result, owner)
        actor.state = ActorState.RESTORING
        self.reconstruction.restore(actor)

    @staticmethod
    def _creation_failure(actor: ActorRecord, result: RangeResult) -> Failure:
        if result.status == USER_ERROR:
            # An argument's error: errors of the constructor itself are system errors.
            return actor.death(ActorDeath(DeathCause.ARGUMENT_RAISED))
        return unpack(result.payload)

    # -- calls -------------------------------------------------------------------

    def on_calls(self, message: ActorCalls) -> None:
        """Take calls for an actor; the sender repeats those for another incarnation."""
        actor = self._current(message.actor, message.incarnation)
        if actor is None:
            return
        for spec in message.early:
            self.reconstruction.ask(actor, spec)
        self.calls.on_calls(actor, message)

    def cancel(self, message: CancelCall) -> None:
        """A caller cancels a call."""
        actor = self.actors.get(message.actor)
        if actor is not None:
            self.calls.cancel(actor, message.call)

    def on_done(self, worker: Worker, results: list[RangeResult], timings: list[Timing]) -> None:
        """The worker of an actor has sent results."""
        actor = self._of_worker(worker)
        if actor is None:
            for result in results:
                self._services.contained_references.drop(result)
            return  # the actor was stopped
        for result, timing in zip(results, timings, strict=True):
            self._reported(actor, result, timing)

    def _reported(self, actor: ActorRecord, result: RangeResult, timing: Timing) -> None:
        """Take an actor's report of its creation, of a call or of a batch of calls."""
        worker = actor.worker
        if worker is None:
            self._services.contained_references.drop(result)
            return  # an earlier result of the same report ended it
        ran = self._services.timeline.ran
        if result.calls:
            ran(worker.number, timing, actor.running[result.array].spec, result, CALL)
            self.calls.batch_ended(actor, result)
        elif result.array == actor.id:
            ran(worker.number, timing, actor.spec, result, ACTOR)
            self._on_created(actor, result)
        else:
            if actor.logged or result.status == NOT_BEGUN:
                # Only these cases may differ between the calls of a batch.
                actor.split_batch(result.array)
            if result.status != NOT_BEGUN:
                kind = REPLAY if result.array in actor.replaying else CALL
                spec = actor.running[result.array].spec
                ran(worker.number, timing, spec, result, kind)
            self._on_called(actor, result)

    def _on_called(self, actor: ActorRecord, result: RangeResult) -> None:
        assignment = actor.running.pop(result.array)
        spec = assignment.spec
        assert spec.extra is not None
        if spec.extra.method == READY_METHOD:
            self.calls.finish(actor, result, spec.owner, actor.id)
        elif result.status == NOT_BEGUN:
            self.calls.not_begun(actor, assignment)
        elif actor.replaying:
            self.reconstruction.replayed(actor, spec, result)
        else:
            self.calls.ended(actor, assignment, result)

    def on_calls_ran(self, worker: Worker, message: CallsRan) -> None:
        """The worker has answered direct calls; see `client.direct_calls`."""
        actor = self._of_worker(worker)
        if actor is not None:
            actor.executed += len(message.calls)
        for call, timing in zip(message.calls, message.timings, strict=True):
            spec = TaskSpec(call, 0, 1, b"", b"", "")
            result = RangeResult(call, 0, 1, OK, b"", self._node)
            self._services.timeline.ran(worker.number, timing, spec, result, CALL)

    def on_item(self, worker: Worker, item: RangeResult) -> None:
        """A running call has yielded an item."""
        actor = self._of_worker(worker)
        if actor is not None and item.array in actor.running:
            self.calls.yielded(actor, item)

    def on_lineage(self, message: ActorLineage) -> None:
        """Take a part of an actor's checkpoint and lineage."""
        actor = self._current(message.actor, message.incarnation)
        if actor is not None:
            self.reconstruction.on_lineage(actor, message)

    def on_logged(self, message: CallsLogged) -> None:
        """The GCS has logged calls."""
        self.calls.on_logged(self._current(message.actor, message.incarnation), message)

    def on_save(self, worker: Worker, message: SaveActor) -> None:
        """The actor has taken a checkpoint; its worker has reported the calls in it before."""
        actor = self._of_worker(worker)
        if actor is not None and actor.logged:
            self.calls.send_records(actor)
            self._ctx.send(
                "gcs", SaveActor(actor.id, actor.incarnation, message.upto, message.state)
            )

    def end_turn(self) -> None:
        """Give calls to workers, and log calls that took effect, one message an actor."""
        while self.unsent:
            dirty = list(self.unsent.values())
            self.unsent.clear()
            for actor in dirty:
                self.calls.send_calls(actor)
                self.calls.send_records(actor)

    # -- actors that end ---------------------------------------------------------

    def _end_for_good(self, actor: ActorRecord, why: ActorDeath) -> None:
        self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, why, True))
        self._drop(actor, brief(why))

    def end_job(self, job: bytes) -> None:
        """A job has ended: its actors end, and its calls do not begin any more."""
        for actor in [a for a in self.actors.values() if job_of_task(a.spec) == job]:
            self._drop(actor, "its job has ended")
        for actor in list(self.actors.values()):
            self.calls.end_job(actor, job)

    def on_worker_died(self, worker: Worker, reason: str) -> None:
        """The worker of an actor has died; the GCS decides whether the actor restarts."""
        actor = self._of_worker(worker)
        if actor is None:
            return
        self.calls.send_records(actor)
        if actor.leaving:
            self._has_left(actor)
            return
        death = ActorDeath(DeathCause.WORKER_DIED, detail=reason)
        self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, death))
        # The GCS logs the calls before it handles this message, or stops the actor.
        self._forget(actor, await_log=bool(actor.held))

    def on_exit(self, worker: Worker, message: ExitActor) -> None:
        """The actor ends itself, and its process with it."""
        if message.crashed:
            worker.restarts = self.may_restart(worker)
            self.on_worker_died(worker, message.reason.detail)
            return
        actor = self._of_worker(worker)
        if actor is not None:
            actor.leaving = message.reason
            self._kill_if_late(worker)

    def _has_left(self, actor: ActorRecord) -> None:
        """The worker of an actor that exited has ended."""
        assert actor.leaving is not None
        self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, actor.leaving, True))
        self.calls.send_held(actor)
        self._forget(actor)

    def on_stop(self, message: StopActor) -> None:
        """The GCS ends an incarnation."""
        actor = self.actors.get(message.actor)
        if actor is not None and actor.incarnation <= message.incarnation:
            if message.graceful and actor.worker is not None:
                self._end_gracefully(actor, actor.worker)
            else:
                self._drop(actor, "it was stopped", message.restarts)
        ended = self.calls.take_ended(message.actor, message.incarnation)
        if ended is not None:
            self.calls.discard(ended)

    def on_drain(self, source: str, message: DrainCalls) -> None:
        """Send a dead actor's held replies: a caller's node drains it before it fails calls."""
        actor = self.actors.get(message.actor)
        if actor is not None and actor.incarnation <= message.incarnation:
            self.calls.send_held(actor)
            self._drop(actor, "it was stopped")
        ended = self.calls.take_ended(message.actor, message.incarnation)
        if ended is not None:
            self.calls.send_held(ended)
        self._ctx.send(source, CallsDrained(message.actor))

    def _drop(self, actor: ActorRecord, reason: str, restarts: bool = False) -> None:
        """End an actor, and its worker with it; `restarts`: it starts again on some node."""
        worker = actor.worker
        self._forget(actor)
        if worker is not None:
            worker.restarts = restarts
            self._services.end_worker(worker, reason)

    def _end_gracefully(self, actor: ActorRecord, worker: Worker) -> None:
        """End an actor to which no client has a handle, after its constructor or calls that run."""
        self._forget(actor)
        self._ctx.send(worker.address, Exit())
        self._kill_if_late(worker)

    def _kill_if_late(self, worker: Worker) -> None:
        """Kill a worker that should end by itself, if that takes too long."""
        limit_s = self._services.config.actor_end_s

        def end() -> None:
            if self._services.leases.workers.get(worker.address) is worker:
                reason = f"it had not ended {limit_s:g} s after its actor"
                self._services.end_worker(worker, reason)

        self._ctx.after(limit_s, end)

    def _forget(self, actor: ActorRecord, await_log: bool = False) -> None:
        """Forget an actor; `await_log`: keep its replies that wait for the log."""
        del self.actors[actor.id]
        self._services.pool.unreserve(actor.spec.demand)
        self.unsent.pop(actor.id, None)
        actor.worker = None
        actor.ended = True
        actor.replies.clear()
        if await_log:
            self.calls.await_log(actor)
        else:
            self.calls.discard(actor)
        if actor in self.queued:
            self.queued.remove(actor)
            self._services.inputs.unclaim(actor.spec)
        self.calls.unclaim(actor)

    # -- look-ups ----------------------------------------------------------------

    def _of_creation(self, spec: TaskSpec) -> ActorRecord | None:
        assert spec.extra is not None and spec.extra.actor is not None
        return self._current(spec.array, spec.extra.actor.incarnation)

    def _of_worker(self, worker: Worker) -> ActorRecord | None:
        actor = self.actors.get(worker.actor)
        return actor if actor is not None and actor.worker is worker else None

    def _current(self, actor: bytes, incarnation: int) -> ActorRecord | None:
        found = self.actors.get(actor)
        return found if found is not None and found.incarnation == incarnation else None

    def is_repeating(self, worker: Worker) -> bool:
        """Whether an actor's worker may repeat submissions of an earlier incarnation."""
        actor = self.actors.get(worker.actor)
        return actor is not None and actor.incarnation > 0

    def may_restart(self, worker: Worker) -> bool:
        """Whether the actor of a dead worker restarts, as far as this node knows."""
        actor = self._of_worker(worker)
        if actor is None:
            return worker.restarts
        if actor.leaving is not None:
            return False
        return actor.info.max_restarts < 0 or actor.incarnation < actor.info.max_restarts

    def is_leaving(self, worker: Worker) -> bool:
        """Whether a worker's actor ends itself."""
        actor = self._of_worker(worker)
        return actor is not None and actor.leaving is not None

    def rows(self) -> list[list[object]]:
        """Return a row of each, for the query ``actors``."""
        return [
            [
                a.spec.name, self._node, a.incarnation, a.state.value, a.executed, a.replayed,
                *(("", 0) if a.worker is None else (a.worker.address, a.worker.pid)),
            ]
            for a in self.actors.values()
        ]  # fmt: skip
