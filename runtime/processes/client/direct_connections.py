"""The connections of direct calls, between a driver and the workers of its node.

A driver that starts a cluster has one pair of packet sockets, its **rendezvous**: each worker of
its node inherits the writing end. A worker that takes direct calls makes a socket pair, keeps one
end, and sends the other through the rendezvous with its address. Both ends then carry frames, as
the sockets between a worker and its node do. The driver learns of a worker's death from the end of
the connection, behind the worker's last answer.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from raytwin.runtime.control.client.direct_calls import WORKERS_MAX
from raytwin.runtime.control.messages import DirectClosed, Frame
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.processes.net.reactor import READ

log = logging.getLogger("raytwin")

_ADDRESS_BYTES_MAX = 256

OnFrame = Callable[[Connection, Frame], None]


def rendezvous() -> tuple[socket.socket, socket.socket]:
    """Return the driver's reading end and the workers' writing end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def open_connection(
    process: ComponentProcess,
    to_driver: socket.socket,
    address: str,
    driver: str,
    on_frame: OnFrame,
) -> Connection | None:
    """Open the connection of the worker at `address` to a driver; return None if that fails."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        log.warning("%s takes no direct calls: %s", address, error)
        return None
    with theirs:
        try:
            socket.send_fds(to_driver, [address.encode()], [theirs.fileno()])
        except OSError as error:
            log.warning("%s takes no direct calls: %s", address, error)
            ours.close()
            return None

    def closed(connection: Connection, reason: str) -> None:
        process.routes.pop(driver, None)

    connection = process.routes[driver] = Connection(
        process.reactor, ours, on_frame, closed, peer=driver
    )
    return connection


class DirectConnections:
    """A driver's connections to workers."""

    def __init__(
        self, process: ComponentProcess, address: str, sock: socket.socket, on_frame: OnFrame
    ) -> None:
        """`sock`: the reading end of the driver's rendezvous; `address`: the driver's."""
        self._process = process
        self._address = address
        self._sock = sock
        self._on_frame = on_frame
        self._count = 0
        process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _ADDRESS_BYTES_MAX, 1)
        except BlockingIOError:
            return
        if not data:
            self.close()  # all writing ends are closed: the node has ended
            return
        if not fds:
            log.warning("no direct calls of %s: this process has no free descriptor", data.decode())
            return
        if self._count >= WORKERS_MAX:
            os.close(fds[0])
            return
        worker = data.decode()
        self._count += 1
        connection = self._process.routes[worker] = Connection(
            self._process.reactor, socket.socket(fileno=fds[0]), self._on_worker_frame,
            self._on_close, peer=worker,
        )  # fmt: skip
        # An empty frame: the worker may rely on the connection from here on.
        connection.send(wire.encode(self._address, worker, []))

    def _on_worker_frame(self, connection: Connection, frame: Frame) -> None:
        # The connection identifies the worker, whatever source the frame claims.
        frame.source = connection.peer
        self._on_frame(connection, frame)

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._count -= 1
        del self._process.routes[connection.peer]
        self._process.deliver(connection.peer, self._address, DirectClosed())

    def close(self) -> None:
        """Take no further connections."""
        if self._sock.fileno() >= 0:
            self._process.reactor.remove(self._sock.fileno())
            self._sock.close()
