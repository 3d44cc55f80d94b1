"""The process of one replica of the GCS: a member of a chain (see `replication.replica`).

The replica connects to the head, where the master is, and to its neighbours in the chain;
clients connect to it. Its state is in memory only: the replica that replaces it gets the
state from the others. It ends with the head.
"""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.assembly import make_machine
from raytwin.runtime.control.channels.channel import Me
from raytwin.runtime.control.core.addresses import (
    HEAD,
    chain_of,
    is_node,
    is_replica,
    process_of,
)
from raytwin.runtime.control.messages import ReplicaInfo
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.net.channels import Channels
from raytwin.runtime.processes.net.component_process import ComponentProcess, Route
from raytwin.runtime.processes.net.connection import listen, log
from raytwin.runtime.processes.net.process_settings import (
    ReplicaSettings,
    journal_path,
    set_up_logging,
)


class ReplicaProcess:
    """Wires one replica to the master, its neighbours and its clients."""

    def __init__(self, settings: ReplicaSettings, listener: socket.socket | None = None) -> None:
        """`listener`: the socket on which the replica listens, by default one of its own."""
        config = settings.config
        self.name = settings.name
        self.process = ComponentProcess(config.seed, journal_path(settings.journal))
        self._via = settings.via
        self._head = settings.via.get(HEAD, settings.head)
        sock = listener or listen(settings.host)
        host, port = sock.getsockname()[:2]
        chain = chain_of(self.name)
        self.replica = Replica(
            self.process.begin_first_turn(self.name),
            ReplicaInfo(self.name, host, port),
            config,
            lambda: make_machine(config, chain),
        )
        self.process.add(self.name, self.replica)
        self._channels = Channels(
            self.process,
            Me(self.name, 1),
            settings.token,
            config,
            lambda node: None,
            self._listens_at,
            lambda reason: self.process.stop("the head is gone"),
        )
        self.process.find_route = self._find_route
        self._channels.listen(sock)
        self.replica.start()
        self.process.end_first_turn(Origin(self.name, config, host, port))

    def run(self) -> None:
        """Run until the head has ended or the chain goes on without this replica."""
        process = self.process
        process.turns.run_rounds()
        while not process.stopped:
            process.step(None)
            if self.replica.fenced:
                log.warning("leaving: the chain goes on without this replica")
                process.stop("fenced")

    def _find_route(self, destination: str) -> Route | None:
        peer = process_of(destination)
        if not (peer == HEAD or is_node(peer) or is_replica(peer)):
            return None
        return self._channels.route(destination, peer)

    def _listens_at(self, peer: str) -> tuple[str, int] | None:
        if peer == HEAD:
            return self._head
        info = self.replica.infos.get(peer)
        return None if info is None else self._via.get(peer, (info.host, info.port))


def main(payload: bytes, fds: list[int]) -> None:
    """Run a replica until it is fenced or the head has ended and does not return."""
    settings = msgspec.msgpack.decode(payload, type=ReplicaSettings)
    set_up_logging(settings.name)
    ReplicaProcess(settings, *(socket.socket(fileno=fd) for fd in fds)).run()
