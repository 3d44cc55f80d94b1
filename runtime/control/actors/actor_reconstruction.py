"""Reconstruction of an actor: its new incarnation restores a checkpoint and replays calls.

    ActorLineage ──checkpoint──> RestoreActor ─┐
        │                                      ├──> the worker ──> each call is replayed
        └──calls since──> one after another ───┘                        │ all have ended
                                                                        └──> ALIVE

A replayed call only changes the state: its callers have the reply, or repeat the call. Its large
values may be lost, so the node keeps those that it does not have.

During reconstruction the node replies to calls of earlier incarnations. A replayed call may need a
lost value; the task of that value runs again, and repeats its calls of this actor. Without a reply
the task would wait for the actor, and the actor for the task. So the GCS notifies all subscribers
of the node that has the lineage, and the nodes of callers ask that node::

    GCS ──ActorChanged, STARTING──> caller's node ──ActorCalls.early──> the actor's node
                                        ↑                                │ before the checkpoint,
                                        └───────────TaskResults──────────┘ or when replayed

The calls of such a task took effect before the call that needs its value, so the replay runs
them first. Calls that did not take effect stay with their callers until the actor is ALIVE.
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.actors.actor_record import ActorRecord, ActorState
from raytwin.runtime.control.actors.call_queue import CallQueue
from raytwin.runtime.control.actors.node_services import NodeServices
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    USER_ERROR,
    ActorLineage,
    ActorStarted,
    RangeResult,
    RestoreActor,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause

REPLAY_DELAY_S = 1.0
"""How long a replayed call of a concurrent actor may delay the next one."""


class ActorReconstruction:
    """Reconstructs a node's actors from their lineage."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        services: NodeServices,
        calls: CallQueue,
        fail: Callable[[ActorRecord, ActorDeath], None],
    ) -> None:
        """`fail` ends an actor that cannot be reconstructed, with the reason."""
        self._ctx = ctx
        self._node = node
        self._services = services
        self._calls = calls
        self._fail = fail

    def on_lineage(self, actor: ActorRecord, message: ActorLineage) -> None:
        """Take a part of an actor's checkpoint and lineage."""
        if actor.has_lineage:
            return
        if message.checkpoint:
            actor.checkpoint = RestoreActor(message.checkpoint, message.upto)
        actor.executed = message.upto
        for record in message.kept:
            actor.replies.keep(record.result)
        for record in message.calls:
            actor.replaying[record.task.array] = record.result
            actor.lineage.append(record)
        actor.has_lineage = not message.more
        if actor.has_lineage:
            asked, actor.asked = actor.asked, []
            for spec in asked:
                self.ask(actor, spec)
        self.restore(actor)

    def ask(self, actor: ActorRecord, spec: TaskSpec) -> None:
        """A caller asks for the reply to a call that may be in the lineage."""
        if not actor.has_lineage or spec.array in actor.replaying:
            actor.asked.append(spec)
        elif actor.replies.find(spec.array) is not None:
            self._calls.repeat(actor, spec)

    def restore(self, actor: ActorRecord) -> None:
        """Begin, once the constructor has run and the lineage is here."""
        if actor.state is not ActorState.RESTORING or not actor.has_lineage:
            return
        assert actor.worker is not None
        if actor.checkpoint.state:
            self._ctx.send(actor.worker.address, actor.checkpoint)
            actor.checkpoint = RestoreActor(b"", 0)
        actor.replayed = len(actor.lineage)
        lineage, actor.lineage = actor.lineage, []
        if actor.info.max_concurrency > 1:
            actor.to_replay.extend(lineage)
            self._replay_next(actor)
        else:
            for record in lineage:
                self._calls.queue(actor, record.task, "", record.values)
        if not lineage:
            self._restored(actor)

    def _replay_next(self, actor: ActorRecord) -> None:
        """Replay the calls of a concurrent actor one by one, in the order in which they ended.

        The state is the same unless overlapping calls depended on their interleaving, which is
        not recorded. A call that does not end in time may wait for a later one: then the next
        one runs concurrently with it.
        """
        if actor.replay_timer is not None:
            actor.replay_timer.cancel()
            actor.replay_timer = None
        if actor.to_replay and not actor.ended:
            record = actor.to_replay.popleft()
            actor.replay_timer = self._ctx.after(REPLAY_DELAY_S, lambda: self._replay_next(actor))
            self._calls.queue(actor, record.task, "", record.values)

    def replayed(self, actor: ActorRecord, spec: TaskSpec, reply: RangeResult) -> None:
        """A replayed call has ended."""
        actor.executed += 1
        before = actor.replaying.pop(spec.array)
        was_cancelled = before.cancelled >= 0
        # Keep the error, too, if large values find no room this time: waiters get it.
        kept = not was_cancelled and (any(reply.sizes) or reply.status == SYSTEM_ERROR)
        if not kept:
            self._services.contained_references.drop(reply)
        if self._has_diverged(actor, spec, before, reply):
            return
        if kept:
            kept = self._services.results.replayed(reply, spec.owner, actor.id)
        # Large values that are not kept are here already, or their owner released them: in that
        # case a repeated call gets ObjectLostError.
        counts = not was_cancelled and (kept or reply.status != SYSTEM_ERROR)
        actor.replies.keep(reply if counts else before)
        waiting = [asked for asked in actor.asked if asked.array == spec.array]
        if waiting:
            actor.asked = [asked for asked in actor.asked if asked.array != spec.array]
            for asked in waiting:
                self._calls.repeat(actor, asked)
        if not actor.replaying:
            self._restored(actor)
        elif not actor.running:
            self._replay_next(actor)

    def _has_diverged(
        self, actor: ActorRecord, spec: TaskSpec, before: RangeResult, reply: RangeResult
    ) -> bool:
        """End an actor whose call raises in the replay, and did not before.

        The call is not deterministic, or a dependency of it is missing: the state differs. The
        calls of a concurrent actor may raise because calls that overlapped with them are missing.
        """
        if (
            reply.status != USER_ERROR
            or not (before.status == OK or (before.cancelled >= 0 and before.status != USER_ERROR))
            or actor.info.max_concurrency > 1
        ):
            return False
        self._fail(actor, ActorDeath(DeathCause.REPLAY_DIVERGED, detail=spec.name))
        return True

    def _restored(self, actor: ActorRecord) -> None:
        actor.state = ActorState.ALIVE
        started = ActorStarted(actor.id, actor.incarnation, self._node, actor.replayed)
        self._ctx.send("gcs", started)
