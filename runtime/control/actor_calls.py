"""Calls of the actors of one node, from their callers to the worker.

    come ──answered before?──yes──> the result that it had
             │ no
             ↓
    in its caller's queue ──> inputs here ──> first in the queue ──> given to the worker
                                  └─ one is an error: that is the result

Those of one caller start in the order in which they were made.
"""

from __future__ import annotations

from collections import deque

from runtime.control.actors_here import CALLS_AGAIN, Actor, ActorsHere, QueuedCall, State
from runtime.control.call_answers import forgotten, is_stream, lacks_items, lost
from runtime.control.call_memory import comes_once
from runtime.control.call_runs import arrays_of, is_run, singles
from runtime.control.context import node_of
from runtime.control.direct_calls import is_ahead
from runtime.control.errors import (
    ActorDeath,
    ActorUnavailable,
    DeathCause,
    Loss,
    LossCause,
    brief,
    unpack,
)
from runtime.control.failed import call_failed, cancelled_result, failed_value
from runtime.control.ids import same_job
from runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    ActorCalls,
    ActorFailed,
    Assignment,
    CancelCall,
    CancelTask,
    Event,
    ObjectValue,
    RangeResult,
    RunTasks,
    TaskSpec,
)
from runtime.control.streams import item_id


class QueuedCalls(ActorsHere):
    """Actors with the calls that are to run."""

    def on_calls(self, message: ActorCalls) -> None:
        """Calls for an actor; those for another incarnation are their sender's to repeat."""
        actor = self._current(message.actor, message.incarnation)
        if actor is None:
            return
        if actor.state is not State.ALIVE:
            for spec in message.early:
                actor.asked[spec.array] = spec
            self._answer_early(actor)
        again = 0
        for number, spec in enumerate(message.tasks):
            if is_run(spec):
                if not self._take_run(actor, spec):
                    for single in singles([spec]):
                        self._take(actor, single)
                continue
            if self._take(actor, spec) and number < message.again:
                actor.repeated.add(spec.array)
                again += 1
        if again:
            self._ctx.send("gcs", Event(CALLS_AGAIN, actor.spec.name, f"{again} calls", again))
        for spec in message.probes:
            if not self._answer(actor, spec) and spec.array not in actor.running:
                if spec.array in message.cancelled:
                    error = cancelled_result(spec, self._node)
                else:
                    missed = ActorUnavailable(spec.name, actor.id)
                    error = call_failed(spec, missed, self._node)
                self._scheduler.results.finish_call(error, spec.owner)

    def _answer_early(self, actor: Actor) -> None:
        """Answer calls that took effect before, and were repeated; see `early_answers`."""
        if not actor.asked or not actor.lineage_here or actor.state is not State.RESTORING:
            return
        for call in [call for call in actor.asked if call not in actor.replaying]:
            spec = actor.asked.pop(call)
            if call in actor.restored and not self._scheduler.jobs.is_over(call):
                self._answer(actor, spec)

    def _take(self, actor: Actor, spec: TaskSpec) -> bool:
        """Take a call; return whether it is to run."""
        if self._scheduler.jobs.is_over(spec.array):
            return False
        if not (actor.info.name or same_job(spec.array, actor.id)):
            self._scheduler.results.finish_call(self._refused(actor, spec), spec.owner)
            return False
        if self._answer(actor, spec):
            return False
        if spec.array in actor.waiting:
            self._take_over(actor, actor.waiting[spec.array], spec)
            return True
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
            or not actor.waiting.keys().isdisjoint(calls)
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

    def cancel(self, message: CancelCall) -> None:
        """End a call that has not begun; have its worker cancel one that has."""
        actor = self.actors.get(message.actor)
        if actor is None or message.call in actor.replaying:
            return
        for caller, calls in actor.callers.items():
            call = next((call for call in calls if call.spec.array == message.call), None)
            if call is not None and caller:
                calls.remove(call)
                del actor.waiting[message.call]
                self._no_more(call)
                self._cancelled(actor, call.spec)
                self._advance(actor, caller)
                return
        self._take_apart(actor, message.call)
        assignment = actor.running.get(message.call)
        if assignment is None or actor.worker is None:
            return
        if assignment in actor.batch and not is_ahead(assignment.spec):
            actor.batch.remove(assignment)
            self._not_begun(actor, assignment)
            return
        # Behind the call itself: only the worker knows whether it has begun.
        self._hand_out(actor)
        self._ctx.send(actor.worker.address, CancelTask(message.call, 0, 1, False, False))

    def _hand_out(self, actor: Actor) -> None:
        if actor.batch and actor.worker is not None:
            self._ctx.send(actor.worker.address, RunTasks(actor.batch))
            actor.batch = []

    def _no_more(self, call: QueuedCall) -> None:
        """It was taken out of its queue."""
        call.missing = -1  # what arrives for it later is not counted to zero
        self._scheduler.inputs.unclaim(call.spec)

    def _take_over(self, actor: Actor, old: QueuedCall, spec: TaskSpec) -> None:
        """A call that waits was made once more, as its caller runs again: that one counts.

        It takes the other's place, and is the caller's of now with all that it had called
        then after it: these will come again as well, and are to run behind it.
        """
        calls = actor.callers[old.caller]
        at = calls.index(old)
        self._no_more(old)
        actor.heirs.asked(spec.array, old.spec.owner, spec.owner)
        call = actor.waiting[spec.array] = QueuedCall(spec, spec.owner)
        if old.caller == spec.owner:
            calls[at] = call
        else:
            moved = [call]
            moved += [calls.pop() for _ in range(len(calls) - at)][-2::-1]
            if not calls:
                del actor.callers[old.caller]
            for each in moved:
                each.caller = spec.owner
            actor.callers.setdefault(spec.owner, deque()).extend(moved)
        call.rank = self._scheduler.inputs.claim(spec) if spec.deps else 0
        self._want(actor, call, list(spec.deps))

    def _not_begun(self, actor: Actor, assignment: Assignment) -> None:
        """A call was taken back from the actor's worker, or refused by one that leaves."""
        assert actor.worker is not None
        actor.running.pop(assignment.spec.array, None)
        for value in assignment.values:
            if value.size:
                self._scheduler.objects.unpin(value.object, actor.worker.address)
        if not actor.leaving:
            self._cancelled(actor, assignment.spec)
        elif assignment.spec.array not in actor.replaying:  # whose callers have an answer
            self._too_late(actor, assignment.spec)

    def _cancelled(self, actor: Actor, spec: TaskSpec) -> None:
        actor.repeated.discard(spec.array)
        result = cancelled_result(spec, self._node)
        # Sent once more, it does not run either.
        self.memory.keep(actor.id, actor.incarnation, result)
        self._finish(actor, result, spec.owner, actor.id)

    def _answer(self, actor: Actor, spec: TaskSpec) -> bool:
        """Answer a call that took effect before; return whether it did."""
        result = actor.restored.get(spec.array)
        result = result or self.memory.find(actor.id, actor.incarnation, spec.array)
        if actor.held and self._is_held(actor, spec):
            return True
        if result is None and self.memory.has_run(actor.id, actor.incarnation, spec.array):
            result = forgotten(spec, self._node)
        if result is not None:
            known = self._hand_items_over(actor, spec) or not lacks_items(spec, result)
            if not known and not self._scheduler.objects.has_end(spec.array):
                result = lost(result, item_id(spec.array, 0), self._node)
            self._scheduler.results.finish_call(result, spec.owner, actor.id, fresh=False)
            return True
        self._take_apart(actor, spec.array)
        running = actor.running.get(spec.array)
        if running is not None:
            if not self._hand_items_over(actor, spec) and running.spec.owner != spec.owner:
                # Without these its end is of no use to the caller of now.
                end = RangeResult(spec.array, 0, 1, OK, b"", self._node, spec.returns)
                gone = lost(end, item_id(spec.array, 0), self._node)
                self._scheduler.results.finish_call(gone, spec.owner)
                return True
            actor.heirs.asked(spec.array, running.spec.owner, spec.owner)
            running.spec.owner = spec.owner
        return running is not None

    def _is_held(self, actor: Actor, spec: TaskSpec) -> bool:
        """Whether a call's result waits for the log; then it is for who has called last.

        Not that of a stream, the items of which are on another node and not known here.
        """
        for at, (number, result, owner) in enumerate(actor.held):
            if result.array == spec.array:
                known = self._hand_items_over(actor, spec) or not lacks_items(spec, result)
                if not known and node_of(owner) != node_of(spec.owner):
                    return False
                actor.heirs.asked(spec.array, owner, spec.owner)
                actor.held[at] = number, result, spec.owner
                return True
        return False

    def _hand_items_over(self, actor: Actor, spec: TaskSpec) -> bool:
        """Send who calls once more what its call has yielded so far; return whether that is
        known, as it is of calls that yield nothing."""
        if not is_stream(spec):
            return True
        items = self.items.find((actor.id, actor.incarnation, spec.array))
        for item in items or ():
            self._scheduler.results.finish_item(item, spec.owner, actor.id, fresh=False)
        return items is not None

    def _queue(
        self, actor: Actor, spec: TaskSpec, caller: str, known: tuple[ObjectValue, ...]
    ) -> None:
        """Line a call up behind those of the same caller; `known` has small inputs."""
        calls = actor.callers.get(caller)
        if not spec.deps:
            if not calls:
                self._give(actor, spec, ())
            else:
                calls.append(self._waiting(actor, spec, caller))
            return
        call = self._waiting(actor, spec, caller)
        call.rank = self._scheduler.inputs.claim(spec)
        call.known = {value.object: value for value in known if not value.size}
        if calls is None:
            calls = actor.callers[caller] = deque()
        calls.append(call)
        self._want(actor, call, [oid for oid in spec.deps if oid not in call.known])

    @staticmethod
    def _waiting(actor: Actor, spec: TaskSpec, caller: str) -> QueuedCall:
        call = QueuedCall(spec, caller)
        if caller:
            actor.waiting[spec.array] = call
        return call

    def _want(self, actor: Actor, call: QueuedCall, oids: list[bytes]) -> None:
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
                self._advance(actor, call.caller)

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
            begins = call.failed is None and not actor.leaving
            left = self._scheduler.objects.have_left(spec.deps) if begins else []
            if left:
                # They had to make room while the call waited for its turn.
                self._want(actor, call, left)
                return
            calls.popleft()
            if caller:
                del actor.waiting[spec.array]
            self._scheduler.inputs.unclaim(spec)
            if actor.leaving:
                self._too_late(actor, spec)
                continue
            if call.failed is not None:
                self._input_failed(actor, spec, call.failed)
                continue
            values = []
            for oid in spec.deps:
                value = call.known.get(oid) or self._scheduler.objects.lookup(oid)
                if value is None:
                    # Released meanwhile: its owner has died.
                    gone = Loss(LossCause.OWNER_DIED, object=oid)
                    self._input_failed(actor, spec, failed_value(gone, oid))
                    break
                values.append(value)
            else:
                self._give(actor, spec, tuple(values))
        if not calls:
            actor.callers.pop(caller, None)

    def _input_failed(self, actor: Actor, spec: TaskSpec, error: ObjectValue) -> None:
        if spec.array in actor.replaying:
            root = unpack(error.payload) if error.status == SYSTEM_ERROR else None
            self._end_of_rebuilding(actor, ActorDeath(DeathCause.NOT_REBUILT, root=root))
            return
        actor.repeated.discard(spec.array)
        end = RangeResult(spec.array, 0, 1, error.status, error.payload, self._node, spec.returns)
        self._finish(actor, end, spec.owner, b"")

    def _too_late(self, actor: Actor, spec: TaskSpec) -> None:
        """The actor leaves: say so at once, since a call that runs may wait for this one."""
        assert actor.leaving is not None
        why = actor.death(actor.leaving)
        self._input_failed(actor, spec, failed_value(why, spec.array))

    def _end_of_rebuilding(self, actor: Actor, why: ActorDeath) -> None:
        self._ctx.send("gcs", ActorFailed(actor.id, actor.incarnation, why, True))
        self._drop(actor, brief(why))

    def _give(self, actor: Actor, spec: TaskSpec, values: tuple[ObjectValue, ...]) -> None:
        assert actor.worker is not None
        if actor.leaving and spec.array not in actor.early:
            self._too_late(actor, spec)
            return
        for value in values:
            if value.size:
                self._scheduler.objects.pin(value.object, actor.worker.address)
        assignment = Assignment(spec, values)
        if spec.array in actor.replaying and spec.array in actor.restored:
            assignment.cancelled = actor.restored[spec.array].cancelled
        if is_stream(spec) and (spec.array in actor.replaying or not comes_once(spec.owner)):
            self.items.begin((actor.id, actor.incarnation, spec.array))
        actor.running[spec.array] = assignment
        actor.batch.append(assignment)
        self._dirty[actor.id] = actor
