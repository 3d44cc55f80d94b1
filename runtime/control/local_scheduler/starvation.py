"""Starvation: ranges and actors that wait on a node without room for them, reported to move.

Every heartbeat reports the demands that starve (`Load.starving`). If another node has room, the
global scheduler answers with `MoveTasks`, and this node passes its oldest such ranges and actors
on with `TasksMoved`; the other side is `scheduling.migration`. A lane starves if none of its
ranges has started for `STARVING_S` and for `STARVING_TASKS` mean task times, or at once if the
node's actors and placement groups leave no room for its demand. If the tasks that run here are
expected to take longer than the policy's ``spill_wait_s``, that is the limit instead.

A range stays here if its strategy names this node; if it has begun here before, since this node
knows its children; if it waits for inputs, since it may start any time; if moving its inputs
would take longer than it has waited. A range that has begun moves all the same if a placement
group has taken the resources that it needs: it is marked (`TaskExtra.begun`), and claims its
children at the GCS as if the GCS had placed it again. A node that is merely busy passes nothing
on, since it starts one task after another.

A cancellation may reach this node after it has passed the range on; the node sends it behind
the range once (`follow`).

Cost: a look at each lane with every heartbeat, nothing per task.
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
"""A lane starves after so long without a start, and"""
STARVING_TASKS = 2.0
"""after so many mean task times."""
LOOK_MAX = 256
"""Ranges of a lane, and actors, that one look considers."""
REMEMBER_S = 10.0
"""How long a node remembers what it has passed on; the GCS knows it long before."""


class Starvation:
    """Finds the ranges and actors that starve on one node, and passes them on."""

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
        """The first entry of each lane, and since when it is first."""
        self._queued: dict[ActorRecord, float] = {}
        """Since when each queued actor waits."""
        self._moved: dict[bytes, list[tuple[float, TaskSpec]]] = {}
        """Ranges that were passed on, by array, each with the time."""

    def handlers(self) -> Handlers:
        return {MoveTasks: self.on_move}

    def look(self) -> dict[str, int]:
        """Return {demand: elements} that starve here."""
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
        """Pass on up to so many elements: another node has room for them."""
        if self._pool.fits(message.demand):
            return  # this node has room itself by now
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
        """Return a filter for the ranges of a lane that had better run elsewhere."""
        if not self._pool.usable(lane[1]):
            return self._may_move
        now = self._ctx.now()
        waited_s = now - self._heads.get(lane, (None, now))[1]
        wait_s = max(waited_s, self._leases.busy_s)
        bytes_max = wait_s * (self._objects.pulls.bandwidth or UNTIMED_BANDWIDTH)
        here = self._objects.local.bytes_here
        return lambda spec: self._may_move(spec) and sum(map(here, spec.deps)) <= bytes_max

    def _may_move(self, spec: TaskSpec) -> bool:
        """Whether a range may run elsewhere.

        One that has begun stays with its children, unless placement groups have taken the
        resources that it needs.
        """
        if not self._pool.feasible(spec.demand):
            return not is_hard(strategy_of(spec))
        begun = (spec.array, spec.start) in self._ready.begun
        return not begun and strategy_of(spec) in ("", SPREAD)

    def follow(self, message: CancelTask) -> bool:
        """Whether this node has passed on what a message cancels, so the message must follow."""
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
