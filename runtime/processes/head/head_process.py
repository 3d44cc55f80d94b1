"""The head process: GCS and global scheduler behind one TCP listener."""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.core.addresses import is_node, node_of
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import Frame, NodeUnreachable
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import AcceptedConnection, Connection, Listener
from raytwin.runtime.processes.net.links import Links
from raytwin.runtime.processes.net.process_settings import (
    HeadSettings,
    journal_path,
    set_up_logging,
)

# Made before the fork: msgspec takes a millisecond to inspect a class.
_settings_of = msgspec.msgpack.Decoder(HeadSettings).decode


class Head:
    """Wires the two components to the nodes' connections."""

    def __init__(self, settings: HeadSettings, listener: socket.socket) -> None:
        config = settings.config
        self.process = ComponentProcess(config.seed, journal_path(settings.journal))
        self._token = settings.token
        gcs = Gcs(self.process.context("gcs"), config)
        self.process.add("gcs", gcs)
        scheduler = GlobalScheduler(self.process.context("global"), config)
        self.process.add("global", scheduler)
        self._links = Links(gcs.nodes.rows.get)
        self.process.add("links", self._links, journaled=False)
        Listener(self.process.reactor, listener, self._accept)
        gcs.start()

    def _accept(self, sock: socket.socket, peer: str) -> None:
        AcceptedConnection(
            self.process.reactor,
            sock,
            self._token,
            self._on_frame,
            self._on_close,
            peer=peer,
        )

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if not is_node(frame.source):
            connection.refuse(f"{frame.source} is not a node")
            return
        if connection.bound and connection.peer != frame.source:
            connection.refuse(f"{connection.peer} speaks as {frame.source}")
            return
        if not connection.bound:
            if not self._links.bind(connection, frame.source):
                return
            self.process.routes[frame.source] = connection
        self.process.receive(connection, frame)

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._links.discard(connection)
        if connection.bound and self.process.routes.get(connection.peer) is connection:
            del self.process.routes[connection.peer]
            self.process.deliver(
                "gcs",
                "gcs",
                NodeUnreachable(node_of(connection.peer), f"connection lost: {reason}"),
            )


def main(payload: bytes, fds: list[int]) -> None:
    """Run the head until it is killed."""
    set_up_logging("head")
    settings = _settings_of(payload)
    spawner, listener = (socket.socket(fileno=fd) for fd in fds)
    # Imported only if needed: sqlite3 alone would cost every cluster 1 MB.
    if settings.config.gcs_durable:
        from raytwin.runtime.processes.head.durable_head import durable_head

        durable_head(settings, listener, spawner).run()
    elif settings.config.chained:
        from raytwin.runtime.processes.head.replicated_head import replicated_head

        replicated_head(settings, listener, spawner).run()
    else:
        Head(settings, listener).process.run()
