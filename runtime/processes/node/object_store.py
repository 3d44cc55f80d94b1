"""The node's object store and its transfers: ``store:<n>`` of a real node.

Only this component allocates in the arena; workers and drivers write and read at the
offsets that they receive. Between nodes an object travels over one or several TCP
connections for object data (see `auth`), from one arena into the other without
a copy in between: `object_fetcher` requests, `Sender` answers with sendfile.

The memory of an object is not freed while it is being sent. An object on disk only is
sent from there: that needs no room in the arena, and the pieces are small enough for a
slow disk not to hold up the event loop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
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
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.reactor import HANG_UP, READ, WRITE
from raytwin.runtime.processes.node.object_fetcher import (
    ANSWER,
    PIECE_BYTES,
    REQUEST,
    SOCKET_BUFFER_BYTES,
    Fetcher,
)
from raytwin.runtime.processes.node.spiller import Spiller
from raytwin.runtime.store.allocator import Allocator
from raytwin.runtime.store.arena import Arena
from raytwin.runtime.store.prefault import Prefaulter

DISK_PIECE_BYTES = 1 << 19

Address = Callable[[int], "tuple[str, int] | None"]


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
        self._config = config
        self.process = process
        self.node = node
        self.arena = arena
        self.token = token
        self.address_of = address_of
        self.allocator = Allocator(arena.capacity)
        self._prefaulter = Prefaulter(arena.fd, arena.capacity)
        self._places: dict[bytes, dict[int, int]] = {}
        """By object: size by offset, complete copies first. It has several copies for a while if
        it is made or fetched twice."""
        self._held: dict[int, int] = {}
        """By offset: how many transfers and writes read there now."""
        self._free_later: set[int] = set()
        self._disk = Spiller(process.reactor, spill_directory)
        self._spilled: dict[bytes, tuple[int, int]] = {}
        """By object: (place on disk, size)."""
        self._disk_held: dict[int, int] = {}
        self._drop_later: set[int] = set()
        """Places on disk to free once their last reader is done."""
        self._disk_sizes: dict[int, int] = {}
        self._fetchers: dict[int, Fetcher] = {}

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self.allocator.allocate(message.size)
            if offset >= 0:
                self._places.setdefault(message.object, {})[offset] = message.size
                self._prefaulter.used(self.allocator.high_water)
                self.tell(Allocated(message.object, offset, message.client))
            else:
                self.tell_full(message.object, message.size, message.client)
        elif isinstance(message, Free):
            places = self._places.get(message.object, {})
            places.pop(message.offset, None)
            if not places:
                self._places.pop(message.object, None)
            self._free(message.offset)
        elif isinstance(message, Fetch):
            if message.node == self.node:
                self._restore(message)
                return
            fetcher = self._fetchers.get(message.node)
            if fetcher is None:
                fetcher = self._fetchers[message.node] = Fetcher(
                    self, message.node, self._config.fetch_streams, self._config.stripe_bytes_min
                )
            fetcher.add(message)
        elif isinstance(message, Spill):
            self._spill(message)
        elif isinstance(message, DropSpilled):
            self._drop_spilled(message)
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def tell(self, message: Any) -> None:
        """Send a message to this node's manager."""
        self.process.deliver(f"store:{self.node}", f"node:{self.node}", message)

    def serve(self, sock: socket.socket) -> None:
        """Answer another node's requests on a connection."""
        Sender(self, sock)

    def drop_peer(self, node: int) -> None:
        """Fail all fetches from a node that is dead."""
        fetcher = self._fetchers.pop(node, None)
        if fetcher is not None:
            fetcher.drop("its node died")

    # -- memory ----------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Allocate memory for an object to fetch; return its offset, or -1."""
        offset = self.allocator.allocate(size)
        self._prefaulter.used(self.allocator.high_water)
        return offset

    def give_back(self, offset: int) -> None:
        """Free the memory of an object whose transfer failed."""
        self.allocator.free(offset)

    def landed(self, oid: bytes, offset: int, size: int) -> None:
        """Note an object that was fetched in full: it may be sent to others now."""
        self._places[oid] = {offset: size, **self._places.get(oid, {})}

    def tell_full(self, oid: bytes, size: int, client: str = "", node: int = -1) -> None:
        """Report that an object does not fit; the node manager evicts others, or gives up."""
        free = self.allocator.capacity - self.allocator.used
        self.tell(NoRoom(oid, size, self.allocator.capacity, free, client, node))

    def begin_sending(self, oid: bytes) -> Source | None:
        """Return an object's bytes, held until `Source.release`; None if it is not here."""
        # The oldest copy: if any copy is complete, this one is.
        place = next(iter(self._places.get(oid, {}).items()), None)
        if place is not None:
            offset, size = place
            self._hold(offset)
            return Source(self.arena.fd, offset, size, PIECE_BYTES, lambda: self._release(offset))
        spilled = self._spilled.get(oid)
        if spilled is None:
            return None
        at, size = spilled
        self._disk_held[at] = self._disk_held.get(at, 0) + 1
        return Source(self._disk.fd, at, size, DISK_PIECE_BYTES, lambda: self._release_disk(at))

    def _hold(self, offset: int) -> None:
        self._held[offset] = self._held.get(offset, 0) + 1

    def _release(self, offset: int) -> None:
        """Drop one reader of an offset; free it after the last one, if that is due."""
        self._held[offset] -= 1
        if not self._held[offset]:
            del self._held[offset]
            if offset in self._free_later:
                self._free_later.discard(offset)
                self.allocator.free(offset)

    def _free(self, offset: int) -> None:
        if offset in self._held:
            self._free_later.add(offset)
        else:
            self.allocator.free(offset)

    # -- disk ------------------------------------------------------------------

    def _spill(self, message: Spill) -> None:
        oid, offset, size = message.object, message.offset, message.size
        self._hold(offset)

        def wrote(place: int, reason: str) -> None:
            self._release(offset)
            if place >= 0:
                self._spilled[oid] = (place, size)
                self._disk_sizes[place] = size
            self.tell(Spilled(oid, offset, size, place, reason))

        self._disk.write(self.arena.readonly(offset, size), wrote)

    def _drop_spilled(self, message: DropSpilled) -> None:
        place = message.place
        if self._spilled.get(message.object, (-1, 0))[0] == place:
            del self._spilled[message.object]
        if place in self._disk_held:
            self._drop_later.add(place)
        else:
            self._disk.free(place, self._disk_sizes.pop(place))

    def _release_disk(self, place: int) -> None:
        self._disk_held[place] -= 1
        if not self._disk_held[place]:
            del self._disk_held[place]
            if place in self._drop_later:
                self._drop_later.discard(place)
                self._disk.free(place, self._disk_sizes.pop(place))

    def _restore(self, fetch: Fetch) -> None:
        """Read an object from disk into the arena."""
        oid, size = fetch.object, fetch.size
        place = self._spilled.get(oid)
        if place is None or place[1] != size:
            self.tell(Fetched(oid, -1, size, 0.0, "it is not on disk any more", self.node))
            return
        offset = self.allocate(size)
        if offset < 0:
            self.tell_full(oid, size, node=self.node)
            return
        started_s = time.monotonic()

        def read(reason: str) -> None:
            elapsed_s = time.monotonic() - started_s
            if reason:
                self.give_back(offset)
            else:
                self.landed(oid, offset, size)
            at = -1 if reason else offset
            self.tell(Fetched(oid, at, size, elapsed_s, reason, self.node))

        self._disk.read(place[0], self.arena.writable(offset, size), read)


