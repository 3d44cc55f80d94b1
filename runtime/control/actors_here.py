"""The actors of one node: what is known of each, and how it is forgotten."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from runtime.control.call_heirs import CallHeirs
from runtime.control.call_items import CallItems
from runtime.control.call_memory import CallMemory
from runtime.control.context import Context, Timer, incarnation_of, node_of
from runtime.control.errors import ActorDeath, ActorOfOtherJob
from runtime.control.failed import call_failed
from runtime.control.ids import job_number
from runtime.control.messages import (
    ActorInfo,
    Assignment,
    CallRecord,
    Exit,
    ObjectValue,
    RangeResult,
    RestoreActor,
    TaskSpec,
    Timing,
)
from runtime.control.worker_table import Worker

if TYPE_CHECKING:
    from runtime.control.local_scheduler import LocalScheduler

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


class QueuedCall:
    """A call that waits for its inputs or for its turn."""

    __slots__ = ("caller", "failed", "known", "missing", "rank", "spec")

    def __init__(self, spec: TaskSpec, caller: str) -> None:
        self.spec = spec
        self.caller = caller
        """In whose queue it is."""
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
        self.callers: dict[str, deque[QueuedCall]] = {}
        self.waiting: dict[bytes, QueuedCall] = {}
        """Those of all callers by array, but for replayed ones."""
        self.batch: list[Assignment] = []
        """Calls to hand to the worker with this turn."""
        self.running: dict[bytes, Assignment] = {}
        """Calls that the worker has, by array."""
        self.early: dict[bytes, tuple[RangeResult, Timing]] = {}
        """Results of calls that the worker had directly, and this node not yet."""
        self.restored: dict[bytes, RangeResult] = {}
        """Results of calls that took effect in earlier incarnations."""
        self.asked: dict[bytes, TaskSpec] = {}
        """Calls that wait elsewhere for it to be rebuilt, and may be among these."""
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
        self.repeated: set[bytes] = set()
        """Calls that were sent to an earlier incarnation as well, and have not ended."""
        self.records: list[CallRecord] = []
        """Calls to log with this turn."""
        self.held: deque[tuple[int, RangeResult, str]] = deque()
        """Results that wait for the log: (number of the call, result, owner)."""
        self.heirs = CallHeirs()
        self.leaving: ActorDeath | None = None
        """Why it ends itself: its process is about to end."""

    def death(self, why: ActorDeath) -> ActorDeath:
        """Return why it is dead with its name and ID, as its callers are told."""
        return replace(why, name=self.spec.name, actor=self.id)


class ActorsHere:
    """The actors of one node."""

    def __init__(self, ctx: Context, node: int, scheduler: LocalScheduler) -> None:
        self._ctx = ctx
        self._node = node
        self._scheduler = scheduler
        self.actors: dict[bytes, Actor] = {}
        self.queued: deque[Actor] = deque()
        self.memory = CallMemory()
        self.items = CallItems()
        self._dirty: dict[bytes, Actor] = {}
        self._ended: dict[tuple[bytes, int], Actor] = {}
        """By actor and incarnation: ended ones, whose results still wait for the log."""
        self._replays = 0
        """Replayed calls of all actors that the event log does not have yet."""

    def _of_creation(self, spec: TaskSpec) -> Actor | None:
        actor = self.actors.get(spec.array)
        assert spec.extra is not None and spec.extra.actor is not None
        if actor is None or actor.incarnation != spec.extra.actor.incarnation:
            return None
        return actor

    def _refused(self, actor: Actor, spec: TaskSpec) -> RangeResult:
        """Another job has come by a handle of an actor that has no name."""
        owner, job = job_number(actor.id), job_number(spec.array)
        refused = ActorOfOtherJob(actor.spec.name, actor.id, owner, job)
        return call_failed(spec, refused, self._node)

    def _let_out(self, actor: Actor) -> None:
        """What was reported took effect, and nobody will ask for it again."""
        held, actor.held = actor.held, deque()
        for _, result, owner in held:
            self._finish(actor, result, owner, actor.id)

    def _finish(self, actor: Actor, result: RangeResult, owner: str, made_by: bytes) -> None:
        """A call has ended: tell all who wait for it."""
        results = self._scheduler.results
        results.finish_call(result, owner, made_by)
        for heir in actor.heirs.ended(result.array):
            if self._may_live(heir):
                results.finish_call(result, heir, made_by, fresh=False)

    def _may_live(self, client: str) -> bool:
        refusal = self._scheduler.members.refusal(node_of(client), incarnation_of(client))
        return not refusal

    def _drop(self, actor: Actor, reason: str, again: bool = False) -> None:
        """End an actor, and its worker with it; `again`: it starts again somewhere."""
        worker = actor.worker
        self._forget(actor)
        if worker is not None:
            worker.restarts = again
            self._scheduler.deaths.end(worker, reason)

    def _dismiss(self, actor: Actor) -> None:
        """End an actor that nobody can call any more, in good order."""
        worker = actor.worker
        assert worker is not None, "it is alive"
        self._forget(actor)
        self._ctx.send(worker.address, Exit())
        self._leaves(worker)

    def _leaves(self, worker: Worker) -> None:
        """Its process ends by itself, unless that takes too long."""
        limit_s = self._scheduler.config.actor_end_s

        def end() -> None:
            if self._scheduler.dispatcher.workers.get(worker.address) is worker:
                reason = f"it had not ended {limit_s:g} s after its actor"
                self._scheduler.deaths.end(worker, reason)

        self._ctx.after(limit_s, end)

    def _forget(self, actor: Actor) -> None:
        del self.actors[actor.id]
        self._scheduler.pool.end_hold(actor.spec.demand)
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
        for result, _ in actor.early.values():
            self._scheduler.places.free(result)
            self._scheduler.custody.drop(result)
        actor.early.clear()

    def _current(self, actor: bytes, incarnation: int) -> Actor | None:
        found = self.actors.get(actor)
        return found if found is not None and found.incarnation == incarnation else None

    def is_repeating(self, worker: Worker) -> bool:
        """Whether what an actor's worker submits may have been submitted before."""
        actor = self.actors.get(worker.actor)
        if actor is None or not actor.incarnation:
            return False
        return actor.state is not State.ALIVE or bool(actor.repeated)

    def may_restart(self, worker: Worker) -> bool:
        """Whether the actor that a dead worker was starts again, as far as is known here."""
        actor = self.actors.get(worker.actor)
        if actor is None or actor.worker is not worker:
            return worker.restarts
        if actor.leaving:
            return False
        return actor.info.max_restarts < 0 or actor.incarnation < actor.info.max_restarts

    def rows(self) -> list[list[object]]:
        """Return a row of each, for the query ``actors``."""
        return [
            [
                a.spec.name, self._node, a.incarnation, a.state.value, a.executed, a.replayed,
                "" if a.worker is None else a.worker.address,
            ]
            for a in self.actors.values()
        ]  # fmt: skip
