"""The node's object store and its transfers: what ``store:<n>`` does for real.

The arena is allocated here and nowhere else; workers and drivers write and read
where they were told. Between nodes an object travels over a TCP connection of
its own kind (see `auth`), from one arena into the other without a copy in
between::

    request   object ID (18)
    answer    1 byte: is it here, size (8, big-endian), then the bytes (sendfile)

An object that is being sent is not freed before it is through.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from runtime.control.ids import OBJECT_BYTES
from runtime.control.messages import Allocate, Allocated, Fetch, Fetched, Free
from runtime.processes.connection import Connection, DialedConnection
from runtime.processes.process import Process
from runtime.processes.reactor import HANG_UP, READ, WRITE
from runtime.store.allocator import Allocator
from runtime.store.arena import Arena

_ANSWER = struct.Struct(">?Q")
PIECE_BYTES = 4 << 20
"""Bytes moved per turn of the loop, so that control messages get through."""
SOCKET_BUFFER_BYTES = 4 << 20

Address = Callable[[int], "tuple[str, int] | None"]


class ObjectManager:
    """Allocates in the arena, sends and fetches objects; is ``store:<n>``."""

    def __init__(
        self, process: Process, node: int, arena: Arena, token: bytes, address_of: Address
    ) -> None:
        self.process = process
        self.node = node
        self.arena = arena
        self.token = token
        self.address_of = address_of
        self.allocator = Allocator(arena.capacity)
        self._places: dict[bytes, dict[int, int]] = {}
        """Where an object is, and its size: in several places for a while if it is made
        or fetched twice."""
        self._sending: dict[int, int] = {}
        self._free_later: set[int] = set()
        self._fetchers: dict[int, Fetcher] = {}

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self.allocator.allocate(message.size)
            if offset >= 0:
                self._places.setdefault(message.object, {})[offset] = message.size
            self.tell(Allocated(message.object, offset, message.client))
        elif isinstance(message, Free):
            self.give_back(message.object, message.offset)
        elif isinstance(message, Fetch):
            fetcher = self._fetchers.get(message.node)
            if fetcher is None:
                fetcher = self._fetchers[message.node] = Fetcher(self, message.node)
            fetcher.add(message)
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def tell(self, message: Any) -> None:
        """Send a message to this node's scheduler."""
        self.process.deliver(f"store:{self.node}", f"node:{self.node}", message)

    def serve(self, sock: socket.socket) -> None:
        """Answer another node's requests on a connection."""
        Sender(self, sock)

    def drop_peer(self, node: int) -> None:
        """A node is dead: fail what is being fetched from it."""
        fetcher = self._fetchers.pop(node, None)
        if fetcher is not None:
            fetcher.drop("its node died")

    # -- memory ----------------------------------------------------------------

    def allocate(self, oid: bytes, size: int) -> int:
        """Return where an object that is fetched can be written, or -1."""
        offset = self.allocator.allocate(size)
        if offset >= 0:
            self._places.setdefault(oid, {})[offset] = size
        return offset

    def give_back(self, oid: bytes, offset: int) -> None:
        """Free the place of an object whose transfer failed."""
        places = self._places.get(oid, {})
        places.pop(offset, None)
        if not places:
            self._places.pop(oid, None)
        self._free(offset)

    def begin_sending(self, oid: bytes) -> tuple[int, int] | None:
        """Return (offset, size) of an object and keep it there."""
        # The oldest: it is complete if any is.
        place = next(iter(self._places.get(oid, {}).items()), None)
        if place is not None:
            self._sending[place[0]] = self._sending.get(place[0], 0) + 1
        return place

    def end_sending(self, offset: int) -> None:
        """One transfer less needs this place."""
        self._sending[offset] -= 1
        if not self._sending[offset]:
            del self._sending[offset]
            if offset in self._free_later:
                self._free_later.discard(offset)
                self.allocator.free(offset)

    def _free(self, offset: int) -> None:
        if offset in self._sending:
            self._free_later.add(offset)
        else:
            self.allocator.free(offset)


class Sender:
    """Serves one connection: a request, an answer, and again."""

    def __init__(self, manager: ObjectManager, sock: socket.socket) -> None:
        self._manager = manager
        self._sock = sock
        self._request = bytearray()
        self._head = b""
        self._offset = 0
        self._at = 0
        self._end = 0
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        manager.process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            if self._head or self._at < self._end:
                self._send()
            elif mask & (READ | HANG_UP):
                self._receive()
        except BlockingIOError:
            return
        except OSError:
            self._close()

    def _receive(self) -> None:
        data = self._sock.recv(OBJECT_BYTES - len(self._request))
        if not data:
            self._close()
            return
        self._request += data
        if len(self._request) < OBJECT_BYTES:
            return
        place = self._manager.begin_sending(bytes(self._request))
        self._request.clear()
        if place is None:
            self._head = _ANSWER.pack(False, 0)
        else:
            self._offset, size = place
            self._head = _ANSWER.pack(True, size)
            self._at, self._end = self._offset, self._offset + size
        self._manager.process.reactor.modify(self._sock.fileno(), READ | WRITE)

    def _send(self) -> None:
        if self._head:
            sent = self._sock.send(self._head)
            self._head = self._head[sent:]
            if self._head:
                return
        if self._at < self._end:
            piece = min(PIECE_BYTES, self._end - self._at)
            arena_fd = self._manager.arena.fd
            self._at += os.sendfile(self._sock.fileno(), arena_fd, self._at, piece)
        if self._at == self._end:
            self._finish()
            self._manager.process.reactor.modify(self._sock.fileno(), READ)

    def _finish(self) -> None:
        if self._end:
            self._manager.end_sending(self._offset)
        self._at = self._end = 0

    def _close(self) -> None:
        self._finish()
        self._manager.process.reactor.remove(self._sock.fileno())
        self._sock.close()


