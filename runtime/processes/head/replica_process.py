"""The process of one replica of the GCS: a member of a chain (see `replication.replica`).

The replica connects to the head, where the master is, and to its neighbours in the chain;
clients connect to it. Its state is in memory only: the replica that replaces it gets the
state from the others. It ends with the head.
"""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.assembly import make_machine
from raytwin.runtime.control.core.addresses import RELAY, chain_of, is_node, is_replica
from raytwin.runtime.control.messages import Frame, ReplicaInfo, ReplicaLost
from raytwin.runtime.control.replication.replica import Replica, State
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import (
    AcceptedConnection,
    Connection,
    DialedConnection,
    Listener,
    listen,
    log,
)
from raytwin.runtime.processes.net.head_link import HeadLink
from raytwin.runtime.processes.net.process_settings import (
    ReplicaSettings,
    journal_path,
    set_up_logging,
)


class ReplicaProcess:
    """Wires one replica to the master, its neighbours and its clients."""

    def __init__(self, settings: ReplicaSettings) -> None:
        config = settings.config
        self.name = settings.name
        self._token = settings.token
        self.process = ComponentProcess(config.seed, journal_path(settings.journal))
        reactor = self.process.reactor
        sock = listen(settings.host)
        host, port = sock.getsockname()[:2]
        Listener(reactor, sock, self._accept)
        chain = chain_of(self.name)
        self.replica = Replica(
            self.process.context(self.name),
            ReplicaInfo(self.name, host, port),
            config,
            lambda: make_machine(config, chain),
        )
        self.process.add(self.name, self.replica)
        self.process.find_route = self._dial
        HeadLink(
            self.process,
            settings.head,
            self._token,
            {self.replica.master, RELAY},
            self.process.receive,
        )
        self.replica.start()

    def run(self) -> None:
        """Run until the head has ended or the chain goes on without this replica."""
        process = self.process
        process.run_turns()
        while not process.stopped:
            process.step(None)
            if self.replica.state is State.FENCED:
                log.warning("leaving: the chain goes on without this replica")
                process.stop("fenced")

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        source = frame.source
        if not is_node(source) and not is_replica(source):
            connection.refuse(f"{source} is neither a node nor a replica")
            return
        if connection.bound and connection.peer != source:
            connection.refuse(f"{connection.peer} speaks as {source}")
            return
        if not connection.bound:
            connection.bound = True
            connection.peer = source
            if is_replica(source):
                # Both may have connected: each sends on one connection only, hence in order.
                self.process.routes.setdefault(source, connection)
            else:
                self.process.routes[source] = connection
        self.process.receive(connection, frame)

    def _accept(self, sock: socket.socket, peer: str) -> None:
        AcceptedConnection(
            self.process.reactor, sock, self._token, self._on_frame, self._on_close, peer=peer
        )

    def _on_close(self, connection: Connection, reason: str) -> None:
        peer = connection.peer
        if self.process.routes.get(peer) is connection:
            del self.process.routes[peer]
            if is_replica(peer):
                self.process.deliver(self.name, self.name, ReplicaLost(peer, reason))

    def _dial(self, destination: str) -> Connection | None:
        """Return a new connection to another replica; None for other addresses."""
        info = self.replica.infos.get(destination)
        if info is None:
            return None
        connection = DialedConnection(
            self.process.reactor,
            (info.host, info.port),
            self._token,
            self._on_frame,
            self._on_close,
            peer=destination,
        )
        connection.bound = True
        self.process.routes[destination] = connection
        return connection


def main(payload: bytes, fds: list[int]) -> None:
    """Run a replica until it is fenced or the head has ended and does not return."""
    settings = msgspec.msgpack.decode(payload, type=ReplicaSettings)
    set_up_logging(settings.name)
    ReplicaProcess(settings).run()
