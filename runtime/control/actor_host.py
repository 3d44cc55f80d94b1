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

Calls of one caller start in the order in which they were made: one whose inputs
are not here holds up those behind it, of that caller alone.

If the actor may restart, a call's result stays here until the call is in the
actor's lineage (`LogCalls`, `CallsLogged`): what anybody has seen can be rebuilt.
A call that comes again, from a caller that lost the answer or runs again, is
answered with the result it had and does not run.

Cost: a call is one dictionary entry and a share of three messages.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from runtime.control.actor_router import call_error
from runtime.control.call_memory import CallMemory
from runtime.control.call_runs import arrays_of, is_run, results_of, singles, split
from runtime.control.cancelled import cancelled_result
from runtime.control.context import Context, Timer
from runtime.control.ids import job_number, job_of, same_job
from runtime.control.jobs import job_of_task
from runtime.control.messages import (
    NOT_BEGUN,
    OK,
    READY_METHOD,
    SYSTEM_ERROR,
    USER_ERROR,
    ActorCalls,
    ActorFailed,
    ActorInfo,
    ActorLineage,
    ActorStarted,
    Assignment,
    CallRecord,
    CallsDrained,
    CallsLogged,
    CancelCall,
    CancelTask,
    DrainCalls,
    Event,
    ExitActor,
    FetchLineage,
    LogCalls,
    ObjectValue,
    RangeResult,
    RestoreActor,
    RunTasks,
    SaveActor,
    StopActor,
    TaskSpec,
    Timing,
)
from runtime.control.pieces import cut, record_bytes
from runtime.control.placement_groups import group_of
from runtime.control.timeline import ACTOR, CALL, REPLAY
from runtime.control.worker_table import Worker

if TYPE_CHECKING:
    from runtime.control.local_scheduler import LocalScheduler

REPLAY_PATIENCE_S = 1.0
"""How long a replayed call of a concurrent actor may hold up the next one."""
UNAVAILABLE = (
    "ActorUnavailableError: {}: the actor started anew before the call took effect, and the"
    " call has no retries left (max_task_retries)"
)


REPLAYED, CALLS_AGAIN = "calls_replayed", "calls_sent_again"
"""Events: calls repeated to rebuild an actor, counted by node and heartbeat; calls that an
earlier incarnation has not answered and the new one runs."""


class State(Enum):
    """Where an actor is in its life."""

    WAITING = "waiting"
    QUEUED = "queued"
    CREATING = "creating"
    RESTORING = "restoring"
    ALIVE = "alive"


