"""The calls of a node's actors: from their callers to the worker, and their replies back.

    ActorCalls ──repeated?──yes──> the reply, a place among the waiters, or an error
                     │ no
                     ↓
          in its caller's queue ──> inputs here ──> first in the queue ──> to the worker
                                        └─ one is an error: that is the reply

With a scheduling delay a call's inputs count as here when, after that, the delay is over.

    a call ends ──the actor cannot restart──────────────────> the reply leaves
        └─it may restart: LogCalls ──> GCS ──CallsLogged──────────┘

The calls of one caller start in the order in which it made them: a call whose inputs are missing
delays the later calls of the same caller, and no others. The calls of a concurrent actor have no
order: each has a queue of its own.

A reply leaves only when its call is in the actor's lineage, so every reply that a client has
seen can be reconstructed. It goes to the client that made the call last, and to all waiters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raytwin.runtime.control.actors.actor_record import (
    ActorRecord,
    CachedCall,
    HeldReply,
    QueuedCall,
)
from raytwin.runtime.control.actors.node_services import NodeServices
from raytwin.runtime.control.core.addresses import incarnation_of, may_repeat_calls, node_of
from raytwin.runtime.control.core.batching import cut, record_bytes
from raytwin.runtime.control.core.call_batches import (
    arrays_of,
    is_batch,
    results_of,
    singles,
    split,
)
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import cancelled_result, failed_value, forgotten
from raytwin.runtime.control.core.ids import item_id, job_of
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    ActorCalls,
    Assignment,
    CallRecord,
    CallsLogged,
    CancelTask,
    LogCalls,
    ObjectValue,
    RangeResult,
    RunTasks,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, Loss, LossCause, unpack
from raytwin.runtime.control.objects.result_manager import is_stream, lost


class CallQueue:
    """Queues the calls of a node's actors, gives them to the workers, logs them and replies."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        services: NodeServices,
        dirty: dict[bytes, ActorRecord],
        replay_failed: Callable[[ActorRecord, ActorDeath], None],
    ) -> None:
        """`dirty` takes the actors with messages to send at the end of the turn; `replay_failed`
        ends an actor whose replay fails."""
        self._ctx = ctx
        self._node = node
        self._services = services
        self._dirty = dirty
        self._replay_failed = replay_failed
        self._ended: dict[tuple[bytes, int], ActorRecord] = {}
        """Ended actors whose replies still wait for the log, by ID and incarnation."""

    # -- arriving calls ----------------------------------------------------------

    def on_calls(self, actor: ActorRecord, message: ActorCalls) -> None:
        """Take calls for an actor."""
        for spec in message.tasks:
            if not is_batch(spec):
                self._take(actor, spec)
            elif not self._take_batch(actor, spec):
                for single in singles([spec]):
                    self._take(actor, single)

    def _take(self, actor: ActorRecord, spec: TaskSpec) -> None:
        if self._services.access.is_over(spec.array):
            return
        if self.repeat(actor, spec):
            return
        if spec.array in actor.waiting:
            self._take_over(actor, actor.waiting[spec.array], spec)
        else:
            self.queue(actor, spec, _queue_of(actor, spec), ())

    def _take_batch(self, actor: ActorRecord, batch: TaskSpec) -> bool:
        """Give the worker a batch of calls unless one waits or is repeated; return whether.

        With a scheduling delay each of them waits.
        """
        calls = arrays_of(batch)
        if (
            self._services.config.scheduling_delay_s
            or self._services.access.is_over(batch.array)
            or actor.callers.get(batch.owner)
            or not actor.running.keys().isdisjoint(calls)
            or not actor.waiting.keys().isdisjoint(calls)
            or not actor.held.keys().isdisjoint(calls)
            or actor.replies.knows_any(calls)
        ):
            return False
        assignment = Assignment(batch)
        actor.running.update(dict.fromkeys(calls, assignment))
        actor.unsent.append(assignment)
        self._dirty[actor.id] = actor
        return True

    def _take_over(self, actor: ActorRecord, old: QueuedCall, spec: TaskSpec) -> None:
        """A caller that runs again has repeated a call that waits: the new call replaces the old.

        The queue of the old caller becomes the queue of the new one, which repeats all its calls.
        """
        self._withdraw(old)
        actor.replies.add_waiter(spec.array, old.spec.owner, spec.owner)
        caller = _queue_of(actor, spec)
        call = actor.waiting[spec.array] = QueuedCall(spec, caller)
        calls = actor.callers[old.caller]
        calls[calls.index(old)] = call
        if old.caller != caller:
            del actor.callers[old.caller]
            for each in calls:
                each.caller = caller
            actor.callers.setdefault(caller, deque()).extend(calls)
        call.rank = self._services.inputs.claim(spec) if spec.deps else 0
        self._want(actor, call, list(spec.deps))

    # -- calls that wait ---------------------------------------------------------

    def queue(
        self, actor: ActorRecord, spec: TaskSpec, caller: str, known: tuple[ObjectValue, ...]
    ) -> None:
        """Queue a call after those of the same caller; `known` has small inputs."""
        calls = actor.callers.get(caller)
        if not spec.deps and not self._services.config.scheduling_delay_s:
            if not calls:
                self._give(actor, spec, ())
            else:
                calls.append(self._waiting(actor, spec, caller))
            return
        call = self._waiting(actor, spec, caller)
        call.rank = self._services.inputs.claim(spec)
        call.known = {value.object: value for value in known if not value.size}
        if calls is None:
            calls = actor.callers[caller] = deque()
        calls.append(call)
        self._want(actor, call, [oid for oid in spec.deps if oid not in call.known])

    @staticmethod
    def _waiting(actor: ActorRecord, spec: TaskSpec, caller: str) -> QueuedCall:
        call = QueuedCall(spec, caller)
        if caller:
            actor.waiting[spec.array] = call
        return call

    def _want(self, actor: ActorRecord, call: QueuedCall, oids: list[bytes]) -> None:
        """Fetch the inputs of a call; it advances when all have arrived."""

        def arrived(value: ObjectValue) -> None:
            call.missing -= 1
            if value.status != OK:
                # Of several errors the call gets that of the first argument, in any arrival order.
                at = call.spec.deps.index(value.object)
                if call.failed is None or at < call.spec.deps.index(call.failed.object):
                    call.failed = value
            if call.missing:
                return
            delay_s = self._services.config.scheduling_delay_s
            if delay_s and not call.delayed:
                call.delayed = True
                call.missing = 1
                self._ctx.after(delay_s, lambda: arrived(ObjectValue(b"", OK, b"")))
            else:
                self.advance(actor, call.caller)

        call.missing += 1  # until every input was requested
        for oid in oids:
            call.missing += 1
            self._services.objects.pulls.want(oid, arrived, call.rank)
        arrived(ObjectValue(b"", OK, b""))

    def advance(self, actor: ActorRecord, caller: str) -> None:
        """Give the worker the first calls of a caller, as far as their inputs are here."""
        calls = actor.callers.get(caller)
        while calls and not calls[0].missing:
            if actor.ended or actor.leaving:
                return  # callers learn of the actor's death once its worker has ended
            call = calls[0]
            spec = call.spec
            left = self._services.objects.memory.evicted(spec.deps) if call.failed is None else []
            if left:
                # The node has evicted these inputs while the call waited for its turn.
                self._want(actor, call, left)
                return
            calls.popleft()
            if caller:
                del actor.waiting[spec.array]
            self._services.inputs.unclaim(spec)
            if call.failed is not None:
                self._input_failed(actor, spec, call.failed)
                continue
            values = []
            for oid in spec.deps:
                value = call.known.get(oid) or self._services.objects.memory.lookup(oid)
                if value is None:
                    # The object was released meanwhile: its owner has died.
                    gone = Loss(LossCause.OWNER_DIED, object=oid)
                    self._input_failed(actor, spec, failed_value(gone, oid))
                    break
                values.append(value)
            else:
                self._give(actor, spec, tuple(values))
        if not calls:
            actor.callers.pop(caller, None)

    def _withdraw(self, call: QueuedCall) -> None:
        """Give up the inputs of a call that was taken out of its queue."""
        call.missing = -1  # Inputs that arrive later do not count it down to zero.
        self._services.inputs.unclaim(call.spec)

    def _input_failed(self, actor: ActorRecord, spec: TaskSpec, error: ObjectValue) -> None:
        if spec.array in actor.replaying:
            root = unpack(error.payload) if error.status == SYSTEM_ERROR else None
            self._replay_failed(actor, ActorDeath(DeathCause.REPLAY_INPUT_FAILED, root=root))
            return
        end = RangeResult(spec.array, 0, 1, error.status, error.payload, self._node, spec.returns)
        self.finish(actor, end, spec.owner, b"")

    # -- calls that begin --------------------------------------------------------

    def _give(self, actor: ActorRecord, spec: TaskSpec, values: tuple[ObjectValue, ...]) -> None:
        """Give a call to the worker."""
        assert actor.worker is not None
        call = spec.array
        for value in values:
            if value.size:
                self._services.objects.memory.pin(value.object, actor.worker.address)
        assignment = Assignment(spec, values)
        if call in actor.replaying:
            assignment.cancelled = actor.replaying[call].cancelled
        if is_stream(spec) and (call in actor.replaying or may_repeat_calls(spec.owner)):
            actor.replies.begin_stream(call)
        actor.running[call] = assignment
        actor.unsent.append(assignment)
        self._dirty[actor.id] = actor

    def send_calls(self, actor: ActorRecord) -> None:
        """Send the worker the calls of this turn."""
        if actor.unsent and actor.worker is not None:
            self._ctx.send(actor.worker.address, RunTasks(actor.unsent))
            actor.unsent = []

    # -- calls that do not begin -------------------------------------------------

    def cancel(self, actor: ActorRecord, call: bytes) -> None:
        """End a call that has not begun; ask the worker to cancel one that has."""
        if call in actor.replaying:
            return
        waiting = actor.waiting.pop(call, None)
        if waiting is not None:
            actor.callers[waiting.caller].remove(waiting)
            self._withdraw(waiting)
            self._cancelled(actor, waiting.spec)
            self.advance(actor, waiting.caller)
            return
        actor.split_batch(call)
        assignment = actor.running.get(call)
        if assignment is None or actor.worker is None:
            return
        if assignment in actor.unsent:
            actor.unsent.remove(assignment)
            self.not_begun(actor, assignment)
            return
        # After the call itself: only the worker knows whether it has begun.
        self.send_calls(actor)
        self._ctx.send(actor.worker.address, CancelTask(call, 0, 1, False, False))

    def not_begun(self, actor: ActorRecord, assignment: Assignment) -> None:
        """A call was cancelled before it began."""
        assert actor.worker is not None
        actor.running.pop(assignment.spec.array, None)
        for value in assignment.values:
            if value.size:
                self._services.objects.memory.unpin(value.object, actor.worker.address)
        self._cancelled(actor, assignment.spec)

    def _cancelled(self, actor: ActorRecord, spec: TaskSpec) -> None:
        self.cancelled(actor, cancelled_result(spec, self._node), spec.owner)

    def end_job(self, actor: ActorRecord, job: bytes) -> None:
        """A job has ended: its calls do not begin any more."""
        for caller, calls in list(actor.callers.items()):
            left = [call for call in calls if job_of(call.spec.array) != job]
            if len(left) == len(calls) or not caller:
                continue
            for call in calls:
                if call not in left:
                    del actor.waiting[call.spec.array]
                    self._withdraw(call)
                    actor.replies.take_waiters(call.spec.array)
            calls.clear()
            calls.extend(left)
            self.advance(actor, caller)

    def unclaim(self, actor: ActorRecord) -> None:
        """An actor has ended: end the claims on the inputs of its calls."""
        for calls in actor.callers.values():
            for call in calls:
                self._services.inputs.unclaim(call.spec)

    # -- calls that end ----------------------------------------------------------

    def ended(self, actor: ActorRecord, assignment: Assignment, reply: RangeResult) -> None:
        """A call took effect."""
        spec = assignment.spec
        number = actor.executed
        actor.executed += 1
        if not actor.logged:
            self._leave(actor, reply, spec.owner)
            return
        small = tuple(value for value in assignment.values if not value.size)
        # The large values must outlive the worker: once the call is logged they exist.
        self._services.objects.memory.seal(reply)
        actor.records.append(CallRecord(spec, reply, small))
        actor.held[spec.array] = HeldReply(number, reply, spec.owner)
        self._dirty[actor.id] = actor

    def batch_ended(self, actor: ActorRecord, batch: RangeResult) -> None:
        """The calls of a batch took effect one after another, with small values."""
        assert not actor.logged
        calls = split(batch.calls)
        running = list(map(actor.running.pop, calls))
        owners = {assignment.spec.owner for assignment in running}
        actor.executed += batch.count
        if any(map(may_repeat_calls, owners)):
            for reply in results_of(batch):
                actor.replies.keep(reply, batch.count)
        if len(owners) == 1 and not actor.replies.has_waiters:
            self._services.results.finish_call_batch(batch, owners.pop(), actor.id)
            return
        for reply, assignment in zip(results_of(batch), running, strict=True):
            self.finish(actor, reply, assignment.spec.owner, actor.id)

    def cancelled(self, actor: ActorRecord, reply: RangeResult, owner: str) -> None:
        """A call was cancelled before it began: if it is repeated, it does not run either."""
        self._leave(actor, reply, owner)

    def _leave(self, actor: ActorRecord, reply: RangeResult, owner: str) -> None:
        """Put a reply into the cache and send it."""
        if may_repeat_calls(owner) and not actor.ended:
            actor.replies.keep(reply)
        self.finish(actor, reply, owner, actor.id)

    def finish(self, actor: ActorRecord, reply: RangeResult, owner: str, made_by: bytes) -> None:
        """Send a reply to the owner and to all waiters."""
        results = self._services.results
        results.finish_call(reply, owner, made_by)
        for waiter in actor.replies.take_waiters(reply.array):
            if self._may_live(waiter):
                results.finish_call(reply, waiter, made_by, fresh=False)

    def yielded(self, actor: ActorRecord, item: RangeResult) -> None:
        """A running call has yielded an item; the log has only the end of its stream."""
        owner = actor.running[item.array].spec.owner
        actor.replies.add_item(item)
        replayed = item.array in actor.replaying
        self._services.results.finish_item(item, owner, actor.id, replayed=replayed)
        for waiter in actor.replies.waiters(item.array):
            if self._may_live(waiter):
                self._services.results.finish_item(item, waiter, actor.id, fresh=False)

    def _may_live(self, client: str) -> bool:
        return not self._services.members.refusal(node_of(client), incarnation_of(client))

    # -- the log -----------------------------------------------------------------

    def send_records(self, actor: ActorRecord) -> None:
        """Have the GCS log the calls that took effect in this turn."""
        if actor.records:
            first = actor.executed - len(actor.records)
            for piece in cut(actor.records, record_bytes):
                self._ctx.send("gcs", LogCalls(actor.id, actor.incarnation, first, piece))
                first += len(piece)
            actor.records = []

    def on_logged(self, actor: ActorRecord | None, message: CallsLogged) -> None:
        """Send the replies whose calls the GCS has logged; `actor` is None if it has ended."""
        key = message.actor, message.incarnation
        actor = actor or self._ended.get(key)
        if actor is None:
            return
        while actor.held:
            held = next(iter(actor.held.values()))
            if held.number >= message.upto:
                return
            actor.held.popitem(last=False)
            self._leave(actor, held.reply, held.owner)
        self._ended.pop(key, None)

    def await_log(self, actor: ActorRecord) -> None:
        """Keep a dead actor's record until the GCS has logged its calls."""
        self._ended[actor.id, actor.incarnation] = actor

    def take_ended(self, actor: bytes, incarnation: int) -> ActorRecord | None:
        """Return an ended actor whose replies still wait, and forget it."""
        return self._ended.pop((actor, incarnation), None)

    def send_held(self, actor: ActorRecord) -> None:
        """Send the replies that wait for the log: the actor does not restart."""
        replies = list(actor.held.values())
        actor.held.clear()
        for held in replies:
            self.finish(actor, held.reply, held.owner, actor.id)

    def discard(self, actor: ActorRecord) -> None:
        """Free the replies that wait for the log: unlogged calls count as never executed."""
        for held in actor.held.values():
            self._services.objects.memory.discard(held.reply)
            self._services.contained_references.drop(held.reply)
        actor.held.clear()

    # -- calls that are repeated -------------------------------------------------

    def repeat(self, actor: ActorRecord, spec: TaskSpec) -> bool:
        """Reply to a repeated call; return False if the call is new, and must run."""
        call = spec.array
        cached = actor.replies.find(call)
        if cached is not None and cached.ended:
            reply = cached.reply or forgotten(spec, self._node)
            if not self._send_items(actor, spec, cached) and reply.status == OK:
                reply = lost(reply, item_id(call, 0), self._node)
            self._services.results.finish_call(reply, spec.owner, actor.id, fresh=False)
            return True
        actor.split_batch(call)
        held, running = actor.held.get(call), actor.running.get(call)
        if held is not None:
            before = held.owner
        elif running is not None:
            before = running.spec.owner
        else:
            return False
        if not self._send_items(actor, spec, cached) and before != spec.owner:
            # Without its items the end of a stream is of no use to this caller.
            end = RangeResult(call, 0, 1, OK, b"", self._node, spec.returns)
            gone = lost(end, item_id(call, 0), self._node)
            self._services.results.finish_call(gone, spec.owner)
            return True
        actor.replies.add_waiter(call, before, spec.owner)
        if held is not None:
            held.owner = spec.owner
        elif running is not None:
            running.spec.owner = spec.owner
        return True

    def _send_items(self, actor: ActorRecord, spec: TaskSpec, cached: CachedCall | None) -> bool:
        """Send the owner of a repeated call the items so far; return whether all are known."""
        if not is_stream(spec):
            return True
        if cached is None or cached.items is None:
            return False
        for item in cached.items:
            self._services.results.finish_item(item, spec.owner, actor.id, fresh=False)
        return True


def _queue_of(actor: ActorRecord, spec: TaskSpec) -> str:
    """Return the name of a call's queue: its caller's, or its own if calls have no order."""
    return spec.owner if actor.info.ordered else f"{spec.owner} {spec.array.hex()}"
