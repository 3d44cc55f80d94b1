"""Starvation: ranges and actors that find no resources on their node move to one that has them.

::

    this node                                          the global scheduler
    demands that starve ──Heartbeat (`Load.starving`)──> does another node have room?
    its oldest such ranges and actors <──MoveTasks────── yes
         └───────────TasksMoved────────────────────────> places them again

A lane starves if none of its ranges has started for `STARVING_S` and for `STARVING_TASKS` mean
task times, or at once if the node's actors and placement groups leave no room for its demand. If
the tasks that run here are expected to take longer than the policy's ``spill_wait_s``, that is the
limit instead.

A range does not move if its strategy names this node. Nor does it move if it has begun here on a
worker that died, since its children are here; but if a placement group has taken the resources it
needs, it moves all the same, and asks the GCS for its children as if the GCS had placed it again.
One message (`TaskUpdates.left`) changes the node of a range in the GCS, so that the GCS has the
range placed again exactly once if either node dies.

Cost: a check of each lane with every heartbeat, nothing per task.
"""

from __future__ import annotations

from collections.abc import Hashable

from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.task_ranges import part_of
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.local_scheduler.worker_leases import WorkerLeases
from raytwin.runtime.control.messages import MoveTasks, TasksMoved, TaskSpec
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.scheduling.strategies import SPREAD, is_hard, strategy_of

STARVING_S = 1.0
"""A lane starves only after so many seconds without a start."""
STARVING_TASKS = 2.0
"""A lane starves only after so many mean task times without a start."""
LOOK_MAX = 256
"""How many ranges of a lane, and actors, one check considers."""


class Starvation:
    """Finds the ranges and actors that starve on one node, and gives them away."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        config: Config,
        pool: ResourcePool,
        ready: ReadyQueue,
        leases: WorkerLeases,
        actors: NodeActors,
        inputs: TaskInputs,
        objects: NodeObjects,
        log: GcsWriteLog,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._spill_wait_s = config.spill_wait_s
        self._pool = pool
        self._ready = ready
        self._leases = leases
        self._actors = actors
        self._inputs = inputs
        self._objects = objects
        self._log = log
        self._since_s: dict[Hashable, float] = {}
        """The time since which each queued actor waits, or each lane has had its first range."""

    def handlers(self) -> Handlers:
        return {MoveTasks: self.on_move}

    def look(self) -> dict[str, int]:
        """Return {demand: elements} that starve here."""
        if not (self._ready.size or self._actors.queued):
            self._since_s.clear()
            return {}
        now = self._ctx.now()
        waiting: list[tuple[Hashable, str, bool, list[TaskSpec]]] = []
        """Each a key, a demand, whether it waits in vain, and its ranges."""
        for lane in self._ready.lanes():
            in_vain = not self._pool.usable(lane[1])
            ranges = self._ready.first(lane, LOOK_MAX)
            waiting.append(((lane, self._ready.head(lane)), lane[1], in_vain, ranges))
        for actor in self._actors.first_queued(LOOK_MAX):
            waiting.append((actor.id, actor.spec.demand, False, [actor.spec]))
        self._since_s = {key: self._since_s.get(key, now) for key, *_ in waiting}
        patience_s = max(STARVING_S, STARVING_TASKS * self._leases.times.mean_s)
        if self._leases.busy_s >= self._spill_wait_s:
            patience_s = min(patience_s, self._spill_wait_s)
        found: dict[str, int] = {}
        for key, demand, in_vain, specs in waiting:
            starves = in_vain or now - self._since_s[key] >= patience_s
            if starves and not self._pool.fits(demand):
                count = sum(spec.count for spec in specs if self._may_move(spec))
                found[demand] = found.get(demand, 0) + count
        return {demand: count for demand, count in found.items() if count}

    def on_move(self, source: str, message: MoveTasks) -> None:
        """Give away up to the requested number of elements, for which other nodes have room."""
        if self._pool.fits(message.demand):
            return  # this node itself has room now
        moved = self._actors.withdraw(
            lambda spec: spec.demand == message.demand and self._may_move(spec), message.count
        )
        left = message.count - len(moved)

        def taken(spec: TaskSpec) -> TaskSpec | None:
            nonlocal left
            may = spec.demand == message.demand and self._may_move(spec)
            count = min(spec.count, left) if may else 0
            left -= count
            return part_of(spec, spec.start, count) if count else None

        ranges = self._ready.take_out(taken)
        if moved or ranges:
            self.send_away(moved, ranges)

    def send_away(self, actors: list[TaskSpec], ranges: list[TaskSpec], thief: int = -1) -> None:
        """Return actors, and ranges that were ready here, to the global scheduler.

        It places them on the node `thief` if that can run them; -1: wherever its policy says.
        """
        for spec in ranges:
            self._inputs.unclaim(spec)
            self._log.moved(spec, self._objects.owners)
        moved = TasksMoved(self._node, self._incarnation, [*actors, *ranges], thief)
        self._ctx.send("global", moved)

    def _may_move(self, spec: TaskSpec) -> bool:
        """Whether a range may run elsewhere."""
        strategy = strategy_of(spec)
        if not self._pool.feasible(spec.demand):
            return not is_hard(strategy)
        return strategy in ("", SPREAD) and (spec.extra is None or spec.extra.begun < 0)
