"""The node process: node manager, object store and worker pool in one event loop."""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.assembly import make_node
from raytwin.runtime.control.channels.channel import Me
from raytwin.runtime.control.core.addresses import (
    HEAD,
    HEALTH,
    chain_of,
    heartbeat_of,
    is_node,
    is_replica,
    node_of,
    process_of,
)
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Frame, NodeInfo
from raytwin.runtime.control.node.heartbeats import Heartbeats
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.net.channels import Channels
from raytwin.runtime.processes.net.component_process import ComponentProcess, Route
from raytwin.runtime.processes.net.connection import Connection, listen, log
from raytwin.runtime.processes.net.heartbeat_connections import HeartbeatRoute
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
        self.process = ComponentProcess(settings.config.seed, journal_path(settings.journal))

        def make(ctx: Context) -> NodeManager:
            return NodeManager(
                ctx, number, settings.resources, settings.config, settings.incarnation
            )

        # If the GCS is a chain, the node manager sends to it through a client of the chain.
        component, self._chain_clients, self.manager = make_node(
            self.process.begin_first_turn(self.address),
            self.address,
            settings.incarnation,
            settings.config,
            make,
        )
        self.process.add(self.address, component)
        if settings.listening:
            sock = socket.socket(fileno=fds.pop())
        else:
            sock = listen(settings.host, settings.port)
        spawner, arena = socket.socket(fileno=fds[0]), Arena.attach(fds[1], fds[2])
        driver = f"driver:{number}.0" if len(fds) > 3 else ""
        self.pool = WorkerProcesses(
            self.process, number, settings.config, spawner, arena.fds, driver,
            fds[4] if driver else -1,
        )  # fmt: skip
        self.process.add(f"pool:{number}", self.pool)
        self.store = ObjectStore(
            self.process,
            number,
            arena,
            self._token,
            self._address_of,
            settings.spill_directory,
            settings.config,
        )
        self.process.add(f"store:{number}", self.store)
        self._channels = Channels(
            self.process,
            Me(self.address, settings.incarnation),
            self._token,
            settings.config,
            self._info_of,
            self._listens_at,
            self._leave,
        )
        self._channels.on_data = self.store.serve
        self._channels.on_new_head = self._introduce
        self._channels.on_node_changed = self._drop_transfers
        self.process.add(f"links:{number}", self._channels.peers)
        self._in_head = settings.config.gcs_durable
        self._via = settings.via
        self._head = settings.via.get(HEAD, settings.head)
        self.process.find_route = self._find_route
        listener = self._channels.listen(sock)
        heartbeat = heartbeat_of(number)
        heartbeats = Heartbeats(
            self.process.context(heartbeat), number, settings.incarnation, settings.config
        )
        self.process.add(heartbeat, heartbeats)
        self.process.routes[HEALTH] = HeartbeatRoute(
            self.process, lambda: self._head, self._token, heartbeat,
            settings.config.heartbeat_silence_s,
        )  # fmt: skip
        self._first_driver = ""
        if settings.join_socket:
            self._admission = DriverAdmission(
                self.process, number, self._token, settings.config, arena.fds, settings.join_socket,
                self._on_client_frame,
            )  # fmt: skip
            self.process.add(f"admission:{number}", self._admission.component)
        if driver:
            self._connect_driver(driver, socket.socket(fileno=fds[3]))
        self.manager.start(*listener.address)
        self._introduce()
        self.process.end_first_turn(
            Origin(
                self.address,
                settings.config,
                *listener.address,
                settings.incarnation,
                settings.resources,
            )
        )

    def _connect_driver(self, address: str, sock: socket.socket) -> None:
        connection = Connection(
            self.process.reactor, sock, self._on_client_frame, self._on_driver_lost, peer=address
        )
        self.process.routes[address] = connection
        self._first_driver = address

    def _on_client_frame(self, connection: Connection, frame: Frame) -> None:
        frame.source = connection.peer
        self.process.receive(frame)

    def _on_driver_lost(self, connection: Connection, reason: str) -> None:
        self.process.stop("the driver is gone")

    def _introduce(self) -> None:
        """Introduce this node to the masters of the GCS's chains, if there are any."""
        for client in self._chain_clients:
            client.start()

    # -- other processes ---------------------------------------------------------

    def _find_route(self, destination: str) -> Route | None:
        peer = process_of(destination)
        if is_replica(peer) and self._in_head:
            peer = HEAD
        if not (peer == HEAD or is_node(peer) or is_replica(peer)):
            return None  # a client that has ended
        return self._channels.route(destination, peer)

    def _listens_at(self, peer: str) -> tuple[str, int] | None:
        if peer == HEAD:
            return self._head
        if is_node(peer):
            return self._address_of(node_of(peer))
        chain = chain_of(peer)
        info = self._chain_clients[chain].members.get(peer)
        return None if info is None else self._via.get(peer, (info.host, info.port))

    def _leave(self, reason: str) -> None:
        log.warning("leaving: the head is gone: %s", reason)
        self.process.stop("the head is gone")

    def _drop_transfers(self, info: NodeInfo) -> None:
        if not info.alive:
            self.store.drop_peer(info.node)

    def _info_of(self, node: int) -> NodeInfo | None:
        return self.manager.members.nodes.get(node)

    def _address_of(self, node: int) -> tuple[str, int] | None:
        info = self._info_of(node)
        if info is None or not info.alive:
            return None
        return self._via.get(f"node:{node}", (info.host, info.port))

    def run(self) -> None:
        """Run until the cluster has ended or has declared this node dead."""
        process = self.process
        process.turns.run_rounds()
        if self._first_driver:
            self._admission.register_first(self._first_driver)
            process.turns.run_rounds()
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
