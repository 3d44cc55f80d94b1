"""``links`` or ``links:<n>``: the channels of a process over TCP.

The rules are those of `control.channels`; here are the sockets. A link is a TCP connection whose
other end has proved the token. The first packet of either end is its `Hello`, which names its
process; from then on the connection belongs to a channel.

"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.channels.channel import Channel, Hello, Me, State
from raytwin.runtime.control.channels.peers import Peers
from raytwin.runtime.control.core.addresses import HEAD, is_node, is_replica
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Frame, NodeInfo
from raytwin.runtime.processes.net import auth, wire
from raytwin.runtime.processes.net.component_process import ComponentProcess, Route
from raytwin.runtime.processes.net.connection import (
    AcceptedConnection,
    Connection,
    DialedConnection,
    Listener,
)
from raytwin.runtime.processes.net.reactor import Reactor, RealTimer

Address = tuple[str, int]


class ChannelContext:
    """`context.Context` for the channels of a process: time and timers without turns."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        # Back-offs are drawn apart in each process, or two ends might dial at once forever.
        self.rng = random.Random(os.urandom(8))

    def now(self) -> float:
        return time.monotonic()

    def send(self, to: str, message: Any) -> None:
        raise TypeError("a channel sends no messages of its own")

    def after(self, delay_s: float, callback: Callable[[], None]) -> RealTimer:
        return self._reactor.after(delay_s, callback)


class TcpLink:
    """A connection, as a channel uses it."""

    def __init__(self, channel: Channel | None = None) -> None:
        self.connection: Connection
        self.channel = channel
        """None until the peer has greeted."""

    def greet(self, hello: Hello) -> None:
        self.connection.send(wire.encode_hello(hello))

    def write(self, sequence: int, acknowledged: int, frame: Any, nbytes: int) -> None:
        self.connection.send(wire.encode_packet(sequence, acknowledged, frame or b""))

    def close(self, reason: str) -> None:
        self.connection.close(reason)


class ChannelRoute:
    """The route to a process by way of its channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def closed(self) -> bool:
        return self._channel.state is State.CLOSED

    def send_body(self, body: bytes) -> None:
        self._channel.send(body, len(body))

    def close(self, reason: str) -> None:
        self._channel.fail(reason)


class Channels:
    """Dials, accepts, and joins connections with the channels of one process."""

    def __init__(
        self,
        process: ComponentProcess,
        me: Me,
        token: bytes,
        config: Config,
        info_of: Callable[[int], NodeInfo | None],
        address_of: Callable[[str], Address | None],
        leave: Callable[[str], None],
    ) -> None:
        """`info_of` returns a node's row, `address_of` where a peer listens, None if that is
        unknown; `leave` ends this process, which has lost the head, for a reason."""
        self.process = process
        self._me = me
        self._token = token
        self._address_of = address_of
        self.leave = leave
        self._links: dict[Connection, TcpLink] = {}
        self.peers = Peers(ChannelContext(process.reactor), me, config, self, info_of)
        self.on_node_changed: Callable[[NodeInfo], None] = lambda info: None
        self.on_new_head: Callable[[], None] = lambda: None
        self.on_heartbeats: Callable[[Connection, Frame], None] | None = None
        """Takes what arrives on connections for heartbeats, if there may be any."""
        self.on_data: Callable[[socket.socket], None] | None = None
        """Takes the socket of a connection for object data, if there may be any."""

    def listen(self, sock: socket.socket) -> Listener:
        """Accept connections on a socket."""
        return Listener(self.process.reactor, sock, self._accept)

    def route(self, destination: str, peer: str) -> Route | None:
        """Return the route to a component of a process, from now on the destination's; None for a
        node that is not known to live."""
        channel = self.peers.channel(peer)
        if channel is None:
            return None
        route = self.process.routes[destination] = ChannelRoute(channel)
        return route

    # -- the network of the channels ---------------------------------------------------

    def new_session(self) -> int:
        return int.from_bytes(os.urandom(8), "big") >> 1 or 1

    def dial(self, channel: Channel) -> TcpLink | None:
        address = self._address_of(channel.peer)
        if address is None:
            return None
        link = TcpLink(channel)
        link.connection = DialedConnection(
            self.process.reactor, address, self._token, self._on_packet, self._on_close,
            peer=channel.peer, kind=auth.CHANNEL,
        )  # fmt: skip
        link.connection.on_part = self._on_part
        self._links[link.connection] = link
        return link

    def deliver(self, to: str, message: Any) -> None:
        self.process.deliver(to, to, message)

    # -- connections -------------------------------------------------------------

    def _accept(self, sock: socket.socket, peer: str) -> None:
        AcceptedConnection(
            self.process.reactor, sock, self._token, self._on_packet, self._on_close,
            on_data=self.on_data, peer=peer,
        )  # fmt: skip

    def _on_packet(self, connection: Connection, packet: Any) -> None:
        if isinstance(packet, Frame):
            if self.on_heartbeats is None:
                connection.refuse("sends heartbeats, which nobody hears here")
            else:
                self.on_heartbeats(connection, packet)
            return
        if packet.hello is not None:
            self._on_hello(connection, packet.hello)
            return
        link = self._links.get(connection)
        if link is None or link.channel is None:
            connection.refuse("sends a frame before it has greeted")
            return
        channel = link.channel
        if packet.frame is not None and not self._may_speak(channel.peer, packet.frame.source):
            connection.refuse(f"{channel.peer} speaks as {packet.frame.source}")
            return
        if channel.on_packet(link, packet.sequence, packet.acknowledged, packet.frame,
                             packet.nbytes):  # fmt: skip
            self.process.receive(packet.frame)

    def _may_speak(self, peer: str, source: str) -> bool:
        # The head has many components; nodes and replicas have one that others hear.
        return peer in (HEAD, source)

    def _on_hello(self, connection: Connection, hello: Hello) -> None:
        link = self._links.get(connection)
        if link is not None and link.channel is not None:
            if hello.name != link.channel.peer:
                connection.refuse(f"{hello.name} answers for {link.channel.peer}")
            else:
                link.channel.on_hello(link, hello)
            return
        if hello.name == self._me.name or not (is_node(hello.name) or is_replica(hello.name)):
            connection.refuse(f"{hello.name} is neither another node nor a replica")
            return
        connection.peer = hello.name
        connection.on_part = self._on_part
        link = self._links[connection] = TcpLink()
        link.connection = connection
        link.channel = self.peers.admit(link, hello)
        if link.channel is not None:
            link.channel.on_hello(link, hello)

    def _on_part(self, connection: Connection) -> None:
        link = self._links.get(connection)
        if link is not None and link.channel is not None:
            link.channel.on_bytes(link, connection.received_bytes)

    def _on_close(self, connection: Connection, reason: str) -> None:
        link = self._links.pop(connection, None)
        if link is not None and link.channel is not None:
            link.channel.on_lost(link)