class Source(NamedTuple):
    """The bytes of an object that is being sent: a part of a file."""

    fd: int
    offset: int
    size: int
    piece_bytes: int
    release: Callable[[], None]


class Sender:
    """Serves one connection from another node: answers one request after another."""

    def __init__(self, manager: ObjectStore, sock: socket.socket) -> None:
        self._manager = manager
        self._sock = sock
        self._request = bytearray()
        self._head = b""
        self._source: Source | None = None
        self._sent = 0
        self._end = 0
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        manager.process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            if self._head or self._source is not None:
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
        source = self._source = self._manager.begin_sending(oid)
        self._head = ANSWER.pack(source is not None, source.size if source else 0)
        self._sent, self._end = start, start + length
        if source is not None and self._end > source.size:
            # The requester expects another size: the answer states this one and sends nothing.
            self._sent = self._end = 0
        self._manager.process.reactor.modify(self._sock.fileno(), READ | WRITE)

    def _send(self) -> None:
        if self._head:
            sent = self._sock.send(self._head)
            self._head = self._head[sent:]
            if self._head:
                return
        source = self._source
        if source is not None:
            piece = min(source.piece_bytes, self._end - self._sent)
            at = source.offset + self._sent
            if piece:
                self._sent += os.sendfile(self._sock.fileno(), source.fd, at, piece)
            if self._sent < self._end:
                return
        self._finish()
        self._manager.process.reactor.modify(self._sock.fileno(), READ)

    def _finish(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.release()

    def _close(self) -> None:
        self._finish()
        self._manager.process.reactor.remove(self._sock.fileno())
        self._sock.close()
