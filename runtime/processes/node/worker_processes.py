"""``pool:<n>``: starts and ends the worker processes of a node.

The zygote forks each worker, which gets one end of a socket pair. The zygote also reaps
the worker, and reports that it has ended and why.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Frame, KillWorker, StartWorker, StopWorker, WorkerDied
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.processes.net.packets import PacketQueue, receive_packet
from raytwin.runtime.processes.net.process_settings import WorkerSettings
from raytwin.runtime.processes.net.reactor import READ, WRITE


class WorkerProcesses:
    """``pool:<n>``: the worker processes of one node."""

    def __init__(
        self,
        process: ComponentProcess,
        node: int,
        config: Config,
        spawner: socket.socket,
        arena_fds: tuple[int, ...],
        driver: str = "",
        driver_fd: int = -1,
    ) -> None:
        """`driver`: a driver that workers reach through the descriptor `driver_fd`."""
        self._process = process
        self._node = node
        self._config = config
        self._spawner = spawner
        self._arena_fds = arena_fds
        self._driver = driver
        self._driver_fd = driver_fd
        self._requests = PacketQueue(spawner)
        self._connections: dict[str, Connection] = {}
        """By worker."""
        process.reactor.add(spawner.fileno(), READ, self._on_ready)

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            self._start(message.worker)
        elif isinstance(message, StopWorker):
            connection = self._forget(message.worker)
            if connection is not None:
                connection.close("not needed any more")
        elif isinstance(message, KillWorker):
            self._request(["kill", message.worker, 9])
        else:
            raise TypeError(f"the worker processes were sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def _start(self, address: str) -> None:
        ours, theirs = socket.socketpair()
        settings = WorkerSettings(address, self._node, self._config, self._driver)
        fds: tuple[int, ...] = (theirs.detach(), *map(os.dup, self._arena_fds))
        if self._driver:
            fds += (os.dup(self._driver_fd),)
        self._request(["spawn", "worker", address, msgspec.msgpack.encode(settings)], fds)
        connection = Connection(
            self._process.reactor, ours, self._on_frame, self._on_close, peer=address
        )
        self._process.routes[address] = self._connections[address] = connection

    def _forget(self, worker: str) -> Connection | None:
        self._process.routes.pop(worker, None)
        return self._connections.pop(worker, None)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        # The connection identifies the worker, whatever source the frame claims.
        frame.source = connection.peer
        self._process.receive(frame)

    def _on_close(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.peer) is connection:
            self._forget(connection.peer)
            # The worker may hang with its socket closed: kill it.
            self._request(["kill", connection.peer, 9])

    def _request(self, request: list[Any], fds: tuple[int, ...] = ()) -> None:
        self._requests.send(request, fds)
        self._watch()

    def _watch(self) -> None:
        more = WRITE if self._requests else 0
        self._process.reactor.modify(self._spawner.fileno(), READ | more)

    def _on_ready(self, mask: int) -> None:
        if mask & WRITE:
            self._requests.flush()
            self._watch()
        if mask & ~WRITE:
            self._on_answer()

    def _on_answer(self) -> None:
        packet = receive_packet(self._spawner)
        if packet is None:
            self._process.stop("the zygote is gone")
            return
        kind, address, detail = packet[0]
        if kind == "exited":
            connection = self._forget(address)
            if connection is not None:
                # The node must receive the worker's last frames before `WorkerDied`.
                connection.drain()
            self._process.deliver(
                f"pool:{self._node}", f"node:{self._node}", WorkerDied(address, detail)
            )
