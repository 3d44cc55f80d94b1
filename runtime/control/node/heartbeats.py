"""What a node says of itself: that it lives, and what it is doing.

::

    Registered ──> the node table ──> Heartbeat with its load ──after `heartbeat_s`──┐
                                            ↑                                        │
                                            └────────────────────────────────────────┘

What is told once in a while, and not with a turn of its own, is told at the same time:
calls that actors repeat.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.local_scheduler.assignments import Assignments
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.local_scheduler.starvation import Starvation
from raytwin.runtime.control.messages import Heartbeat, Load, Registered
from raytwin.runtime.control.objects.object_directory import ObjectDirectory


class Heartbeats:
    """Those of one node, from its registration on."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        config: Config,
        members: Membership,
        pool: ResourcePool,
        objects: ObjectDirectory,
        dispatcher: Dispatcher,
        assignments: Assignments,
        actors: ActorManager,
        starvation: Starvation,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._config = config
        self._members = members
        self._pool = pool
        self._objects = objects
        self._dispatcher = dispatcher
        self._assignments = assignments
        self._actors = actors
        self._starvation = starvation

    def handlers(self) -> Handlers:
        return {Registered: self.on_registered}

    def on_registered(self, source: str, message: Registered) -> None:
        """The GCS has let this node in."""
        for info in message.nodes:
            self._members.update(info)
        self._beat()

    def _beat(self) -> None:
        load = Load(
            queue=self._dispatcher.queue,
            mean_task_s=self._dispatcher.leases.mean_task_s,
            bandwidth=self._objects.pulls.bandwidth,
            assigned=self._assignments.assigned,
            available=self._pool.available(),
            starving={} if self._members.alone else self._starvation.look(),
            held=dict(self._pool.held),
        )
        self._actors.reconstruction.on_heartbeat()
        self._ctx.send("gcs", Heartbeat(self._node, self._incarnation, load))
        self._ctx.after(self._config.heartbeat_s, self._beat)
