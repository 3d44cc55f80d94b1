"""The node's object store and its transfers: ``store:<n>`` of a real node.

Only this component allocates in the arena; workers and drivers write and read at the
offsets that they receive. A transfer pins the memory that it sends. An object that is only on
disk is sent from there: that takes no memory in the arena, and the pieces are so small that a
slow disk does not delay the event loop.

Between nodes an object travels over one or several TCP connections for object data (see `auth`),
from one arena into the other without a copy in between: `Fetcher` requests, `Sender` answers with
sendfile. `control.objects.fetch_queue` decides what is fetched, and when. An object is
cut into as many parts as there may be connections (*streams*); each stream asks for one part
at a time and receives it straight into its memory in the arena::

    request   object ID (18), start (8), length (8)        big-endian
    answer    1 byte: whether the object is here, its size (8), then the bytes of the part

After sendfile the kernel refers to the arena's pages until the receiver has read them, on one host
even after they were acknowledged. So the sender pins them until the stream's next request, which
confirms that the answer has arrived in full; a request for no bytes (`RECEIVED`) does only that.

A stream that breaks fails the fetch, and the node manager requests it again; a fetch without a
byte for `Config.stall_s` fails as well. A fetch that fails closes its streams before it frees its
memory.

On loopback, with one thread at either end, several streams are no faster than one beyond
noise (1.0, 1.5, 1.0 and 1.3 GB/s with 1, 2, 4 and 8 on two cores); between hosts each
stream has a congestion window of its own.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    IN_FILE,
    Allocate,
    Allocated,
    DropSpilled,
    Fetch,
    Fetched,
    Free,
    NoRoom,
    Spill,
    Spilled,
)
from raytwin.runtime.control.objects.fetch_queue import (
    NODE_DIED,
    Fetching,
    FetchQueue,
    fetch_streams,
    not_on_disk,
)
from raytwin.runtime.processes.net import auth
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection, DialedConnection
from raytwin.runtime.processes.net.reactor import HANG_UP, READ, WRITE
from raytwin.runtime.processes.node.spiller import Spiller
from raytwin.runtime.store.allocator import Allocator
from raytwin.runtime.store.arena import Arena

REQUEST = struct.Struct(">18sQQ")
ANSWER = struct.Struct(">?Q")
RECEIVED = REQUEST.pack(bytes(18), 0, 0)
PIECE_BYTES = 4 << 20
"""The most bytes moved per pass of the event loop, so that control messages are not delayed."""
DISK_PIECE_BYTES = 1 << 19
SOCKET_BUFFER_BYTES = 4 << 20

Address = Callable[[int], "tuple[str, int] | None"]
Part = tuple[int, int]
"""(start, length) within an object."""


class _Readers:
    """Counts the transfers and disk writes that read each place, which they pin."""

    def __init__(self, free: Callable[[int], Any]) -> None:
        self._free = free
        self.counts: Counter[int] = Counter()
        self._due: set[int] = set()
        """Places to free after their last reader."""

    def add(self, place: int) -> None:
        self.counts[place] += 1

    def remove(self, place: int) -> None:
        self.counts[place] -= 1
        if not self.counts[place]:
            del self.counts[place]
            if place in self._due:
                self._due.discard(place)
                self._free(place)

    def free(self, place: int) -> None:
        """Free a place, now or after its last reader."""
        if place in self.counts:
            self._due.add(place)
        else:
            self._free(place)


class ObjectStore:
    """``store:<n>``: allocates in the arena, sends, fetches, spills and restores objects."""

    def __init__(
        self,
        process: ComponentProcess,
        node: int,
        arena: Arena,
        token: bytes,
        address_of: Address,
        spill_directory: str,
        config: Config,
    ) -> None:
        self.config = config
        self.process = process
        self.node = node
        self.arena = arena
        self.token = token
        self.address_of = address_of
        self.allocator = Allocator(arena.capacity)
        self._places: dict[bytes, dict[int, int]] = {}
        """By object: size by offset, complete copies first. An object has several copies for a
        while if it was created or fetched twice."""
        self.readers = _Readers(self.free_place)
        self._disk = Spiller(process.reactor, arena.file, spill_directory)
        self._spilled: dict[bytes, tuple[int, int]] = {}
        """By object: (place on disk, size)."""
        self._disk_readers = _Readers(self._disk.free)
        self._mapped: set[int] = set()
        """Places of spilled objects that clients map; each is a reader of its place."""
        self._fetchers: dict[int, Fetcher] = {}

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            if message.in_file:
                self.reserve(message.size, partial(self._allocated, message))
            else:
                self._allocated(message, self.allocator.allocate(message.size))
        elif isinstance(message, Free):
            places = self._places.get(message.object, {})
            places.pop(message.offset, None)
            if not places:
                self._places.pop(message.object, None)
            self.readers.free(message.offset)
        elif isinstance(message, Fetch):
            if message.node == self.node:
                self._restore(message)
                return
            fetcher = self._fetchers.get(message.node)
            if fetcher is None:
                fetcher = self._fetchers[message.node] = Fetcher(self, message.node)
            fetcher.queue.add(message)
        elif isinstance(message, Spill):
            self._spill(message)
        elif isinstance(message, DropSpilled):
            if self._spilled.get(message.object, (-1, 0))[0] == message.place:
                del self._spilled[message.object]
            self._disk_readers.free(message.place)
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def send(self, message: Any) -> None:
        """Send a message to this node's manager."""
        self.process.deliver(f"store:{self.node}", f"node:{self.node}", message)

    def serve(self, sock: socket.socket) -> None:
        """Answer another node's requests on a connection."""
        Sender(self, sock)

    def drop_peer(self, node: int) -> None:
        """Fail all fetches from a node that is dead."""
        fetcher = self._fetchers.pop(node, None)
        if fetcher is not None:
            fetcher.drop(NODE_DIED)

    # -- memory ----------------------------------------------------------------

    def _allocated(self, message: Allocate, offset: int, reason: str = "") -> None:
        if offset >= 0:
            self._places.setdefault(message.object, {})[offset] = message.size
            self.send(Allocated(message.object, offset, message.client))
        else:
            self.send_no_room(message.object, message.size, message.client, reason=reason)

    def free_place(self, offset: int) -> None:
        """Free what was allocated in memory or in the file, or end the mapping of a spilled
        object."""
        if offset < IN_FILE:
            self.allocator.free(offset)
            return
        place = offset - IN_FILE
        if place in self._mapped:
            self._mapped.discard(place)
            self._disk_readers.remove(place)
        else:
            self._disk.free(place)

    def reserve(self, size: int, done: Callable[[int, str], None]) -> None:
        """Allocate in the file; call `done` with the offset, or with -1 and the reason."""
        self._disk.reserve(
            size, lambda place, reason: done(place if place < 0 else IN_FILE + place, reason)
        )

    def add_copy(self, oid: bytes, offset: int, size: int) -> None:
        """Enter a copy that has arrived in full: from now on it may be sent to other nodes."""
        self._places[oid] = {offset: size, **self._places.get(oid, {})}

    def send_no_room(
        self, oid: bytes, size: int, client: str = "", node: int = -1, reason: str = ""
    ) -> None:
        """Report that an object does not fit; the node manager evicts others, or gives up."""
        free = self.allocator.capacity - self.allocator.used
        self.send(NoRoom(oid, size, self.allocator.capacity, free, client, node, reason))

    def begin_sending(self, oid: bytes) -> Source | None:
        """Return an object's bytes, pinned until `Source.release`; None if it is not here."""
        # The first copy: if any copy is complete, this one is.
        place = next(iter(self._places.get(oid, {}).items()), None)
        if place is not None:
            offset, size = place
            self.readers.add(offset)
            done = partial(self.readers.remove, offset)
            fd, at = self.arena.locate(offset)
            return Source(fd, at, size, PIECE_BYTES, done)
        spilled = self._spilled.get(oid)
        if spilled is None:
            return None
        at, size = spilled
        self._disk_readers.add(at)
        done = partial(self._disk_readers.remove, at)
        return Source(self.arena.file, at, size, DISK_PIECE_BYTES, done)

    # -- disk ------------------------------------------------------------------

    def _spill(self, message: Spill) -> None:
        oid, offset, size = message.object, message.offset, message.size
        self.readers.add(offset)

        def on_written(place: int, reason: str) -> None:
            self.readers.remove(offset)
            if place >= 0:
                self._spilled[oid] = (place, size)
            self.send(Spilled(oid, offset, size, place, reason))

        self._disk.write(self.arena.readonly(offset, size), on_written)

    def _restore(self, fetch: Fetch) -> None:
        """Read an object from disk into the arena, or map it where it is."""
        oid, size = fetch.object, fetch.size
        place = self._spilled.get(oid)
        if place is None or place[1] != size:
            self.send(not_on_disk(fetch))
            return
        if fetch.in_file:
            self._mapped.add(place[0])
            self._disk_readers.add(place[0])
            self.add_copy(oid, IN_FILE + place[0], size)
            self.send(Fetched(oid, IN_FILE + place[0], size, 0.0, "", self.node))
            return
        offset = self.allocator.allocate(size)
        if offset < 0:
            self.send_no_room(oid, size, node=self.node)
            return
        started_s = time.monotonic()

        def on_read(reason: str) -> None:
            elapsed_s = time.monotonic() - started_s
            if reason:
                self.allocator.free(offset)
            else:
                self.add_copy(oid, offset, size)
            at = -1 if reason else offset
            self.send(Fetched(oid, at, size, elapsed_s, reason, self.node))

        self._disk.read(place[0], self.arena.writable(offset, size), on_read)


