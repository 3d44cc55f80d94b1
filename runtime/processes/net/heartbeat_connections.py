"""Connections for heartbeats alone, so that they go ahead of all other data.

A heartbeat that finds no open connection is lost: the next one follows soon.
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.addresses import HEALTH
from raytwin.runtime.control.messages import Frame
from raytwin.runtime.processes.net import auth
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection, DialedConnection

REDIAL_S = 0.1


class HeartbeatRoute:
    """A node's connection to the failure detector, dialed again whenever it has ended."""

    closed = False

    def __init__(
        self,
        process: ComponentProcess,
        address_of_head: Callable[[], tuple[str, int]],
        token: bytes,
        address: str,
        silence_s: float,
    ) -> None:
        """`address` is the sender of the heartbeats. The route looks every `silence_s` and
        replaces a connection that has brought nothing since the last look."""
        self._process = process
        self._address_of_head = address_of_head
        self._token = token
        self._address = address
        self._silence_s = silence_s
        self._dial()

    def send_body(self, body: bytes) -> None:
        connection = self._connection
        if connection.closed or not connection.open or connection.has_unsent:
            return
        connection.send_body(body)

    def close(self, reason: str) -> None:
        self._connection.close(reason)

    def _dial(self) -> None:
        self._connection = DialedConnection(
            self._process.reactor, self._address_of_head(), self._token, self._on_frame,
            self._on_close, peer=HEALTH, kind=auth.HEARTBEATS,
        )  # fmt: skip
        self._watch(self._connection, 0)

    def _watch(self, connection: Connection, received_bytes: int) -> None:
        """Close a connection that has brought nothing since the last look."""

        def look() -> None:
            if connection.closed:
                return
            if connection.received_bytes == received_bytes:
                connection.close("silent")
            else:
                self._watch(connection, connection.received_bytes)

        self._process.reactor.after(self._silence_s, look)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.source != HEALTH or frame.destination != self._address:
            connection.refuse(f"{frame.source} speaks to {frame.destination}")
        else:
            self._process.receive(frame)

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._process.reactor.after(REDIAL_S, self._dial)


def accept_heartbeats(process: ComponentProcess) -> Callable[[Connection, Frame], None]:
    """Return the function by which the head takes heartbeats, and learns where to answer them."""

    def on_frame(connection: Connection, frame: Frame) -> None:
        source = frame.source
        if frame.destination != HEALTH or not source.startswith("heartbeat:"):
            connection.refuse(f"{source} sends no heartbeats")
            return
        if not connection.bound:
            connection.bound, connection.peer = True, source
        elif connection.peer != source:
            connection.refuse(f"{connection.peer} speaks as {source}")
            return
        process.routes[source] = connection
        process.receive(frame)

    return on_frame
