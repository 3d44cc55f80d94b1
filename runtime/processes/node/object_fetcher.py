"""Fetching objects from one node, large ones over several connections at once.

Objects come one after another. One of `stripe_bytes_min` or more is cut into as
many parts as there may be connections (*streams*); each stream asks for one part
at a time and receives it straight into its memory in the arena::

    request   object ID (18), start (8), length (8)        big-endian
    answer    1 byte: is the object here, its size (8), then the bytes of the part

A stream that breaks is closed before another one gets its part, so two streams never
write one part. After `BREAKS_MAX` broken streams the fetch has failed. A fetch that fails
closes its streams before its memory is freed.

On loopback, with one thread at either end, more than one stream gains nothing beyond
noise (1.0, 1.5, 1.0 and 1.3 GB/s with 1, 2, 4 and 8 on two cores); between hosts each
stream has a congestion window of its own.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from raytwin.runtime.control.messages import Fetch, Fetched
from raytwin.runtime.processes.net.connection import Connection, DialedConnection
from raytwin.runtime.processes.net.reactor import READ

REQUEST = struct.Struct(">18sQQ")
ANSWER = struct.Struct(">?Q")
PIECE_BYTES = 4 << 20
"""Bytes moved per pass of the event loop, so that control messages are not held up."""
SOCKET_BUFFER_BYTES = 4 << 20
BREAKS_MAX = 3
"""After so many broken streams a fetch fails."""

Part = tuple[int, int]
"""(start, length) within an object."""


class Destination(Protocol):
    """The node's store, which has the memory for a fetched object: `ObjectStore`."""

    process: Any
    arena: Any
    token: bytes
    address_of: Callable[[int], Any]

    def allocate(self, size: int) -> int:
        """Return an offset in the arena, or -1."""

    def give_back(self, offset: int) -> None:
        """Free the memory of an object whose transfer failed."""

    def landed(self, oid: bytes, offset: int, size: int) -> None:
        """Note an object that was fetched in full."""

    def tell(self, message: Any) -> None:
        """Send a message to the node manager."""

    def tell_full(self, oid: bytes, size: int, client: str = "", node: int = -1) -> None:
        """Report to the node manager that an object does not fit."""