class Source(NamedTuple):
    """The bytes of an object that is being sent: a part of a file."""

    fd: int
    offset: int
    size: int
    piece_bytes: int
    release: Callable[[], None]


class Sender:
    """Serves one connection from another node: answers one request after another."""

    def __init__(self, store: ObjectStore, sock: socket.socket) -> None:
        self._store = store
        self._sock = sock
        self._request = bytearray()
        self._header = b""
        self._source: Source | None = None
        """What the last answer refers to, until the receiver confirms it."""
        self._sent = 0
        self._end = 0
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        store.process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            if self._header or self._sent < self._end:
                self._send()
            elif mask & (READ | HANG_UP):
                self._receive()
        except BlockingIOError:
            return
        except OSError:
            self._close()

    def _receive(self) -> None:
        data = self._sock.recv(REQUEST.size - len(self._request))
        if not data:
            self._close()
            return
        self._request += data
        if len(self._request) < REQUEST.size:
            return
        oid, start, length = REQUEST.unpack(self._request)
        self._request.clear()
        self._release()
        if not length:
            return
        source = self._source = self._store.begin_sending(oid)
        self._header = ANSWER.pack(source is not None, source.size if source else 0)
        if source is not None and start + length <= source.size:
            self._sent, self._end = start, start + length
        # Else the answer sends no bytes; its size is not the one that the requester expects.
        self._store.process.reactor.modify(self._sock.fileno(), READ | WRITE)

    def _send(self) -> None:
        if self._header:
            sent = self._sock.send(self._header)
            self._header = self._header[sent:]
            if self._header:
                return
        if self._sent < self._end:
            source = self._source
            assert source is not None
            piece = min(source.piece_bytes, self._end - self._sent)
            at = source.offset + self._sent
            self._sent += os.sendfile(self._sock.fileno(), source.fd, at, piece)
            if self._sent < self._end:
                return
        self._store.process.reactor.modify(self._sock.fileno(), READ)

    def _release(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.release()

    def _close(self) -> None:
        self._release()
        self._store.process.reactor.remove(self._sock.fileno())
        self._sock.close()


class _Transfer(Struct):
    """The fetch under way: the parts that are missing."""

    fetching: Fetching
    parts: deque[Part]
    """Parts that no stream has requested yet."""
    left: int
    """Bytes of the parts that have not arrived in full."""
    received: bool = False
    """Whether bytes have arrived since `Fetcher.has_received` was called."""


class Fetcher:
    """Moves bytes from one node, over streams: the `Transfers` of a `FetchQueue`."""

    def __init__(self, store: ObjectStore, node: int) -> None:
        self.store = store
        self.node = node
        self._streams: list[_Stream] = []
        self._transfer: _Transfer | None = None
        self.queue = FetchQueue(
            node, store.config, self, time.monotonic, store.process.reactor.after
        )
        self.allocate = store.allocator.allocate
        self.reserve = store.reserve
        self.add_copy = store.add_copy
        self.send = store.send

    def drop(self, reason: str) -> None:
        """Fail all fetches, and close every connection."""
        for stream in list(self._streams):
            self._close(stream)
        self.queue.drop(reason)

    # -- called by the queue -----------------------------------------------------

    def free(self, oid: bytes, offset: int) -> None:
        self.store.free_place(offset)

    def send_no_room(self, oid: bytes, size: int, node: int, reason: str) -> None:
        self.store.send_no_room(oid, size, node=node, reason=reason)

    def begin(self, fetching: Fetching) -> None:
        size = fetching.fetch.size
        step = -(-size // fetch_streams(size, self.store.config))
        parts = [(at, min(step, size - at)) for at in range(0, size, step)]
        self._transfer = _Transfer(fetching, deque(parts), size)
        self.request_parts()

    def has_received(self, fetching: Fetching) -> bool:
        transfer = self._transfer
        assert transfer is not None
        received, transfer.received = transfer.received, False
        return received

    def stop(self, fetching: Fetching, stalled: bool) -> None:
        self._transfer = None
        for stream in list(self._streams):
            # If no data comes, connections that are still being opened hang as well.
            if stream.part is not None or (stalled and stream.opening):
                self._close(stream)

    # -- called by streams -----------------------------------------------------

    def request_parts(self) -> None:
        """Assign parts to idle streams, and open streams for those that are left."""
        transfer = self._transfer
        if transfer is None:
            return
        for stream in list(self._streams):
            if transfer.parts and stream.idle:
                if transfer.fetching.began_s is None:
                    transfer.fetching.began_s = time.monotonic()
                stream.request(transfer.fetching, transfer.parts.popleft())
            if self._transfer is not transfer:
                return  # the request broke the stream, and the fetch has failed
        opening = sum(stream.opening for stream in self._streams)
        allowed = self.store.config.fetch_streams - len(self._streams)
        for _ in range(min(allowed, len(transfer.parts) - opening)):
            address = self.store.address_of(self.node)
            if address is None:
                self.drop(f"node {self.node} is not alive")
                return
            self._streams.append(_Stream(self, address))

    def _close(self, stream: _Stream) -> None:
        self._streams.remove(stream)
        stream.close()

    def on_bytes(self) -> None:
        """Note that bytes have arrived."""
        if self._transfer is not None:
            self._transfer.received = True

    def on_part(self, part: Part) -> None:
        """Count a part that has arrived in full."""
        transfer = self._transfer
        assert transfer is not None
        transfer.left -= part[1]
        if transfer.left:
            self.request_parts()
        else:
            self._transfer = None
            self.queue.done()

    def on_broken(self, stream: _Stream, reason: str) -> None:
        """Fail the fetch of a broken connection, or all fetches if none could be opened."""
        if stream not in self._streams:
            return
        self._close(stream)
        if stream.opening and not self._streams:
            self.drop(reason)
        elif stream.part is not None:
            self.queue.fail(reason)


class _Stream:
    """One connection, which requests one part at a time."""

    def __init__(self, fetcher: Fetcher, address: tuple[str, int]) -> None:
        self._fetcher = fetcher
        self._reactor = fetcher.store.process.reactor
        self._sock: socket.socket | None = None
        self._size = 0
        self._offset = 0
        self._header = bytearray()
        self._view: memoryview | None = None
        self.part: Part | None = None
        """The part that was requested and has not arrived in full."""
        self._closed = False
        self._dialing = DialedConnection(
            self._reactor,
            address,
            fetcher.store.token,
            lambda connection, frame: connection.close("frames on a data connection"),
            self._on_refused,
            peer=f"node:{fetcher.node}",
            kind=auth.DATA,
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

    def request(self, fetching: Fetching, part: Part) -> None:
        """Request a part of an object."""
        assert self._sock is not None
        self.part = part
        self._size = fetching.fetch.size
        self._offset = fetching.offset
        self._header.clear()
        self._view = None
        try:
            # The request fits into the empty socket buffer of an idle connection.
            self._sock.send(REQUEST.pack(fetching.fetch.object, *part))
        except OSError as error:
            self._fetcher.on_broken(self, str(error))

    def close(self) -> None:
        """Close the connection; from here on it writes no byte of its part."""
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
        self._fetcher.request_parts()

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
        """Receive bytes; return why the connection is broken, empty if it is not."""
        assert self._sock is not None
        if self.part is None:
            return "the other side closed the connection"
        if self._view is None:
            data = self._sock.recv(ANSWER.size - len(self._header))
            if not data:
                return "the other side closed the connection"
            self._header += data
            if len(self._header) < ANSWER.size:
                return ""
            here, size = ANSWER.unpack(self._header)
            if not here or size != self._size:
                if not here:
                    self.part = None  # the answer ends here: the connection is idle again
                self._fetcher.queue.absent()
                return ""
            start, length = self.part
            self._view = self._fetcher.store.arena.writable(self._offset + start, length)
        received = self._sock.recv_into(self._view[:PIECE_BYTES])
        if not received:
            return "the other side closed the connection"
        self._fetcher.on_bytes()
        self._view = self._view[received:]
        if not len(self._view):
            part, self.part, self._view = self.part, None, None
            self._fetcher.on_part(part)
            if self.idle and not self._closed:
                self._sock.send(RECEIVED)
        return ""
