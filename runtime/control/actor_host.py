"""The actors of one node: created, rebuilt, called in order, ended.

The life of an actor here, from `AssignTasks` with its creation::

    WAITING   for its class and its constructor's arguments
       ↓
    QUEUED    for its resources and a worker of its own
       ↓
    CREATING  its constructor runs ──raised──> ended for good
       ↓
    RESTORING (not the first time) its last checkpoint, then the calls logged since;
              who waits for what it did before has it by then (`early_answers`)
       ↓
    ALIVE     ──its worker died──> ended; the GCS decides whether it starts again
       ├────────it leaves────────> its worker's end is its own, for good
       └─────nobody calls it─────> ended; its worker leaves when what runs has ended

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
from collections.abc import Callable
from itertools import islice

from runtime.control.actor_rebuilding import Rebuilding
from runtime.control.actors_here import REPLAYED, Actor, State
from runtime.control.call_memory import comes_once
from runtime.control.call_runs import results_of, split
from runtime.control.errors import ActorDeath, DeathCause, Failure, Unsendable, brief, unpack
from runtime.control.ids import job_of
from runtime.control.jobs import job_of_task
from runtime.control.messages import (
    NOT_BEGUN,
    OK,
    READY_METHOD,
    SYSTEM_ERROR,
    USER_ERROR,
    ActorFailed,
    Assignment,
    CallRecord,
    CallsDrained,
    CallsLogged,
    DrainCalls,
    Event,
    ExitActor,
    FetchLineage,
    LogCalls,
    ObjectValue,
    RangeResult,
    RunTasks,
    SaveActor,
    StopActor,
    TaskSpec,
    Timing,
)
from runtime.control.pieces import cut, record_bytes
from runtime.control.timeline import ACTOR, CALL, REPLAY
from runtime.control.worker_table import Worker


class ActorHost(Rebuilding):
    """Runs the actors of one node, on workers that its scheduler gives it."""

    def accept(self, spec: TaskSpec) -> bool:
        """Take an actor that was placed here; return whether it is to be started."""
        assert spec.extra is not None and spec.extra.actor is not None
        info = spec.extra.actor
        known = self.actors.get(spec.array)
        if known is not None:
            if known.incarnation >= info.incarnation:
                return False
            self._drop(known, "it was started elsewhere", again=True)
        actor = self.actors[spec.array] = Actor(spec, info)
        self._scheduler.pool.hold(spec.demand)
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

    def pass_on(self, spec: TaskSpec) -> None:
        """It has to run elsewhere, or not at all: it is not here any more."""
        actor = self._of_creation(spec)
        if actor is not None:
            self._forget(actor)

    def creation_failed(self, spec: TaskSpec, error: ObjectValue) -> None:
        """An argument of its constructor is an error."""
        actor = self._of_creation(spec)
        if actor is not None:
            result = RangeResult(actor.id, 0, 1, error.status, error.payload, self._node)
            self._on_created(actor, result)

    def first_queued(self, most: int) -> list[Actor]:
        """Return up to `most` actors that wait for resources or a worker, the oldest first."""
        return list(islice(self.queued, most))

    def withdraw(
        self, chosen: Callable[[TaskSpec], bool], most: int | None = None
    ) -> list[TaskSpec]:
        """Take out such actors, up to `most` of those chosen, and return their creations."""
        waiting = list(islice((actor for actor in self.queued if chosen(actor.spec)), most))
        for actor in waiting:
            self._forget(actor)
        return [actor.spec for actor in waiting]

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
            why = self._why_unmade(actor, result)
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, why, True))
            self._scheduler.results.finish_call(result, owner)
            self._drop(actor, "its constructor failed")
            return
        self._scheduler.results.finish_call(result, owner)
        actor.state = State.RESTORING
        self._restore(actor)

    @staticmethod
    def _why_unmade(actor: Actor, result: RangeResult) -> Failure:
        if result.status == USER_ERROR:
            # Its constructor's own error would be the system's.
            return actor.death(ActorDeath(DeathCause.ARGUMENT_RAISED))
        return unpack(result.payload)

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
                        del actor.waiting[call.spec.array]
                        self._no_more(call)
                        actor.heirs.ended(call.spec.array)
                calls.clear()
                calls.extend(left)
                self._advance(actor, caller)

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
            elif result.array != actor.id and result.array not in actor.running:
                # Its owner has sent it to the worker, too, and that way was the shorter one.
                actor.early[result.array] = result, timing
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

    def _give(self, actor: Actor, spec: TaskSpec, values: tuple[ObjectValue, ...]) -> None:
        super()._give(actor, spec, values)
        if actor.early and spec.array in actor.early:
            # Its worker runs it once, whatever it is sent now; see `direct_calls`.
            result, timing = actor.early.pop(spec.array)
            assert actor.worker is not None
            self._scheduler.results.news.gather()
            self.on_done(actor.worker, [result], [timing])
            self._scheduler.results.news.tell(told_directly=True)

    def _on_run(self, actor: Actor, run: RangeResult, timing: Timing) -> None:
        """Calls have ended one after another, with small values."""
        assert not actor.logged and actor.worker is not None
        calls = split(run.calls)
        running = list(map(actor.running.pop, calls))
        owners = {assignment.spec.owner for assignment in running}
        spec = running[0].spec
        self._scheduler.timeline.ran(actor.worker.number, timing, spec, run, CALL)
        actor.executed += run.count
        if not all(map(comes_once, owners)):
            self.memory.keep(actor.id, actor.incarnation, run, calls)
        if len(owners) == 1 and not actor.heirs:
            self._scheduler.results.runs.finish_calls(run, spec.owner, actor.id)
            return
        for result, assignment in zip(results_of(run), running, strict=True):
            self._finish(actor, result, assignment.spec.owner, actor.id)

    def on_item(self, worker: Worker, result: RangeResult) -> None:
        """A call that runs has yielded; items are not logged, only the end of the stream."""
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker and result.array in actor.running:
            owner = actor.running[result.array].spec.owner
            self.items.add((actor.id, actor.incarnation, result.array), result)
            self._scheduler.results.finish_item(result, owner, actor.id)
            for heir in actor.heirs.of(result.array):
                if self._may_live(heir):
                    self._scheduler.results.finish_item(result, heir, actor.id, fresh=False)

    def _on_called(self, actor: Actor, result: RangeResult) -> None:
        assignment = actor.running.pop(result.array)
        spec = assignment.spec
        assert spec.extra is not None
        actor.repeated.discard(spec.array)
        if spec.extra.method == READY_METHOD:
            self._finish(actor, result, spec.owner, actor.id)
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
            before = actor.restored.get(result.array)
            unwanted = before is not None and before.cancelled >= 0
            kept = not unwanted and (any(result.sizes) or result.status == SYSTEM_ERROR)
            if not kept:
                self._scheduler.custody.drop(result)
            if self._has_strayed(actor, spec, result):
                return
            if kept:
                kept = self._scheduler.results.replayed(result, spec.owner, actor.id)
            if not unwanted and (kept or result.status != SYSTEM_ERROR):
                # Of large values that are not kept there are others here, or nobody had any
                # use for them: then they are lost to who asks once more.
                actor.restored[result.array] = result
            self._answer_early(actor)
            if not actor.replaying:
                self._on_restored(actor)
            elif not actor.running:
                self._replay_next(actor)
            return
        if not comes_once(spec.owner):
            self.memory.keep(actor.id, actor.incarnation, result)
        if not actor.logged:
            self._finish(actor, result, spec.owner, actor.id)
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
                self._finish(actor, result, owner, actor.id)
            if not actor.held:
                self._ended.pop(key, None)

    def on_save(self, worker: Worker, message: SaveActor) -> None:
        """The actor has written a checkpoint; its calls were reported before."""
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker and actor.logged:
            self._send_records(actor)
            self._ctx.send(
                "gcs", SaveActor(actor.id, actor.incarnation, message.upto, message.state)
            )

    def end_turn(self) -> None:
        """Hand out calls and log what took effect, one message an actor."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for actor in dirty.values():
                self._hand_out(actor)
                self._send_records(actor)

    def _send_records(self, actor: Actor) -> None:
        if actor.records:
            first = actor.executed - len(actor.records)
            for piece in cut(actor.records, record_bytes):
                self._ctx.send("gcs", LogCalls(actor.id, actor.incarnation, first, piece))
                first += len(piece)
            actor.records = []

    def end(self, actor: bytes, incarnation: int, why: Unsendable) -> None:
        """End an actor for good: it cannot go on, and could not be rebuilt either."""
        ended = self._current(actor, incarnation)
        if ended is not None:
            death = ActorDeath(DeathCause.UNSENDABLE, root=why)
            self._ctx.send("gcs", ActorFailed(actor, incarnation, death, True))
            self._drop(ended, brief(death))

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
            if actor.leaving:
                self._has_left(actor)
                return
            death = ActorDeath(DeathCause.WORKER_DIED, detail=reason)
            self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, death))
            held, actor.held = actor.held, deque()
            self._forget(actor)
            if held:
                # The GCS logs them before it hears of this, or wants the actor stopped.
                actor.held = held
                self._ended[actor.id, actor.incarnation] = actor

    def on_exit(self, worker: Worker, message: ExitActor) -> None:
        """The actor ends itself; its process leaves."""
        if message.crashed:
            worker.restarts = self.may_restart(worker)
            self.on_worker_died(worker, message.reason.detail)
            return
        actor = self.actors.get(worker.actor)
        if actor is not None and actor.worker is worker:
            actor.leaving = message.reason
            for caller in list(actor.callers):
                self._advance(actor, caller)
            if not message.running:
                self._leaves(worker)

    def _has_left(self, actor: Actor) -> None:
        """Its process is gone, by its own will."""
        assert actor.leaving is not None
        self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, actor.leaving, True))
        self._let_out(actor)
        self._forget(actor)

    def on_stop(self, message: StopActor) -> None:
        """The GCS wants an incarnation ended."""
        actor = self.actors.get(message.actor)
        if actor is not None and actor.incarnation <= message.incarnation:
            if message.graceful and actor.state is State.ALIVE:
                self._dismiss(actor)
            else:
                self._drop(actor, "it was stopped", message.again)
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
