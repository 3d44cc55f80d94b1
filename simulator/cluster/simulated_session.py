"""The sessions of programs in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.session.futures import LazyFuture, settled_item
from raytwin.runtime.session.session import Session
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.programs.virtual_world import SimWorld, VirtualEventLoop


class SimSession(Session):
    """A driver's or a worker's session; its futures can be awaited in a virtual event loop."""

    def __init__(
        self, world: SimWorld, cluster: ClusterPort, end: Callable[[], None] | None = None
    ) -> None:
        """The session calls `end` at its shutdown: the first driver's ends the cluster."""
        super().__init__(world, end)
        self.cluster = cluster

    def describe_job(self, namespace: str, env_vars: tuple[tuple[str, str], ...] = ()) -> None:
        """Describe this driver's job to the GCS, without the real process's PID and arguments.

        These differ from run to run, so the frames would, too.
        """
        self.namespace = namespace
        self.context.env_vars = env_vars
        with self.world:
            self.client.submitter.describe_job(namespace, "", 0)

    def future(self, ref: ObjectRef) -> Future[Any]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of(ref)
        return LazyFuture(self, ref)

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of_item(array, index)
        return settled_item(self, array, index)
