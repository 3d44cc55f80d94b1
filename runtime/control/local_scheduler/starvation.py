"""What waits on a node that has no room for it, while another node has: it moves there.

::

    a node (`Starving`)                      the global scheduler (`Moving`)
    what waits, and does not fit,
    until it starves (below) ──Heartbeat──────────> does another node have room,
                                                    by its last heartbeat?
    its oldest ranges and actors <──MoveTasks──────── yes
         └───────────TasksMoved───────────────────> each goes where there is room; if there
                                                    is none any more, where it waits least

    what cannot run here as long
    as the actors and placement
    groups live that are here ──Heartbeat─────────> can it, on another node? Then as above

Who has accepted a range is changed in the GCS by one message (`TaskUpdates.left`), so at any
moment the death of a node has what it has accepted placed again, once. An actor is placed
as it was before. What comes from a node that is known to be dead is dropped here, since the
GCS has placed it again.

A cancellation goes to who has accepted the range, and may find that it has just been passed
on: then it is sent behind it, once.

What has to run on its node stays, as does what has begun there before, since what that has
submitted is known there, unless a placement group has what it needs. Then it is marked
(`TaskExtra.begun`), and claims its children at the GCS, as if that had placed it again. What
waits for inputs stays, too: it may start any time. Nothing moves from a node that is merely
busy: that starts one task after another. Where what runs is expected to go on for longer than
the policy lets a task wait, that is how long one starves; else `STARVING_S`. Neither does a task
move whose inputs would take longer to follow than it has waited, or is to wait.

The cost is a look at each lane with every heartbeat, and nothing a task.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.actors.actor_record import ActorRecord
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.task_ranges import cut
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import Lane, ReadyQueue
from raytwin.runtime.control.local_scheduler.worker_leases import WorkerLeases
from raytwin.runtime.control.messages import CancelTask, MoveTasks, TaskExtra, TasksMoved, TaskSpec
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.scheduling.policies import UNTIMED_BANDWIDTH
from raytwin.runtime.control.scheduling.strategies import SPREAD, is_hard, strategy_of

STARVING_S = 1.0
"""So long nothing of a lane has started, and"""
STARVING_TASKS = 2.0
"""not for so many times as long as a task takes here either."""
LOOK_MAX = 256
"""Actors and ranges of a lane that are looked at."""
REMEMBER_S = 10.0
"""How long a node knows what it has passed on: until the GCS does, which is told at once."""


class Starvation:
    """What has waited too long on one node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        config: Config,
        pool: ResourcePool,
        ready: ReadyQueue,
        leases: WorkerLeases,
        actors: ActorManager,
        inputs: TaskInputs,
        objects: ObjectDirectory,
        log: GcsWriteLog,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._pool = pool
        self._wait_s = config.spill_wait_s
        self._ready = ready
        self._leases = leases
        self._actors = actors
        self._inputs = inputs
        self._objects = objects
        self._log = log
        self._heads: dict[Lane, tuple[object, float]] = {}
        """What is first in each lane, and since when."""
        self._queued: dict[ActorRecord, float] = {}
        """Since when actors wait."""
        self._moved: dict[bytes, list[tuple[float, TaskSpec]]] = {}
        """By array: what was passed on, and when."""

    def handlers(self) -> Handlers:
        return {MoveTasks: self.on_move}

    def look(self) -> dict[str, int]:
        """Return {demand: elements} of what starves here."""
        now = self._ctx.now()
        if self._moved:
            self._forget(now)
        patience_s = max(STARVING_S, STARVING_TASKS * self._leases.mean_task_s)
        if self._leases.busy_s >= self._wait_s:
            patience_s = min(patience_s, self._wait_s)
        found: dict[str, int] = {}
        ready = self._ready
        heads, self._heads = self._heads, {}
        for lane in ready.lanes():
            head = ready.head(lane)
            known, since_s = heads.get(lane, (None, now))
            since_s = since_s if known is head else now
            self._heads[lane] = (head, since_s)
            starves = now - since_s >= patience_s or not self._pool.usable(lane[1])
            if starves and not self._pool.fits(lane[1]):
                chosen = filter(self._choice(lane), ready.first(lane, LOOK_MAX))
                count = sum(spec.count for spec in chosen)
                found[lane[1]] = found.get(lane[1], 0) + count
        queued, self._queued = self._queued, {}
        for actor in self._actors.first_queued(LOOK_MAX):
            since_s = self._queued[actor] = queued.get(actor, now)
            demand = actor.spec.demand
            if (
                now - since_s >= patience_s
                and not self._pool.fits(demand)
                and self._may_move(actor.spec)
            ):
                found[demand] = found.get(demand, 0) + 1
        return {demand: count for demand, count in found.items() if count}

    def on_move(self, source: str, message: MoveTasks) -> None:
        """Another node has room for so many."""
        if self._pool.fits(message.demand):
            return  # so has this one, by now
        moved = self._actors.withdraw(
            lambda spec: spec.demand == message.demand and self._may_move(spec), message.count
        )
        left = message.count - len(moved)
        ready = self._ready
        for lane in ready.lanes():
            if lane[1] == message.demand and left:
                for spec in ready.take_some(lane, self._choice(lane), left):
                    left -= spec.count
                    self._inputs.unclaim(spec)
                    if (spec.array, spec.start) in ready.begun:
                        ready.begun.discard((spec.array, spec.start))
                        extra = TaskExtra() if spec.extra is None else spec.extra
                        spec.extra = replace(extra, begun=True)
                    self._log.moved(spec, self._objects.owners)
                    self._moved.setdefault(spec.array, []).append((self._ctx.now(), spec))
                    moved.append(spec)
        if moved:
            self._ctx.send("global", TasksMoved(self._node, self._incarnation, moved))

    def _choice(self, lane: Lane) -> Callable[[TaskSpec], bool]:
        """Return what tells which ranges of a lane had better run elsewhere."""
        if not self._pool.usable(lane[1]):
            return self._may_move
        now = self._ctx.now()
        waited_s = now - self._heads.get(lane, (None, now))[1]
        wait_s = max(waited_s, self._leases.busy_s)
        bytes_max = wait_s * (self._objects.pulls.bandwidth or UNTIMED_BANDWIDTH)
        here = self._objects.local.bytes_here
        return lambda spec: self._may_move(spec) and sum(map(here, spec.deps)) <= bytes_max

    def _may_move(self, spec: TaskSpec) -> bool:
        """Whether a range may run elsewhere: what it has submitted is found here at once.

        If a placement group has what it needs, it may never run here.
        """
        if not self._pool.feasible(spec.demand):
            return not is_hard(strategy_of(spec))
        begun = (spec.array, spec.start) in self._ready.begun
        return not begun and strategy_of(spec) in ("", SPREAD)

    def follow(self, message: CancelTask) -> bool:
        """Whether what is to be cancelled was passed on, so that the message has to follow it."""
        found = False
        for entry in self._moved.get(message.array, ())[:]:
            if cut(entry[1], message)[1] is not None:
                self._moved[message.array].remove(entry)
                found = True
        return found

    def _forget(self, now: float) -> None:
        for array, entries in list(self._moved.items()):
            entries[:] = [entry for entry in entries if now - entry[0] < REMEMBER_S]
            if not entries:
                del self._moved[array]
