"""A driver of real processes: makes its client, world, connection and session."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable

from raytwin.runtime.api.backend import connected, set_current
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.processes.client.direct_connections import DirectConnections
from raytwin.runtime.processes.client.local_world import LocalWorld, recorder
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.session.session import Session
from raytwin.runtime.store.arena import Arena


class DriverSession(Session):
    """A driver's session; its shutdown calls `end`, which ends the cluster."""

    def __init__(
        self, world: LocalWorld, cluster_address: str, end: Callable[[], None] | None = None
    ) -> None:
        super().__init__(world, end)
        self.cluster_address = cluster_address
        _drivers.add(self)

    def abandon(self) -> None:
        """Give up the session in a forked child, because the cluster is its parent's.

        This closes no descriptor, because the child shares the parent's epoll set.
        """
        self.references.closed = True
        if connected() is self:
            set_current(None)


_drivers: weakref.WeakSet[DriverSession] = weakref.WeakSet()


def _abandon_all() -> None:
    for session in _drivers:
        session.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def make_driver(
    address: str,
    node: int,
    config: Config,
    root: bytes,
    sock: socket.socket,
    arena: Arena,
    cluster_address: str,
    make: Callable[[LocalWorld], DriverSession] | None = None,
    from_workers: socket.socket | None = None,
) -> DriverSession:
    """Make a driver's session, from its socket to its node, and make it current.

    Through `from_workers` the workers of its node open direct connections.
    """
    process = ComponentProcess(config.seed)
    client = Client(process.context(address), address, node, config)
    client.submitter.begin_task(root)
    process.add(address, client)
    world = LocalWorld(process, client, None, arena, lambda reason: None)
    world.watcher = recorder()
    connection = Connection(process.reactor, sock, world.on_frame, world.on_close, peer=client.node)
    process.routes[client.node] = connection
    if from_workers is not None:
        world.workers = DirectConnections(process, address, from_workers, world.on_frame)
    session = DriverSession(world, cluster_address) if make is None else make(world)
    references = session.references
    references.on_drop = world.on_drop
    world.has_drops, world.tidy = references.has_drops, references.tidy
    set_current(session)
    world.start()
    if world.watcher is not None:
        world.watcher.begin()
    return session
