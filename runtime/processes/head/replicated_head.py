"""The head process of a GCS of one or several chains: the masters, and the launcher of replicas.

Replicas and nodes connect to the head's listener. The GCS and the global
scheduler are in the replicas, each a process of its own (`replica_process`).
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import (
    RELAY,
    chain_of,
    is_node,
    is_replica,
    master_of,
    node_of,
)
from raytwin.runtime.control.gcs.sharding.relay import Relay
from raytwin.runtime.control.messages import (
    Frame,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ReplicaLost,
    ReplicaSuspected,
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.master import LAUNCHER, Master
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import AcceptedConnection, Connection, Listener
from raytwin.runtime.processes.net.links import Links
from raytwin.runtime.processes.net.packets import receive_packet, send_packet
from raytwin.runtime.processes.net.process_settings import (
    HeadSettings,
    ReplicaSettings,
    journal_path,
)
from raytwin.runtime.processes.net.reactor import READ

log = logging.getLogger("raytwin")


class ReplicatedHead:
    """The head of a replicated GCS: joins the masters to the connections of replicas and nodes."""

    def __init__(
        self,
        settings: HeadSettings,
        listener: socket.socket,
        add_launcher: Callable[[ComponentProcess], None],
    ) -> None:
        """`add_launcher` adds the component that starts replicas to the head's process."""
        self.process = ComponentProcess(settings.config.seed, journal_path(settings.journal))
        self._token = settings.token
        self.masters: list[Master] = []
        """By number of the chain; see `gcs.sharding`."""
        clients = [self._add_master(settings, chain) for chain in range(settings.config.chains)]
        add_launcher(self.process)
        self._links = Links(self.masters[0].nodes.get, _notify_fenced)
        self.process.add("links", self._links, journaled=False)
        Listener(self.process.reactor, listener, self._accept)
        for client, master in zip(clients, self.masters, strict=True):
            client.start()
            master.start()
        if len(clients) > 1:
            relay = Relay(self.process.context(RELAY), len(clients))
            self.process.add(RELAY, relay)
            relay.start()

    def _add_master(self, settings: HeadSettings, chain: int) -> ChainClient:
        address = master_of(chain)
        client = ChainClient(
            self.process.context(address),
            address,
            lambda ctx: Master(ctx, settings.config, chain),
            chain,
        )
        assert isinstance(client.inner, Master)
        self.masters.append(client.inner)
        self.process.add(address, client)
        return client

    def run(self) -> None:
        """Run until the head is killed, or no replica has the GCS's state any more."""
        process = self.process
        process.run_turns()
        while not process.stopped:
            process.step(None)
            for lost in filter(None, (master.lost for master in self.masters)):
                log.error("%s", lost)
                process.stop(lost)

    def _accept(self, sock: socket.socket, peer: str) -> None:
        AcceptedConnection(
            self.process.reactor, sock, self._token, self._on_frame, self._on_close, peer=peer
        )

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        source = frame.source
        if not is_node(source) and not is_replica(source):
            connection.refuse(f"{source} is neither a node nor a replica")
            return
        if connection.bound and connection.peer != source:
            connection.refuse(f"{connection.peer} speaks as {source}")
            return
        if not connection.bound:
            if is_node(source):
                if not self._links.bind(connection, source):
                    return
            else:
                connection.bound = True
                connection.peer = source
            self.process.routes[source] = connection
        self.process.receive(connection, frame)

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._links.discard(connection)
        peer = connection.peer
        if not connection.bound or self.process.routes.get(peer) is not connection:
            return
        del self.process.routes[peer]
        if not is_node(peer):
            master = master_of(chain_of(peer))
            # If the replica has ended, the zygote reports that too.
            self.process.deliver(master, master, ReplicaSuspected(peer, reason))
            return
        message = NodeUnreachable(
            node_of(peer), f"connection lost: {reason}", connection.incarnation
        )
        for chain in range(len(self.masters)):
            self.process.deliver(master_of(chain), master_of(chain), message)


def _notify_fenced(connection: Connection, node: str, info: NodeInfo) -> None:
    """Notify a node that it was declared dead; else it would wait for a restart of the head."""
    connection.send(wire.encode("gcs", node, [NodeChanged(info)]))


def replicated_head(
    settings: HeadSettings, listener: socket.socket, spawner: socket.socket
) -> ReplicatedHead:
    """Return a head whose replicas are processes, which the zygote forks."""

    def add_launcher(process: ComponentProcess) -> None:
        launcher = Launcher(process, settings, listener.getsockname()[:2], spawner)
        process.add(LAUNCHER, launcher, journaled=False)

    return ReplicatedHead(settings, listener, add_launcher)


class Launcher:
    """``launcher``: has the zygote fork and kill replicas; reports their ends to the masters."""

    def __init__(
        self,
        process: ComponentProcess,
        settings: HeadSettings,
        head: tuple[str, int],
        spawner: socket.socket,
    ) -> None:
        self._process = process
        self._settings = settings
        self._head = head
        self._spawner = spawner
        process.reactor.add(spawner.fileno(), READ, self._on_answer)

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StopReplica):
            send_packet(self._spawner, ["kill", message.name, int(signal.SIGKILL)])
            return
        if not isinstance(message, StartReplica):
            raise TypeError(f"the launcher was sent {type(message).__name__}")
        settings = ReplicaSettings(
            message.name,
            self._settings.config,
            self._settings.token,
            self._head,
            self._head[0],
            self._settings.journal,
        )
        packet = ["spawn", "replica", message.name, msgspec.msgpack.encode(settings)]
        send_packet(self._spawner, packet)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def _on_answer(self, mask: int) -> None:
        packet = receive_packet(self._spawner)
        if packet is None:
            self._process.stop("the zygote is gone")
            return
        kind, name, detail = packet[0]
        if kind == "exited":
            self._process.deliver(LAUNCHER, master_of(chain_of(name)), ReplicaLost(name, detail))
