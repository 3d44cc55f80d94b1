"""Keep or pass on: how much of a submitted range a node runs itself.

::

    a range ──says where it has to run──> `strategies`: all, some or none of it
            ──in another job's placement group──> none: that group's table says if it may
            ──in one that a client here removed──> none: that table says it is gone
            ──else──> `policies`, by what this node looks like to it (`LocalView`)

Tasks that come in one message are mostly alike: between them only the queue changes, so
the view of the one before is used again until `forget`.
"""

from __future__ import annotations

from raytwin.runtime.control.core.group_resources import group_of, is_of_job
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.control.scheduling.policies import LocalView, Policy
from raytwin.runtime.control.scheduling.strategies import kept

_NONE = (b"", "")


class Spillback:
    """What one node keeps of what its clients submit."""

    def __init__(
        self,
        node: int,
        policy: Policy,
        pool: ResourcePool,
        members: Membership,
        dispatcher: Dispatcher,
        bundles: Bundles,
    ) -> None:
        self._node = node
        self._policy = policy
        self._pool = pool
        self._members = members
        self._dispatcher = dispatcher
        self._bundles = bundles
        self._view_of = _NONE
        """Function and demand of the task before in this message, none outside of one."""
        self._view = LocalView(alone=True, feasible=False, queue=0, slots=0, mean_task_s=0.0)

    def forget(self) -> None:
        """What comes next is of another message: means and free resources may be others."""
        self._view_of = _NONE

    def of(self, spec: TaskSpec) -> int:
        """Return how many elements of a range stay here, from its start on."""
        if spec.extra is None and self._view_of == (spec.function, spec.demand):
            # As the one before in this message: only the queue has changed.
            self._view.queue = self._dispatcher.queue
            return self._policy.keep(self._view, spec.count)
        feasible = self._pool.feasible(spec.demand)
        if spec.extra is not None:
            group = group_of(spec)
            if group and (not is_of_job(group, spec.array) or self._bundles.is_removed(group)):
                return 0
            strategy = spec.extra.strategy
            if strategy:
                return kept(strategy, self._node, spec.count, feasible, self._members.alone)
        view = LocalView(
            alone=self._members.alone,
            feasible=feasible,
            queue=self._dispatcher.queue,
            slots=self._pool.slots(spec.demand),
            mean_task_s=self._dispatcher.leases.means.get(spec.function, 0.0),
            busy_s=0.0 if self._pool.fits(spec.demand) else self._dispatcher.leases.busy_s,
        )
        if spec.extra is None:
            self._view_of, self._view = (spec.function, spec.demand), view
        return self._policy.keep(view, spec.count)