class _Transfer:
    """A fetch under way: its memory, and the parts that are missing."""

    __slots__ = ("breaks", "fetch", "left", "offset", "parts", "started_s")

    def __init__(self, fetch: Fetch, offset: int, streams: int) -> None:
        self.fetch = fetch
        self.offset = offset
        self.parts: deque[Part] = deque()
        """Parts that no stream has requested yet."""
        self.left = fetch.size
        """Bytes of the parts that have not arrived in full."""
        self.breaks = 0
        self.started_s = 0.0
        step = -(-fetch.size // streams)
        for start in range(0, fetch.size, step):
            self.parts.append((start, min(step, fetch.size - start)))


class Fetcher:
    """Fetches from one node, by up to `streams` streams."""

    def __init__(
        self, manager: Destination, node: int, streams: int, stripe_bytes_min: int
    ) -> None:
        self.manager = manager
        self.node = node
        self._most = streams
        self._stripe_bytes_min = stripe_bytes_min
        self._queue: deque[tuple[Fetch, int]] = deque()
        """Fetches that wait, with the offset allocated for each, or -1."""
        self._streams: list[_Stream] = []
        self._transfer: _Transfer | None = None

    def add(self, fetch: Fetch) -> None:
        """Queue an object."""
        if not fetch.first:
            self._queue.append((fetch, -1))
        else:
            offset = self.manager.allocate(fetch.size)
            if offset < 0:
                self.manager.tell_full(fetch.object, fetch.size, node=self.node)
                return
            self._queue.appendleft((fetch, offset))
        self._go_on()

    def drop(self, reason: str) -> None:
        """Fail all fetches, and close every connection."""
        for stream in list(self._streams):
            self._close(stream)
        waiting, self._queue = list(self._queue), deque()
        if self._transfer is not None:
            self._end(reason)
        for fetch, offset in waiting:
            if offset >= 0:
                self.manager.give_back(offset)
            self.manager.tell(Fetched(fetch.object, -1, fetch.size, 0.0, reason, self.node))

    def _go_on(self) -> None:
        """Begin the next fetch if none is under way; assign parts to idle streams."""
        while self._transfer is None and self._queue:
            self._begin(*self._queue.popleft())
        transfer = self._transfer
        if transfer is None:
            return
        for stream in list(self._streams):
            if transfer.parts and stream.idle:
                transfer.started_s = transfer.started_s or time.monotonic()
                stream.ask(transfer.fetch, transfer.offset, transfer.parts.popleft())
            if self._transfer is not transfer:
                return  # the request broke the stream, and the fetch has failed
        coming = sum(stream.opening for stream in self._streams)
        room = self._most - len(self._streams)
        for _ in range(min(room, len(transfer.parts) - coming)):
            address = self.manager.address_of(self.node)
            if address is None:
                self.drop(f"node {self.node} is not there")
                return
            self._streams.append(_Stream(self, address))

    def _begin(self, fetch: Fetch, offset: int) -> None:
        if offset < 0:
            offset = self.manager.allocate(fetch.size)
        if offset < 0:
            self.manager.tell_full(fetch.object, fetch.size, node=self.node)
            return
        streams = self._most if fetch.size >= self._stripe_bytes_min else 1
        self._transfer = _Transfer(fetch, offset, streams)

    def _end(self, reason: str, gone: bool = False) -> None:
        """Finish the fetch: with success, or for `reason` with a failure."""
        transfer, self._transfer = self._transfer, None
        assert transfer is not None
        fetch, offset = transfer.fetch, transfer.offset
        elapsed_s = time.monotonic() - transfer.started_s if transfer.started_s else 0.0
        if reason:
            for stream in list(self._streams):
                if stream.part is not None:
                    self._close(stream)
            self.manager.give_back(offset)
            offset = -1
        else:
            self.manager.landed(fetch.object, offset, fetch.size)
        self.manager.tell(
            Fetched(fetch.object, offset, fetch.size, elapsed_s, reason, self.node, gone)
        )

    def _close(self, stream: _Stream) -> None:
        self._streams.remove(stream)
        stream.close()

    # -- called by streams -----------------------------------------------------

    def on_open(self) -> None:
        """Use a connection that has opened."""
        self._go_on()

    def on_part(self, part: Part) -> None:
        """Count a part that has arrived in full."""
        transfer = self._transfer
        assert transfer is not None
        transfer.left -= part[1]
        if not transfer.left:
            self._end("")
        self._go_on()

    def on_absent(self) -> None:
        """Fail the fetch: the other node has no such object, or one of another size."""
        self._end("it is not there any more", gone=True)
        self._go_on()

    def on_broken(self, stream: _Stream, reason: str) -> None:
        """Take back the part of a connection that failed, or was never made."""
        if stream not in self._streams:
            return
        part = stream.part
        self._close(stream)
        transfer = self._transfer
        if transfer is None:
            return
        if part is not None:
            transfer.parts.appendleft(part)
        transfer.breaks += 1
        if transfer.breaks >= BREAKS_MAX or (stream.opening and not self._streams):
            # No connection is left, and the waiting fetches need the same peer.
            self.drop(reason)
        else:
            self._go_on()


class _Stream:
    """One connection; requests one part at a time."""

    def __init__(self, fetcher: Fetcher, address: tuple[str, int]) -> None:
        self._fetcher = fetcher
        self._reactor = fetcher.manager.process.reactor
        self._sock: socket.socket | None = None
        self._size = 0
        self._offset = 0
        self._head = bytearray()
        self._view: memoryview | None = None
        self.part: Part | None = None
        """The part that was requested and has not arrived in full."""
        self._closed = False
        self._dialing = DialedConnection(
            self._reactor,
            address,
            fetcher.manager.token,
            lambda connection, frame: connection.close("frames on a data connection"),
            self._on_refused,
            peer=f"node:{fetcher.node}",
            on_data=self._on_open,
        )

    @property
    def opening(self) -> bool:
        """Whether the connection is not open yet."""
        return self._sock is None

    @property
    def idle(self) -> bool:
        """Whether a part can be requested."""
        return self._sock is not None and self.part is None

    def ask(self, fetch: Fetch, offset: int, part: Part) -> None:
        """Request a part of an object whose memory is at `offset`."""
        assert self._sock is not None
        self.part = part
        self._size = fetch.size
        self._offset = offset
        self._head.clear()
        self._view = None
        try:
            # The request fits into the empty socket buffer of an idle connection.
            self._sock.send(REQUEST.pack(fetch.object, *part))
        except OSError as error:
            self._fetcher.on_broken(self, str(error))

    def close(self) -> None:
        """Close the connection; no byte of its part is written from here on."""
        self._closed = True
        self._view = None
        if self._sock is None:
            self._dialing.close("not needed any more")
        else:
            self._reactor.remove(self._sock.fileno())
            self._sock.close()

    def _on_open(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._reactor.add(sock.fileno(), READ, self._on_ready)
        self._fetcher.on_open()

    def _on_refused(self, connection: Connection, reason: str) -> None:
        if not self._closed:
            self._fetcher.on_broken(self, reason)

    def _on_ready(self, mask: int) -> None:
        try:
            reason = self._receive()
        except BlockingIOError:
            return
        except OSError as error:
            reason = str(error)
        if reason:
            self._fetcher.on_broken(self, reason)

    def _receive(self) -> str:
        """Receive bytes; return why the connection is broken, or an empty text."""
        assert self._sock is not None
        if self.part is None:
            return "the other side closed the connection"
        if self._view is None:
            data = self._sock.recv(ANSWER.size - len(self._head))
            if not data:
                return "the other side closed the connection"
            self._head += data
            if len(self._head) < ANSWER.size:
                return ""
            here, size = ANSWER.unpack(self._head)
            if not here or size != self._size:
                if not here:
                    self.part = None  # the answer ends here: the connection is idle again
                self._fetcher.on_absent()
                return ""
            start, length = self.part
            self._view = self._fetcher.manager.arena.writable(self._offset + start, length)
        received = self._sock.recv_into(self._view[:PIECE_BYTES])
        if not received:
            return "the other side closed the connection"
        self._view = self._view[received:]
        if not len(self._view):
            part, self.part, self._view = self.part, None, None
            self._fetcher.on_part(part)
        return ""
