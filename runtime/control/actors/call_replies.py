"""The replies of a node's actors: logged, sent, and sent again.

    a call ends ──the actor never restarts──────────────────> the reply leaves
        └─it may restart: LogCalls ──> GCS ──CallsLogged──────────┘
    a call is repeated ──> `ReplyCache`: the reply, a place among the waiters, or an error

A reply leaves only when its call is in the actor's lineage, so every reply that a client has
seen can be reconstructed. It goes to the client that made the call last, and to all waiters.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_record import ActorRecord, CachedCall, HeldReply
from raytwin.runtime.control.actors.node_services import NodeServices
from raytwin.runtime.control.core.addresses import incarnation_of, may_call_again, node_of
from raytwin.runtime.control.core.batching import cut, record_bytes
from raytwin.runtime.control.core.call_batches import results_of, split
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import forgotten
from raytwin.runtime.control.core.ids import item_id
from raytwin.runtime.control.messages import (
    OK,
    Assignment,
    CallRecord,
    CallsLogged,
    LogCalls,
    RangeResult,
    TaskSpec,
)
from raytwin.runtime.control.objects.result_manager import is_stream, lost


class CallReplies:
    """Logs the calls of a node's actors, sends their replies, and sends them again."""

    def __init__(
        self, ctx: Context, node: int, services: NodeServices, dirty: dict[bytes, ActorRecord]
    ) -> None:
        """`dirty` takes the actors that have something to send at the end of the turn."""
        self._ctx = ctx
        self._node = node
        self._services = services
        self._dirty = dirty
        self._ended: dict[tuple[bytes, int], ActorRecord] = {}
        """Ended actors whose replies still wait for the log, by ID and incarnation."""

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
        # Its large values have to outlive the worker: once the call is logged they exist.
        self._services.objects.local.seal(reply)
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
        if any(map(may_call_again, owners)):
            for reply in results_of(batch):
                actor.replies.keep(reply, batch.count)
        if len(owners) == 1 and not actor.replies.has_waiters:
            self._services.results.finish_call_batch(batch, owners.pop(), actor.id)
            return
        for reply, assignment in zip(results_of(batch), running, strict=True):
            self.finish(actor, reply, assignment.spec.owner, actor.id)

    def cancelled(self, actor: ActorRecord, reply: RangeResult, owner: str) -> None:
        """A call was cancelled before it began: made again, it does not run either."""
        self._leave(actor, reply, owner)

    def _leave(self, actor: ActorRecord, reply: RangeResult, owner: str) -> None:
        """Put a reply into the cache and send it."""
        if may_call_again(owner) and not actor.ended:
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
        """A call that runs has yielded; the log has only the end of its stream."""
        owner = actor.running[item.array].spec.owner
        actor.replies.add_item(item)
        self._services.results.finish_item(item, owner, actor.id)
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
        """Send the replies that wait for the log: the actor does not start again."""
        replies = list(actor.held.values())
        actor.held.clear()
        for held in replies:
            self.finish(actor, held.reply, held.owner, actor.id)

    def discard(self, actor: ActorRecord) -> None:
        """Free the replies that wait for the log: calls that are not logged never took effect."""
        for held in actor.held.values():
            self._services.objects.local.discard(held.reply)
            self._services.contained_references.drop(held.reply)
        actor.held.clear()

    # -- calls that are repeated -------------------------------------------------

    def repeat(self, actor: ActorRecord, spec: TaskSpec) -> bool:
        """Reply to a call that was made before; return False if it was not, and is to run."""
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
        actor.replies.called_again(call, before, spec.owner)
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