class Fetcher:
    """Fetches objects from one node, one after another over one connection."""

    def __init__(self, manager: ObjectManager, node: int) -> None:
        self._manager = manager
        self._node = node
        self._queue: deque[Fetch] = deque()
        self._sock: socket.socket | None = None
        self._dialing: DialedConnection | None = None
        self._current: Fetch | None = None
        self._head = bytearray()
        self._view: memoryview | None = None
        self._offset = -1
        self._started_s = 0.0

    def add(self, fetch: Fetch) -> None:
        """Queue an object."""
        self._queue.append(fetch)
        self._next()

    def drop(self, reason: str) -> None:
        """Fail all that was asked for, and close the connection."""
        if self._dialing is not None:
            self._dialing.close(reason)
        else:
            self._fail(reason)

    def _next(self) -> None:
        if self._current is not None or not self._queue:
            return
        if self._sock is None:
            self._dial()
            return
        fetch = self._queue.popleft()
        offset = self._manager.allocate(fetch.object, fetch.size)
        if offset < 0:
            reason = f"ObjectStoreFullError: no room for {fetch.size:,} bytes"
            self._manager.tell(Fetched(fetch.object, -1, fetch.size, 0.0, reason, fetch.node))
            self._next()
            return
        self._current = fetch
        self._offset = offset
        self._head.clear()
        self._view = None
        self._started_s = time.monotonic()
        try:
            # Eighteen bytes fit into the empty buffer of an idle connection.
            self._sock.send(fetch.object)
        except OSError as error:
            self._fail(str(error))

    def _dial(self) -> None:
        if self._dialing is not None:
            return
        address = self._manager.address_of(self._node)
        if address is None:
            self._fail(f"node {self._node} is not there")
            return
        self._dialing = DialedConnection(
            self._manager.process.reactor,
            address,
            self._manager.token,
            lambda connection, frame: connection.close("frames on a data connection"),
            self._on_refused,
            peer=f"node:{self._node}",
            on_data=self._on_open,
        )

    def _on_open(self, sock: socket.socket) -> None:
        self._dialing = None
        self._sock = sock
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._manager.process.reactor.add(sock.fileno(), READ, self._on_ready)
        self._next()

    def _on_refused(self, connection: Connection, reason: str) -> None:
        self._dialing = None
        self._fail(reason)

    def _on_ready(self, mask: int) -> None:
        try:
            self._receive()
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))

    def _receive(self) -> None:
        assert self._sock is not None
        if self._current is None:
            self._fail("the other side closed the connection")
            return
        if self._view is None:
            data = self._sock.recv(_ANSWER.size - len(self._head))
            if not data:
                self._fail("the other side closed the connection")
                return
            self._head += data
            if len(self._head) < _ANSWER.size:
                return
            here, size = _ANSWER.unpack(self._head)
            if not here or size != self._current.size:
                self._end_current(-1, "it is not there any more")
                if here:
                    self._fail("an object of another size")
                return
            self._view = self._manager.arena.writable(self._offset, size)
        received = self._sock.recv_into(self._view[:PIECE_BYTES])
        if not received:
            self._fail("the other side closed the connection")
            return
        self._view = self._view[received:]
        if not len(self._view):
            self._end_current(self._offset, "")

    def _end_current(self, offset: int, reason: str) -> None:
        fetch = self._current
        assert fetch is not None
        self._current = None
        self._view = None
        if offset < 0:
            self._manager.give_back(fetch.object, self._offset)
        elapsed_s = time.monotonic() - self._started_s
        self._manager.tell(Fetched(fetch.object, offset, fetch.size, elapsed_s, reason, fetch.node))
        self._next()

    def _fail(self, reason: str) -> None:
        """The connection is of no use: everything that waits for it has failed."""
        if self._sock is not None:
            self._manager.process.reactor.remove(self._sock.fileno())
            self._sock.close()
            self._sock = None
        waiting, self._queue = list(self._queue), deque()
        if self._current is not None:
            self._end_current(-1, reason)
        for fetch in waiting:
            self._manager.tell(Fetched(fetch.object, -1, fetch.size, 0.0, reason, fetch.node))