class _Call:
    """A call that waits for its inputs or for its turn."""

    __slots__ = ("failed", "known", "missing", "rank", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.rank = 0
        self.known: dict[bytes, ObjectValue] = {}
        """Small inputs that are not to be looked for."""
        self.missing = 0
        self.failed: ObjectValue | None = None


class Actor:
    """One actor of this node."""

    def __init__(self, spec: TaskSpec, info: ActorInfo) -> None:
        self.spec = spec
        self.info = info
        self.id = spec.array
        self.incarnation = info.incarnation
        self.logged = info.max_restarts != 0
        self.state = State.WAITING
        self.worker: Worker | None = None
        self.callers: dict[str, deque[_Call]] = {}
        self.batch: list[Assignment] = []
        """Calls to hand to the worker with this turn."""
        self.running: dict[bytes, Assignment] = {}
        """Calls that the worker has, by array."""
        self.restored: dict[bytes, RangeResult] = {}
        """Results of calls that took effect in earlier incarnations."""
        self.executed = 0
        """Calls that took effect, those of earlier incarnations included."""
        self.replayed = 0
        self.checkpoint = RestoreActor(b"", 0)
        self.lineage: list[CallRecord] = []
        """What is to be replayed."""
        self.lineage_here = info.incarnation == 0
        self.to_replay: deque[CallRecord] = deque()
        """Of a concurrent actor: those that wait for the ones before them to end."""
        self.patience: Timer | None = None
        self.replaying: set[bytes] = set()
        self.records: list[CallRecord] = []
        """Calls to log with this turn."""
        self.held: deque[tuple[int, RangeResult, str]] = deque()
        """Results that wait for the log: (number of the call, result, owner)."""


class ActorHost:
    """Runs the actors of one node, on workers that its scheduler gives it."""

    def __init__(self, ctx: Context, node: int, scheduler: LocalScheduler) -> None:
        self._ctx = ctx
        self._node = node
        self._scheduler = scheduler
        self.actors: dict[bytes, Actor] = {}
        self.queued: deque[Actor] = deque()
        self.memory = CallMemory()
        self._dirty: dict[bytes, Actor] = {}
        self._ended: dict[tuple[bytes, int], Actor] = {}
        """By actor and incarnation: ended ones, whose results still wait for the log."""
        self._replays = 0
        """Replayed calls of all actors that the event log does not have yet."""

    # -- coming to life --------------------------------------------------------

    def accept(self, spec: TaskSpec) -> bool:
        """Take an actor that was placed here; return whether it is to be started."""
        assert spec.extra is not None and spec.extra.actor is not None
        info = spec.extra.actor
        known = self.actors.get(spec.array)
        if known is not None:
            if known.incarnation >= info.incarnation:
                return False
            self._drop(known, "it was started elsewhere")
        actor = self.actors[spec.array] = Actor(spec, info)
        if not actor.lineage_here:
            self._ctx.send("gcs", FetchLineage(actor.id, actor.incarnation))
        return True

    def ready(self, spec: TaskSpec) -> None:
        """Its class and arguments are here."""
        actor = self._of_creation(spec)
        if actor is None:
            self._scheduler.inputs.unclaim(spec)
        elif actor.state is State.WAITING:
            actor.state = State.QUEUED
            self.queued.append(actor)
        elif actor.state is State.CREATING:
            self._create(actor)

    def creation_failed(self, spec: TaskSpec, error: ObjectValue) -> None:
        """An argument of its constructor is an error."""
        actor = self._of_creation(spec)
        if actor is not None:
            result = RangeResult(actor.id, 0, 1, error.status, error.payload, self._node)
            self._on_created(actor, result)

    def withdraw(self, group: str) -> list[TaskSpec]:
        """Take out the actors that wait for room in a placement group, and return them."""
        waiting = [actor for actor in self.queued if group_of(actor.spec) == group]
        for actor in waiting:
            self._forget(actor)
        return [actor.spec for actor in waiting]

    def _of_creation(self, spec: TaskSpec) -> Actor | None:
        actor = self.actors.get(spec.array)
        assert spec.extra is not None and spec.extra.actor is not None
        if actor is None or actor.incarnation != spec.extra.actor.incarnation:
            return None
        return actor

    def begin(self, actor: Actor, worker: Worker) -> None:
        """Give an actor its worker; its resources are taken."""
        actor.worker = worker
        worker.actor = actor.id
        actor.state = State.CREATING
        self._create(actor)

    def _create(self, actor: Actor) -> None:
        """Run its constructor; if an input had to make room meanwhile, `ready` does it."""
        worker = actor.worker
        assert worker is not None
        values = self._scheduler.inputs.take(actor.spec, worker.address)
        if values is not None:
            self._scheduler.dispatcher.teach(worker, actor.spec.function)
            self._ctx.send(worker.address, RunTasks([Assignment(actor.spec, values)]))

    def _on_created(self, actor: Actor, result: RangeResult) -> None:
        owner = actor.spec.owner
        if result.status != OK:
            error = self._error_text(actor, result)
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, error, True))
            self._scheduler.results.finish_call(result, owner)
            self._drop(actor, "its constructor failed")
            return
        self._scheduler.results.finish_call(result, owner)
        actor.state = State.RESTORING
        self._restore(actor)

    @staticmethod
    def _error_text(actor: Actor, result: RangeResult) -> str:
        if result.status == USER_ERROR:
            # Its constructor's own error would be text.
            return (
                f"ActorDiedError: {actor.spec.name} did not start: an argument of its"
                " constructor is a task's error"
            )
        return result.payload.decode()

    # -- rebuilding ------------------------------------------------------------

    def on_lineage(self, message: ActorLineage) -> None:
        """A piece of what an actor is rebuilt from."""
        actor = self._current(message.actor, message.incarnation)
        if actor is None or actor.lineage_here:
            return
        if message.checkpoint:
            actor.checkpoint = RestoreActor(message.checkpoint, message.upto)
        actor.executed = message.upto
        for record in message.kept:
            actor.restored[record.task.array] = record.result
        for record in message.calls:
            actor.restored[record.task.array] = record.result
            actor.lineage.append(record)
        actor.lineage_here = not message.more
        self._restore(actor)

    def _restore(self, actor: Actor) -> None:
        if actor.state is not State.RESTORING or not actor.lineage_here:
            return
        assert actor.worker is not None
        if actor.checkpoint.state:
            self._ctx.send(actor.worker.address, actor.checkpoint)
            actor.checkpoint = RestoreActor(b"", 0)
        actor.replayed = len(actor.lineage)
        lineage, actor.lineage = actor.lineage, []
        actor.replaying = {record.task.array for record in lineage}
        if actor.info.max_concurrency > 1:
            actor.to_replay.extend(lineage)
            self._replay_next(actor)
        else:
            for record in lineage:
                self._queue(actor, record.task, "", record.values)
        if not lineage:
            self._on_restored(actor)

    def _replay_next(self, actor: Actor) -> None:
        """Replay one after another what once ran beside one another, in the order it ended.

        So the state is the one before where calls that overlapped did not depend on how
        they took turns; nothing records that.
        A call that does not end may wait for what a later one did before that
        ended: then the next one runs beside it.
        """
        if actor.patience is not None:
            actor.patience.cancel()
            actor.patience = None
        if actor.to_replay and self.actors.get(actor.id) is actor:
            record = actor.to_replay.popleft()
            actor.patience = self._ctx.after(REPLAY_PATIENCE_S, lambda: self._replay_next(actor))
            self._queue(actor, record.task, "", record.values)

    def _on_restored(self, actor: Actor) -> None:
        actor.state = State.ALIVE
        started = ActorStarted(actor.id, actor.incarnation, self._node, actor.replayed)
        self._ctx.send("gcs", started)

    # -- calls -----------------------------------------------------------------

    def on_calls(self, message: ActorCalls) -> None:
        """Calls for an actor; those for another incarnation are their sender's to repeat."""
        actor = self._current(message.actor, message.incarnation)
        if actor is None:
            return
        again = 0
        for number, spec in enumerate(message.tasks):
            if is_run(spec):
                if not self._take_run(actor, spec):
                    for single in singles([spec]):
                        self._take(actor, single)
                continue
            if self._take(actor, spec):
                again += number < message.again
        if again:
            self._ctx.send("gcs", Event(CALLS_AGAIN, actor.spec.name, f"{again} calls", again))
        for spec in message.probes:
            if not self._answer(actor, spec) and spec.array not in actor.running:
                error = call_error(spec, UNAVAILABLE.format(spec.name), self._node)
                self._scheduler.results.finish_call(error, spec.owner)

    def _take(self, actor: Actor, spec: TaskSpec) -> bool:
        """Take a call; return whether it is to run."""
        if self._scheduler.jobs.is_over(spec.array):
            return False
        if not (actor.info.name or same_job(spec.array, actor.id)):
            self._scheduler.results.finish_call(self._refused(actor, spec), spec.owner)
            return False
        if self._answer(actor, spec):
            return False
        self._queue(actor, spec, spec.owner, ())
        return True

    def _take_run(self, actor: Actor, run: TaskSpec) -> bool:
        """Hand a run of calls on if none of them waits or came before; else do nothing."""
        calls = arrays_of(run)
        if (
            self._scheduler.jobs.is_over(run.array)
            or not (actor.info.name or same_job(run.array, actor.id))
            or actor.callers.get(run.owner)
            or not actor.running.keys().isdisjoint(calls)
            or not actor.restored.keys().isdisjoint(calls)
            or self.memory.knows_any(calls)
        ):
            return False
        assignment = Assignment(run)
        actor.running.update(dict.fromkeys(calls, assignment))
        actor.batch.append(assignment)
        self._dirty[actor.id] = actor
        return True

    def _take_apart(self, actor: Actor, call: bytes) -> None:
        """What happens to one call of a run does not happen to the others."""
        run = actor.running.get(call)
        if run is None or not is_run(run.spec):
            return
        apart = [Assignment(spec) for spec in singles([run.spec])]
        for assignment in apart:
            if actor.running.get(assignment.spec.array) is run:
                actor.running[assignment.spec.array] = assignment
        if run in actor.batch:
            at = actor.batch.index(run)
            actor.batch[at : at + 1] = apart

    def _refused(self, actor: Actor, spec: TaskSpec) -> RangeResult:
        """Another job has come by a handle of an actor that has no name."""
        reason = (
            f"ActorOfOtherJobError: {actor.spec.name} belongs to job {job_number(actor.id)} and"
            f" has no name: job {job_number(spec.array)} has no access to it"
        )
        return call_error(spec, reason, self._node)

    def end_job(self, job: bytes) -> None:
        """A job has ended: its actors end, and its calls do not begin any more."""
        for actor in [a for a in self.actors.values() if job_of_task(a.spec) == job]:
            self._drop(actor, "its job has ended")
        for actor in list(self.actors.values()):
            for caller, calls in list(actor.callers.items()):
                left = [call for call in calls if job_of(call.spec.array) != job]
                if len(left) == len(calls) or not caller:
                    continue
                for call in calls:
                    if call not in left:
                        self._scheduler.inputs.unclaim(call.spec)
                        call.missing = -1  # what arrives for it later is not counted to zero
                calls.clear()
                calls.extend(left)
                self._advance(actor, caller)

    def cancel(self, message: CancelCall) -> None:
        """End a call that has not begun; have its worker cancel one that has."""
        actor = self.actors.get(message.actor)
        if actor is None or message.call in actor.replaying:
            return
        for caller, calls in actor.callers.items():
            call = next((call for call in calls if call.spec.array == message.call), None)
            if call is not None and caller:
                calls.remove(call)
                call.missing = -1  # what arrives for it later is not counted to zero
                self._scheduler.inputs.unclaim(call.spec)
                self._cancelled(actor, call.spec)
                self._advance(actor, caller)
                return
        self._take_apart(actor, message.call)
        assignment = actor.running.get(message.call)
        if assignment is not None and assignment in actor.batch:
            actor.batch.remove(assignment)
            self._not_begun(actor, assignment)
        elif assignment is not None and actor.worker is not None:
            self._ctx.send(actor.worker.address, CancelTask(message.call, 0, 1, False, False))

    def _not_begun(self, actor: Actor, assignment: Assignment) -> None:
        """A call was taken back from the actor's worker."""
        assert actor.worker is not None
        actor.running.pop(assignment.spec.array, None)
        for value in assignment.values:
            if value.size:
                self._scheduler.objects.unpin(value.object, actor.worker.address)
        self._cancelled(actor, assignment.spec)

    def _cancelled(self, actor: Actor, spec: TaskSpec) -> None:
        result = cancelled_result(spec, self._node)
        # Sent once more, it does not run either.
        self.memory.keep(actor.id, actor.incarnation, result)
        self._scheduler.results.finish_call(result, spec.owner, actor.id)

    def _answer(self, actor: Actor, spec: TaskSpec) -> bool:
        """Answer a call that took effect before; return whether it did."""
        result = actor.restored.get(spec.array)
        result = result or self.memory.find(actor.id, actor.incarnation, spec.array)
        if result is not None:
            self._scheduler.results.finish_call(result, spec.owner, actor.id, fresh=False)
            return True
        self._take_apart(actor, spec.array)
        running = actor.running.get(spec.array)
        if running is not None:
            running.spec.owner = spec.owner
        return running is not None

    def _queue(
        self, actor: Actor, spec: TaskSpec, caller: str, known: tuple[ObjectValue, ...]
    ) -> None:
        """Line a call up behind those of the same caller; `known` has small inputs."""
        calls = actor.callers.get(caller)
        if not spec.deps:
            if not calls:
                self._give(actor, spec, ())
            else:
                calls.append(_Call(spec))
            return
        call = _Call(spec)
        call.rank = self._scheduler.inputs.claim(spec)
        call.known = {value.object: value for value in known if not value.size}
        if calls is None:
            calls = actor.callers[caller] = deque()
        calls.append(call)
        self._want(actor, caller, call, [oid for oid in spec.deps if oid not in call.known])

    def _want(self, actor: Actor, caller: str, call: _Call, oids: list[bytes]) -> None:
        """Have inputs of a call brought here; it goes on when all are."""

        def arrived(value: ObjectValue) -> None:
            call.missing -= 1
            if value.status != OK:
                # Of several errors, that of the first argument: whichever came last would
                # be one or the other.
                at = call.spec.deps.index(value.object)
                if call.failed is None or at < call.spec.deps.index(call.failed.object):
                    call.failed = value
            if not call.missing:
                self._advance(actor, caller)

        call.missing += 1  # held until every input was asked for
        for oid in oids:
            call.missing += 1
            self._scheduler.objects.want(oid, arrived, call.rank)
        arrived(ObjectValue(b"", OK, b""))

    def _advance(self, actor: Actor, caller: str) -> None:
        calls = actor.callers.get(caller)
        while calls and not calls[0].missing:
            if self.actors.get(actor.id) is not actor:
                return  # it ended while the input was on its way, or for want of one
            call = calls[0]
            spec = call.spec
            left = self._scheduler.objects.have_left(spec.deps) if call.failed is None else []
            if left:
                # They had to make room while the call waited for its turn.
                self._want(actor, caller, call, left)
                return
            calls.popleft()
            self._scheduler.inputs.unclaim(spec)
            if call.failed is not None:
                self._input_failed(actor, spec, call.failed)
                continue
            values = []
            for oid in spec.deps:
                value = call.known.get(oid) or self._scheduler.objects.lookup(oid)
                if value is None:
                    # Released meanwhile: its owner has died.
                    gone = f"ObjectLostError: object {oid.hex()} is lost: its owner has died"
                    self._input_failed(actor, spec, ObjectValue(oid, 2, gone.encode()))
                    break
                values.append(value)
            else:
                self._give(actor, spec, tuple(values))
        if not calls:
            actor.callers.pop(caller, None)

    def _input_failed(self, actor: Actor, spec: TaskSpec, error: ObjectValue) -> None:
        if spec.array in actor.replaying:
            text = error.payload.decode() if error.status != USER_ERROR else "an input is an error"
            reason = f"ActorDiedError: it cannot be rebuilt: {text}"
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, reason, True))
            self._drop(actor, reason)
            return
        self._scheduler.results.finish_call(
            RangeResult(spec.array, 0, 1, error.status, error.payload, self._node, spec.returns),
            spec.owner,
        )

    def _give(self, actor: Actor, spec: TaskSpec, values: tuple[ObjectValue, ...]) -> None:
        assert actor.worker is not None
        for value in values:
            if value.size:
                self._scheduler.objects.pin(value.object, actor.worker.address)
        assignment = Assignment(spec, values)
        actor.running[spec.array] = assignment
        actor.batch.append(assignment)
        self._dirty[actor.id] = actor

    def on_done(self, worker: Worker, results: list[RangeResult], timings: list[Timing]) -> None:
        """A worker that is an actor reports."""
        actor = self.actors.get(worker.actor)
        if actor is None or actor.worker is not worker:
            for result in results:
                self._scheduler.custody.drop(result)
            return  # it was stopped; nobody waits for it
        for result, timing in zip(results, timings, strict=True):
            ran = self._scheduler.timeline.ran
            if result.calls:
                self._on_run(actor, result, timing)
            elif result.array == actor.id:
                ran(worker.number, timing, actor.spec, result, ACTOR)
                self._on_created(actor, result)
            else:
                if actor.logged or result.status == NOT_BEGUN:
                    # Of the others, all that matters is the same in the whole run.
                    self._take_apart(actor, result.array)
                spec = actor.running[result.array].spec
                kind = REPLAY if result.array in actor.replaying else CALL
                if result.status != NOT_BEGUN:
                    ran(worker.number, timing, spec, result, kind)
                self._on_called(actor, result)

    def _on_run(self, actor: Actor, run: RangeResult, timing: Timing) -> None:
        """Calls have ended one after another, with small values."""
        assert not actor.logged and actor.worker is not None
        calls = split(run.calls)
        running = list(map(actor.running.pop, calls))
        owners = {assignment.spec.owner for assignment in running}
        spec = running[0].spec
        self._scheduler.timeline.ran(actor.worker.number, timing, spec, run, CALL)
        actor.executed += run.count
        self.memory.keep(actor.id, actor.incarnation, run, calls)
        if len(owners) == 1:
            self._scheduler.results.finish_calls(run, spec.owner, actor.id)
            return
        for result, assignment in zip(results_of(run), running, strict=True):
            self._scheduler.results.finish_call(result, assignment.spec.owner, actor.id)

    def on_item(self, worker: Worker, result: RangeResult) -> None:
        """A call that runs has yielded; items are not logged, only the end of the stream."""
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker and result.array in actor.running:
            owner = actor.running[result.array].spec.owner
            self._scheduler.results.finish_item(result, owner, actor.id)

    def _on_called(self, actor: Actor, result: RangeResult) -> None:
        assignment = actor.running.pop(result.array)
        spec = assignment.spec
        assert spec.extra is not None
        if spec.extra.method == READY_METHOD:
            self._scheduler.results.finish_call(result, spec.owner, actor.id)
            return
        number = actor.executed
        actor.executed += 1
        if result.status == NOT_BEGUN:
            actor.executed -= 1
            self._not_begun(actor, assignment)
            return
        if actor.replaying:
            # Its caller has the small values, or asks again; large ones may have
            # been lost, and are made anew by this.
            actor.replaying.discard(result.array)
            self._replays += 1
            # So do calls whose values found no room this time: who waits for them hears it.
            kept = any(result.sizes) or result.status == SYSTEM_ERROR
            if not kept:
                self._scheduler.custody.drop(result)
            if not kept or self._scheduler.results.replayed(result, spec.owner, actor.id):
                actor.restored[result.array] = result
            if not actor.replaying:
                self._on_restored(actor)
            elif not actor.running:
                self._replay_next(actor)
            return
        self.memory.keep(actor.id, actor.incarnation, result)
        if not actor.logged:
            self._scheduler.results.finish_call(result, spec.owner, actor.id)
            return
        small = tuple(value for value in assignment.values if not value.size)
        # Its large values outlive the worker from here on: once it is logged they count.
        self._scheduler.places.seal(result)
        actor.records.append(CallRecord(spec, result, small))
        actor.held.append((number, result, spec.owner))
        self._dirty[actor.id] = actor

    def on_logged(self, message: CallsLogged) -> None:
        """Results may leave whose calls cannot be lost any more."""
        key = message.actor, message.incarnation
        actor = self._current(*key) or self._ended.get(key)
        if actor is not None:
            while actor.held and actor.held[0][0] < message.upto:
                _, result, owner = actor.held.popleft()
                self._scheduler.results.finish_call(result, owner, actor.id)
            if not actor.held:
                self._ended.pop(key, None)

    def on_save(self, worker: Worker, message: SaveActor) -> None:
        """The actor has written a checkpoint; its calls were reported before."""
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.logged:
            self._send_records(actor)
            self._ctx.send(
                "gcs", SaveActor(actor.id, actor.incarnation, message.upto, message.state)
            )

    def end_turn(self) -> None:
        """Hand out calls and log what took effect, one message an actor."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for actor in dirty.values():
                if actor.batch and actor.worker is not None:
                    self._ctx.send(actor.worker.address, RunTasks(actor.batch))
                    actor.batch = []
                self._send_records(actor)

    def _send_records(self, actor: Actor) -> None:
        if actor.records:
            first = actor.executed - len(actor.records)
            for piece in cut(actor.records, record_bytes):
                self._ctx.send("gcs", LogCalls(actor.id, actor.incarnation, first, piece))
                first += len(piece)
            actor.records = []

    # -- ends ------------------------------------------------------------------

    def end(self, actor: bytes, incarnation: int, reason: str) -> None:
        """End an actor for good: it cannot go on, and could not be rebuilt either."""
        ended = self._current(actor, incarnation)
        if ended is not None:
            text = f"ActorDiedError: {ended.spec.name} died: {reason}"
            self._ctx.send("gcs", ActorFailed(actor, incarnation, text, True))
            self._drop(ended, text)

    def on_heartbeat(self) -> None:
        """Tell the event log of replays: rarely, and before the node can be missed for long."""
        if self._replays:
            text = f"{self._replays} calls"
            self._ctx.send("gcs", Event(REPLAYED, f"node:{self._node}", text, self._replays))
            self._replays = 0

    def on_worker_died(self, worker: Worker, reason: str) -> None:
        """The GCS will say whether the actor starts again."""
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker:
            self._send_records(actor)
            text = f"ActorDiedError: {actor.spec.name} died: its worker ended: {reason}"
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, text))
            held, actor.held = actor.held, deque()
            self._forget(actor)
            if held:
                # The GCS logs them before it hears of this, or wants the actor stopped.
                actor.held = held
                self._ended[actor.id, actor.incarnation] = actor

    def on_exit(self, worker: Worker, message: ExitActor) -> None:
        """The actor ends itself; its process leaves."""
        if message.crashed:
            self.on_worker_died(worker, message.reason)
            return
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker:
            self._send_records(actor)
            reason = f"ActorDiedError: {actor.spec.name} has ended: {message.reason}"
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, reason, True))
            self._let_out(actor)
            self._forget(actor)

    def on_stop(self, message: StopActor) -> None:
        """The GCS wants an incarnation ended."""
        actor = self.actors.get(message.actor)
        if actor is not None and actor.incarnation <= message.incarnation:
            self._drop(actor, "it was stopped")
        ended = self._ended.pop((message.actor, message.incarnation), None)
        if ended is not None:
            self._discard(ended)

    def on_drain(self, source: str, message: DrainCalls) -> None:
        """An actor is dead for good: its callers on another node want to be sure of it."""
        actor = self.actors.get(message.actor)
        if actor is not None and actor.incarnation <= message.incarnation:
            self._let_out(actor)
            self._drop(actor, "it was stopped")
        ended = self._ended.pop((message.actor, message.incarnation), None)
        if ended is not None:
            self._let_out(ended)
        self._ctx.send(source, CallsDrained(message.actor))

    def _let_out(self, actor: Actor) -> None:
        """What was reported took effect, and nobody will ask for it again."""
        held, actor.held = actor.held, deque()
        for _, result, owner in held:
            self._scheduler.results.finish_call(result, owner, actor.id)

    def _drop(self, actor: Actor, reason: str) -> None:
        """End an actor, and its worker with it."""
        worker = actor.worker
        self._forget(actor)
        if worker is not None:
            self._scheduler.end_worker(worker, reason)

    def _forget(self, actor: Actor) -> None:
        del self.actors[actor.id]
        self._dirty.pop(actor.id, None)
        actor.worker = None
        self._discard(actor)
        if actor in self.queued:
            self.queued.remove(actor)
            self._scheduler.inputs.unclaim(actor.spec)
        for calls in actor.callers.values():
            for call in calls:
                self._scheduler.inputs.unclaim(call.spec)

    def _discard(self, actor: Actor) -> None:
        """What is not logged never took effect."""
        for _, result, _ in actor.held:
            self._scheduler.places.free(result)
            self._scheduler.custody.drop(result)
        actor.held.clear()

    def _current(self, actor: bytes, incarnation: int) -> Actor | None:
        found = self.actors.get(actor)
        return found if found is not None and found.incarnation == incarnation else None

    def rows(self) -> list[list[object]]:
        """Return [name, node, incarnation, state, calls that took effect, replayed] each."""
        return [
            [a.spec.name, self._node, a.incarnation, a.state.value, a.executed, a.replayed]
            for a in self.actors.values()
        ]
