"""Spillback: how much of a range its node keeps; the rest goes to the global scheduler.

============================================= ==================================================
a range                                       the node keeps
============================================= ==================================================
in a placement group that a client here has   nothing: the global scheduler ends the range
removed
with a strategy                               all of it or nothing, see `strategies`
any other                                     as many elements as `policies.Policy.keep`
                                              returns for a view of this node (`LocalView`)
============================================= ==================================================

Tasks of one message are mostly alike, and only the queue changes between them, so consecutive
tasks of a message share a view.
"""

from __future__ import annotations

from raytwin.runtime.control.core.group_resources import group_of
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.control.scheduling.policies import LocalView, Policy
from raytwin.runtime.control.scheduling.strategies import kept

_NONE = (b"", "")


class Spillback:
    """Decides which part of a range one node keeps."""

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
        self.policy = policy
        self._pool = pool
        self._members = members
        self._dispatcher = dispatcher
        self._bundles = bundles
        self._view_of = _NONE
        """Function and demand of the previous task in this message."""
        self._view = LocalView(alone=True, feasible=False, queue=0, slots=0, mean_task_s=0.0)

    def end_message(self) -> None:
        """Forget the view, because means and free resources change between messages."""
        self._view_of = _NONE

    def keep(self, spec: TaskSpec) -> int:
        """Return how many elements of a range this node keeps, from its start on."""
        if spec.extra is None and self._view_of == (spec.function, spec.demand):
            self._view.queue = self._dispatcher.queue
            return self.policy.keep(self._view, spec.count)
        feasible = self._pool.feasible(spec.demand)
        if spec.extra is not None:
            group = group_of(spec)
            if group and self._bundles.is_removed(group):
                return 0
            strategy = spec.extra.strategy
            if strategy:
                return kept(strategy, self._node, spec.count, feasible, self._members.alone)
        view = LocalView(
            alone=self._members.alone,
            feasible=feasible,
            queue=self._dispatcher.queue,
            slots=self._pool.slots(spec.demand),
            mean_task_s=self._dispatcher.leases.times.means.get(spec.function, 0.0),
            busy_s=0.0 if self._pool.fits(spec.demand) else self._dispatcher.leases.busy_s,
        )
        if spec.extra is None:
            self._view_of, self._view = (spec.function, spec.demand), view
        return self.policy.keep(view, spec.count)
