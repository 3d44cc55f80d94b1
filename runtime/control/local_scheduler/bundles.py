"""The bundles of placement groups on one node: prepared, committed, returned.

::

    PrepareBundle: its resources are taken ──CommitBundle──> the node has resources
    named after the group instead ──ReturnBundle──> the workers that use them are ended, then
    the named resources are removed and the bundle's resources are free again

The global scheduler sends these messages; `placement_groups` has the life of a group. Each message
is for one incarnation of a node. A later incarnation ignores it: no message would ever return the
resources that it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.group_resources import group_of, group_resources
from raytwin.runtime.control.core.resources import NumberedPool, Units, format_demand, parse_demand
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.messages import (
    BundlePrepared,
    CommitBundle,
    KillWorker,
    PlaceTasks,
    PrepareBundle,
    ReturnBundle,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import GroupRemoved


class _Bundle:
    __slots__ = ("committed", "demand", "removed", "resources", "units")

    def __init__(self, demand: str, units: Units, resources: dict[str, float]) -> None:
        self.demand = demand
        self.units = units
        self.resources = resources
        """The resources that the node has once the bundle is committed."""
        self.committed = False
        self.removed = False
        """Whether a client of this node has removed the group; `ReturnBundle` has not come yet."""


class Bundles:
    """The bundles of one incarnation of a node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        pool: NumberedPool,
        ready: ReadyQueue,
        workers: Mapping[str, Worker],
        inputs: TaskInputs,
        actors: NodeActors,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._pool = pool
        self._ready = ready
        self._workers = workers
        self._inputs = inputs
        self._actors = actors
        self._bundles: dict[tuple[str, int], _Bundle] = {}
        self.returning: dict[tuple[str, int], _Bundle] = {}
        """Bundles that wait for the end of the workers that use them."""

    def handlers(self) -> Handlers:
        return {
            PrepareBundle: self.on_prepare,
            CommitBundle: self.on_commit,
            ReturnBundle: self.on_return,
        }

    def all(self) -> Iterable[_Bundle]:
        """Return the node's bundles, prepared or committed."""
        return self._bundles.values()

    def on_remove(self, group: str) -> None:
        """A client of this node removes a group: the node spills the group's later tasks."""
        for bundle in self._of(group):
            bundle.removed = True

    def is_removed(self, group: str) -> bool:
        """Whether a client of this node has removed a group with a bundle here."""
        return any(bundle.removed for bundle in self._of(group))

    def is_gone(self, spec: TaskSpec) -> bool:
        """Whether a range's group was removed, and the resources it demands with it.

        A shard's `AssignTasks` may overtake the global scheduler's `CommitBundle`: the range
        waits for the bundle that is only prepared.
        """
        if self._pool.feasible(spec.demand):
            return False
        return all(bundle.committed for bundle in self._of(group_of(spec)))

    def _of(self, group: str) -> list[_Bundle]:
        return [bundle for (of, _), bundle in self._bundles.items() if of == group]

    def on_prepare(self, source: str, message: PrepareBundle) -> None:
        """Take the bundle's resources if they are free."""
        if message.incarnation != self._incarnation:
            return  # the global scheduler will learn that the other incarnation is dead
        key = (message.group, message.index)
        demand = format_demand(message.resources)
        ok = key not in self._bundles and self._pool.fits(demand)
        if ok:
            units = self._pool.lease(demand)
            named = group_resources(message.resources, message.group, message.index)
            self._bundles[key] = _Bundle(demand, units, named)
        answer = BundlePrepared(self._node, message.group, message.index, ok, message.attempt)
        self._ctx.send("global", answer)

    def on_commit(self, source: str, message: CommitBundle) -> None:
        """Let tasks use the bundle. Tasks that the node cannot run while the bundle has the
        resources move to another node (`starvation`); if none can run them, they wait."""
        if message.incarnation != self._incarnation:
            return
        bundle = self._bundles[(message.group, message.index)]
        bundle.committed = True
        self._pool.lend_to_group(bundle.demand)
        self._pool.add_bundle(bundle.resources, bundle.units)

    def _end_waiting(self, group: str) -> None:
        """Return a bundle. If it was committed, its group was removed: this node, which has logged
        the tasks that wait in it, ends them."""
        for spec in self._ready.take_out(lambda s: s if group_of(s) == group else None):
            self.end(spec)

    def end(self, spec: TaskSpec) -> None:
        """End a range that was accepted here and whose bundle is being returned, or was."""
        error = failed_value(GroupRemoved(spec.name, group_of(spec)))
        self._inputs.unclaim(spec)
        self._inputs.fail(spec, error)

    def on_return(self, source: str, message: ReturnBundle) -> None:
        """Return a bundle, at once or when the workers that use it have ended."""
        if message.incarnation != self._incarnation:
            return
        key = (message.group, message.index)
        bundle = self._bundles.get(key)
        if bundle is None:
            return  # it could not be prepared
        if not bundle.committed:
            del self._bundles[key]
            self._pool.end_lease(bundle.demand, bundle.units)
            return
        self.returning[key] = bundle
        for worker in self._workers.values():
            if worker.kill_error is None and self._uses(worker.demand, bundle):
                running = worker.assigned[0].name if worker.assigned else "a task"
                worker.is_killed = True
                worker.kill_error = failed_value(GroupRemoved(running, message.group))
                self._ctx.send(f"pool:{self._node}", KillWorker(worker.address))

    @staticmethod
    def _uses(demand: str, bundle: _Bundle) -> bool:
        return any(name in bundle.resources for name, _ in parse_demand(demand))

    def end_turn(self) -> None:
        """End the tasks that wait in bundles being returned; free the bundles that no worker
        uses."""
        for key, bundle in list(self.returning.items()):
            self._end_waiting(key[0])
            waiting = self._actors.withdraw(
                lambda spec, group=key[0]: group_of(spec) == group  # type: ignore[misc]
            )
            for spec in waiting:
                self._ctx.send("global", PlaceTasks([spec]))
            if self._pool.is_free(bundle.resources):
                del self._bundles[key], self.returning[key]
                self._pool.remove_bundle(bundle.resources, bundle.units)
                self._pool.end_group_loan(bundle.demand)
                self._pool.end_lease(bundle.demand, bundle.units)
