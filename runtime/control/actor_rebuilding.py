"""How an actor that starts anew gets its state back: a checkpoint, then its calls."""

from __future__ import annotations

from runtime.control.actor_calls import QueuedCalls
from runtime.control.actors_here import Actor, State
from runtime.control.errors import ActorDeath, DeathCause
from runtime.control.messages import (
    OK,
    USER_ERROR,
    ActorLineage,
    ActorStarted,
    RangeResult,
    RestoreActor,
    TaskSpec,
)

REPLAY_PATIENCE_S = 1.0
"""How long a replayed call of a concurrent actor may hold up the next one."""


class Rebuilding(QueuedCalls):
    """Actors that are rebuilt."""

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
        else:
            self._answer_early(actor)

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

    def _has_strayed(self, actor: Actor, spec: TaskSpec, result: RangeResult) -> bool:
        """End an actor whose call raises when it is repeated, and did not before.

        Something that it needs is gone, or it is not deterministic: its state is another one.
        Of a concurrent actor that may be for want of what overlapped with the call.
        """
        before = actor.restored.get(spec.array)
        if (
            result.status != USER_ERROR
            or before is None
            or not (before.status == OK or (before.cancelled >= 0 and before.status != USER_ERROR))
            or actor.info.max_concurrency > 1
        ):
            return False
        self._end_of_rebuilding(actor, ActorDeath(DeathCause.STRAYED, detail=spec.name))
        return True

    def _on_restored(self, actor: Actor) -> None:
        actor.state = State.ALIVE
        actor.asked.clear()
        started = ActorStarted(actor.id, actor.incarnation, self._node, actor.replayed)
        self._ctx.send("gcs", started)
