"""A connection through a proxy: two sockets, and a link from each to the other.

The event loop says when a socket is ready, and the rest is done here: so a link without toxics
costs one ``recv`` and one ``send``, and sockets can be half-closed and reset at will.
"""

from __future__ import annotations

import asyncio
import enum
import math
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable

from raytwin.chaos.toxiproxy.link import END, Data, Link, Toxic

RECEIVE_NBYTES = 256 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: ``close`` drops what is unsent and sends RST."""


class Stream(enum.Enum):
    """A direction."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


class Connection:
    """A client's socket and an upstream's. Calls `on_close` when it has closed both."""

    def __init__(
        self,
        client: socket.socket,
        upstream: socket.socket,
        toxics: Iterable[Toxic],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.closed = False
        self._on_close = on_close
        client_side, upstream_side = Side(client, self), Side(upstream, self)
        client_side.start(upstream_side)
        upstream_side.start(client_side)
        self._sources = {Stream.UPSTREAM: client_side, Stream.DOWNSTREAM: upstream_side}
        for toxic in toxics:
            self.change(Link.add, toxic)

    def change(self, method: Callable[[Link, Toxic, float], None], toxic: Toxic) -> None:
        """Add, update or remove a toxic on the link of its direction."""
        if not self.closed:
            source = self._sources[Stream(toxic.stream.lower())]
            method(source.link, toxic, source.loop.time())
            source.pump()

    def close(self) -> None:
        """Close both sockets now: by RST if a toxic asks for it."""
        if not self.closed:
            self.closed = True
            stages = (stage for side in self._sources.values() for stage in side.link.stages)
            reset = any(stage.rule.resets for stage in stages)
            for side in self._sources.values():
                side.close(reset)
                side.cancel_timer()
            self._on_close(self)


class Side:
    """One socket: the source of `link`, and the sink of the other side's link.

    The bytes that the socket does not take yet wait in `unsent`; meanwhile there is no room.
    """

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop = asyncio.get_running_loop()
        self.sock = sock
        self.connection = connection
        self.closed = False
        self.reading = False
        self.received_end = False
        """The socket's peer sends no more."""
        self.taken_end = False
        """The other side's link has ended."""
        self.sent_end = False
        self.unsent: deque[Data] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def start(self, other: Side) -> None:
        """Read, for a link to the other side."""
        self.other = other
        self.link = Link(other)
        self._read(True)

    def close(self, reset: bool = False) -> None:
        """Close the socket now."""
        if not self.closed:
            self._read(False)
            self.closed = True
            self.loop.remove_writer(self.sock)
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.sock.close()
            self.unsent.clear()

    def _lose(self) -> None:
        """Close the broken socket, and the other one behind the bytes that came from this."""
        if not self.closed:
            self.close()
            self.link.closes = True
            if self.other.sent_end:
                self.connection.close()
            elif not self.received_end:
                self._receive(END)

    # -- the source of a link ------------------------------------------------------

    def pump(self) -> None:
        """Move the link on, come back when it is due, and read while it has room."""
        self.cancel_timer()
        if self.link.stages:
            due_s = self.link.pump(self.loop.time())
            if due_s < math.inf and not self.connection.closed:
                self.timer = self.loop.call_at(due_s, self.pump)
        self._read(self.link.first.has_room)

    def cancel_timer(self) -> None:
        """Do not come back to the link by itself."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _on_readable(self) -> None:
        try:
            data = self.sock.recv(RECEIVE_NBYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose()
            return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        if not data:
            self.received_end = True
            self._read(False)
        if self.link.stages:
            self.link.first.take(memoryview(data), self.loop.time())
            self.pump()
        else:
            self.other.take(data, 0.0)
            if self.other.unsent:
                self._read(False)

    def _read(self, wanted: bool) -> None:
        wanted = wanted and not self.received_end and not self.closed
        if wanted != self.reading:
            self.reading = wanted
            if wanted:
                self.loop.add_reader(self.sock, self._on_readable)
            else:
                self.loop.remove_reader(self.sock)

    # -- the sink of the other side's link -----------------------------------------

    @property
    def has_room(self) -> bool:
        return not self.unsent

    def take(self, data: Data, now_s: float) -> None:
        """Send bytes, or do what the end of the other side's link asks for."""
        if self.taken_end or self.connection.closed:
            return
        if not data:
            self.taken_end = True
            if not self.unsent:
                self._end()
        elif self.unsent:
            self.unsent.append(data)
        elif (sent := self._send(data)) < len(data):
            self.unsent.append(data[sent:])
            self.loop.add_writer(self.sock, self._on_writable)

    def _on_writable(self) -> None:
        while self.unsent:
            data = self.unsent.popleft()
            if (sent := self._send(data)) < len(data):
                self.unsent.appendleft(data[sent:])
                return
        self.loop.remove_writer(self.sock)
        if self.taken_end:
            self._end()
        self.other.pump()

    def _send(self, data: Data) -> int:
        """Return how many bytes the socket has taken: all of them if it is lost."""
        if self.closed:
            return len(data)
        try:
            return self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # Later: who sends is in the middle of moving a link.
            self.loop.call_soon(self._lose)
            return len(data)

    def _end(self) -> None:
        """The other side's link has ended, and all that it carried is sent."""
        self.sent_end = True
        if self.other.link.closes or self.other.sent_end:
            self.connection.close()
        elif not self.closed:
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.loop.call_soon(self._lose)
