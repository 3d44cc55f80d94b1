"""The node process: node manager, object store and worker pool in one event loop."""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.assembly import make_node
from raytwin.runtime.control.core.addresses import MASTER, chain_of, is_node, master_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Frame, NodeInfo, ReplicaLost
from raytwin.runtime.control.node.node_manager import NodeManager
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
from raytwin.runtime.processes.net.links import Links
from raytwin.runtime.processes.net.process_settings import (
    NodeSettings,
    journal_path,
    set_up_logging,
)
from raytwin.runtime.processes.node.driver_admission import DriverAdmission
from raytwin.runtime.processes.node.object_store import ObjectStore
from raytwin.runtime.processes.node.worker_processes import WorkerProcesses
from raytwin.runtime.store.arena import Arena

# Made before the fork: msgspec takes a millisecond to inspect a class.
_settings_of = msgspec.msgpack.Decoder(NodeSettings).decode


class Node:
    """Wires one node's parts to its head, its peers and its clients."""

    def __init__(self, settings: NodeSettings, fds: list[int]) -> None:
        number = settings.node
        self.address = f"node:{number}"
        self._token = settings.token
        # Each incarnation of a node has a journal of its own.
        suffix = f".{settings.incarnation}" if settings.incarnation > 1 else ""
        journal = journal_path(settings.journal)
        self.process = ComponentProcess(settings.config.seed, journal, suffix)
        reactor = self.process.reactor

        def make(ctx: Context) -> NodeManager:
            return NodeManager(
                ctx, number, settings.resources, settings.config, settings.incarnation
            )

        # If the GCS is a chain, the node manager sends to it through a client of the chain.
        component, self._chain_clients, self.manager = make_node(
            self.process.context(self.address), self.address, settings.config, make
        )
        self.process.add(self.address, component)
        spawner, arena_fd = socket.socket(fileno=fds[0]), fds[1]
        driver = f"driver:{number}.0" if len(fds) > 2 else ""
        self.pool = WorkerProcesses(
            self.process, number, settings.config, spawner, arena_fd, driver,
            fds[3] if driver else -1,
        )  # fmt: skip
        self.process.add(f"pool:{number}", self.pool, journaled=False)
        arena = Arena.attach(arena_fd)
        self.store = ObjectStore(
            self.process,
            number,
            arena,
            self._token,
            self._address_of,
            settings.spill_directory,
            settings.config,
        )
        self.process.add(f"store:{number}", self.store, journaled=False)
        # A node that hangs keeps its connections open, so they do not report its death.
        self._links = Links(self._info_of, on_death=self.store.drop_peer)
        self.process.add(f"links:{number}", self._links, journaled=False)
        self.process.find_route = self._dial
        listener = Listener(reactor, listen(settings.host), self._accept)
        self._in_head = settings.config.gcs_durable
        HeadLink(
            self.process,
            settings.head,
            self._token,
            ("gcs", "global", *map(master_of, range(settings.config.chains))),
            self.process.receive,
            self._introduce if settings.config.gcs_durable else None,
            own_incarnation=settings.incarnation,
        )
        self._first_driver = ""
        if settings.join_socket:
            self._admission = DriverAdmission(
                self.process, number, self._token, settings.config, arena_fd, settings.join_socket,
                self._on_client_frame,
            )  # fmt: skip
            self.process.add(f"admission:{number}", self._admission, journaled=False)
        if driver:
            self._connect_driver(driver, socket.socket(fileno=fds[2]))
        self.manager.start(*listener.address)
        self._introduce()

    def _connect_driver(self, address: str, sock: socket.socket) -> None:
        connection = Connection(
            self.process.reactor, sock, self._on_client_frame, self._on_driver_lost, peer=address
        )
        self.process.routes[address] = connection
        self._first_driver = address

    def _on_client_frame(self, connection: Connection, frame: Frame) -> None:
        frame.source = connection.peer
        self.process.receive(connection, frame)

    def _on_driver_lost(self, connection: Connection, reason: str) -> None:
        self.process.stop("the driver is gone")

    def _introduce(self) -> None:
        """Introduce this node to the masters of the GCS's chains, if there are any."""
        for client in self._chain_clients:
            client.start()

    # -- replicas of the GCS ---------------------------------------------------

    def _dial_replica(self, name: str) -> Connection | None:
        if self._in_head:
            return self.process.routes[MASTER]
        chain = chain_of(name)
        clients = self._chain_clients
        info = clients[chain].members.get(name) if chain < len(clients) else None
        if info is None:
            return None
        connection = DialedConnection(
            self.process.reactor,
            (info.host, info.port),
            self._token,
            self._on_replica_frame,
            self._on_replica_lost,
            peer=name,
            own_incarnation=self.manager.incarnation,
        )
        self.process.routes[name] = connection
        return connection

    def _on_replica_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.source != connection.peer:
            connection.refuse(f"{connection.peer} speaks as {frame.source}")
        else:
            self.process.receive(connection, frame)

    def _on_replica_lost(self, connection: Connection, reason: str) -> None:
        if self.process.routes.get(connection.peer) is connection:
            del self.process.routes[connection.peer]
            self.process.deliver(self.address, self.address, ReplicaLost(connection.peer, reason))

    # -- peers -----------------------------------------------------------------

    def _accept(self, sock: socket.socket, peer: str) -> None:
        AcceptedConnection(
            self.process.reactor,
            sock,
            self._token,
            self._on_frame,
            self._on_peer_lost,
            on_data=self.store.serve,
            peer=peer,
        )

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if not is_node(frame.source) or frame.source == self.address:
            connection.refuse(f"{frame.source} is not another node")
            return
        if connection.bound and connection.peer != frame.source:
            connection.refuse(f"{connection.peer} speaks as {frame.source}")
            return
        if not connection.bound:
            if not self._links.bind(connection, frame.source):
                return
            self.process.routes.setdefault(frame.source, connection)
        self.process.receive(connection, frame)

    def _on_peer_lost(self, connection: Connection, reason: str) -> None:
        self._links.discard(connection)
        if self.process.routes.get(connection.peer) is connection:
            del self.process.routes[connection.peer]

    def _info_of(self, node: int) -> NodeInfo | None:
        return self.manager.members.nodes.get(node)

    def _address_of(self, node: int) -> tuple[str, int] | None:
        info = self._info_of(node)
        return (info.host, info.port) if info is not None and info.alive else None

    def _dial(self, destination: str) -> Connection | None:
        """Return a new connection to a node or replica; None if it is not alive."""
        kind, _, number = destination.partition(":")
        if kind == "replica":
            return self._dial_replica(destination)
        if kind != "node":
            return None
        address, info = self._address_of(int(number)), self._info_of(int(number))
        if address is None or info is None:
            return None
        connection = DialedConnection(
            self.process.reactor,
            address,
            self._token,
            self._on_frame,
            self._on_peer_lost,
            peer=destination,
            own_incarnation=self.manager.incarnation,
        )
        connection.incarnation = info.incarnation
        if not self._links.bind(connection, destination):
            return None
        self.process.routes[destination] = connection
        return connection

    def run(self) -> None:
        """Run until the cluster has ended or has declared this node dead."""
        process = self.process
        process.run_turns()
        if self._first_driver:
            self._admission.register_first(self._first_driver)
            process.run_turns()
        while not process.stopped:
            process.step(None)
            fenced = self.manager.members.fenced
            if fenced:
                log.warning("leaving: the cluster declared this node dead: %s", fenced)
                process.stop(fenced)


def main(payload: bytes, fds: list[int]) -> None:
    """Run a node until the cluster ends or has declared it dead."""
    settings = _settings_of(payload)
    set_up_logging(f"node {settings.node}")
    Node(settings, fds).run()
