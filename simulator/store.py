"""The node's object store and worker pool in virtual time.

The same messages as the real ones; what takes time is the network's transfer,
one after another from each source node as in the real object manager and over as
many streams, the disk, which does one thing after another, and the start of a
worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runtime.control.messages import (
    Allocate,
    Allocated,
    DropSpilled,
    Fetch,
    Fetched,
    Free,
    NoRoom,
    Spill,
    Spilled,
    StartWorker,
    StopWorker,
)

if TYPE_CHECKING:
    from simulator.cluster import SimCluster


class SimStore:
    """``store:<n>``: room is counted, contents are kept as pickles.

    Memory is never in pieces here.
    """

    def __init__(self, cluster: SimCluster, node: int, capacity: int) -> None:
        self.cluster = cluster
        self.node = node
        self.capacity = capacity
        self.used = 0
        self.values: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._places: dict[bytes, int] = {}
        self._offsets = 0
        self._disk: dict[bytes, tuple[int, bytes, int]] = {}
        """Object -> (place, pickle, size)."""
        self._disk_free_s = 0.0
        """When the disk has done all that it was asked for."""
        self.disk_used = 0
        self.spilled_bytes = 0
        """Written to disk so far."""
        self._queues: dict[int, deque[Fetch]] = {}
        self._busy: set[int] = set()

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self._allocate(message.size)
            if offset >= 0:
                self._places[message.object] = offset
                self._tell(Allocated(message.object, offset, message.client))
            else:
                self._tell_full(message.object, message.size, message.client)
        elif isinstance(message, Free):
            self._free(message.object, message.offset)
        elif isinstance(message, Fetch):
            if message.node == self.node:
                self._restore(message)
                return
            self._queues.setdefault(message.node, deque()).append(message)
            self._next(message.node)
        elif isinstance(message, Spill):
            self._spill(message)
        elif isinstance(message, DropSpilled):
            place, _, size = self._disk[message.object]
            if place == message.place:
                self.disk_used -= size
                del self._disk[message.object]
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _allocate(self, size: int) -> int:
        if self.used + size > self.capacity:
            return -1
        self.used += size
        self._offsets += 1
        self._sizes[self._offsets] = size
        return self._offsets

    def _tell_full(self, oid: bytes, size: int, client: str = "") -> None:
        self._tell(NoRoom(oid, size, self.capacity, self.capacity - self.used, client))

    def _free(self, oid: bytes, offset: int) -> None:
        self.used -= self._sizes.pop(offset)
        self.values.pop(offset, None)
        if self._places.get(oid) == offset:
            del self._places[oid]

    def _next(self, node: int) -> None:
        queue = self._queues[node]
        if node in self._busy or not queue:
            return
        fetch = queue.popleft()
        offset = self._allocate(fetch.size)
        if offset < 0:
            self._tell_full(fetch.object, fetch.size)
            self._next(node)
            return
        self._busy.add(node)
        cluster = self.cluster
        config = cluster.config
        started_s = cluster.env.now
        streams = config.fetch_streams if fetch.size >= config.stripe_bytes_min else 1
        left = streams
        arrived_all = True

        def begin() -> None:
            peer = cluster.stores.get(node)
            if peer is not None:
                peer.read_for_sending(fetch.object, send)
            else:
                send()

        def send() -> None:
            for stream in range(streams):
                part = fetch.size // streams + (stream < fetch.size % streams)
                cluster.working += 1
                cluster.network.transfer(node, self.node, part, landed)

        def landed(arrived: bool) -> None:
            nonlocal left, arrived_all
            cluster.working -= 1
            left -= 1
            arrived_all = arrived_all and arrived
            if not left:
                done(arrived_all)

        def done(arrived: bool) -> None:
            self._busy.discard(node)
            peer = cluster.stores.get(node)
            payload = peer.value_of(fetch.object) if peer is not None else None
            elapsed_s = cluster.env.now - started_s
            if arrived and payload is not None:
                self.values[offset] = payload
                self._places[fetch.object] = offset
                self._tell(Fetched(fetch.object, offset, fetch.size, elapsed_s))
            else:
                self._free(fetch.object, offset)
                reason = "the connection was lost" if not arrived else "it is not there any more"
                self._tell(Fetched(fetch.object, -1, fetch.size, elapsed_s, reason))
            self._next(node)

        if node not in cluster.stores:
            cluster.env.timeout(0).callbacks.append(lambda _: done(False))
            return
        # The request goes there before the bytes come back.
        cluster.network.send(self.node, node, 60, begin)

    def value_of(self, oid: bytes) -> bytes | None:
        """Return the pickle of an object that is here, in memory or on disk."""
        offset = self._places.get(oid)
        if offset is not None:
            return self.values.get(offset)
        spilled = self._disk.get(oid)
        return None if spilled is None else spilled[1]

    def read_for_sending(self, oid: bytes, then: Callable[[], None]) -> None:
        """Call `then` when the object can be sent: from disk, where it is only there."""
        spilled = self._disk.get(oid)
        if oid in self._places or spilled is None:
            then()
        else:
            self._use_disk(spilled[2], then)

    # -- disk ------------------------------------------------------------------

    def _use_disk(self, size: int, then: Callable[[], None]) -> None:
        """Call `then` when the disk has moved so many bytes, after all it has to do."""
        env = self.cluster.env
        begin_s = max(env.now, self._disk_free_s)
        self._disk_free_s = begin_s + size / self.cluster.profile.disk_bandwidth
        self.cluster.working += 1

        def over(_: Any) -> None:
            self.cluster.working -= 1
            then()

        env.timeout(self._disk_free_s - env.now).callbacks.append(over)

    def _spill(self, message: Spill) -> None:
        # As a real write, it takes the memory as it is now: it may be freed meanwhile.
        payload = self.values[message.offset]
        self._offsets += 1
        place = self._offsets
        self.disk_used += message.size
        self.spilled_bytes += message.size

        def written() -> None:
            self._disk[message.object] = (place, payload, message.size)
            self._tell(Spilled(message.object, message.offset, message.size, place))

        self._use_disk(message.size, written)

    def _restore(self, fetch: Fetch) -> None:
        spilled = self._disk.get(fetch.object)
        offset = self._allocate(fetch.size) if spilled is not None else -1
        if spilled is None:
            self._tell(Fetched(fetch.object, -1, fetch.size, 0.0, "it is not on disk any more"))
        elif offset < 0:
            self._tell_full(fetch.object, fetch.size)
        else:
            payload = spilled[1]
            started_s = self.cluster.env.now

            def read() -> None:
                self.values[offset] = payload
                self._places[fetch.object] = offset
                elapsed_s = self.cluster.env.now - started_s
                self._tell(Fetched(fetch.object, offset, fetch.size, elapsed_s))

            self._use_disk(fetch.size, read)

    def _tell(self, message: Any) -> None:
        # It lives in the node's process: no network, no wait.
        process = self.cluster.processes.get(f"node:{self.node}")
        if process is not None:
            process.arrive(f"store:{self.node}", f"node:{self.node}", [message])


class SimPool:
    """``pool:<n>``: starts workers after the time that a fork takes."""

    def __init__(self, cluster: SimCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            name = message.worker
            delay_s = self.cluster.profile.start_worker_s
            started = self.cluster.env.timeout(delay_s)
            started.callbacks.append(lambda _: self.cluster.start_worker(name, self.node))
        elif isinstance(message, StopWorker):
            self.cluster.stop_worker(message.worker)
        else:
            raise TypeError(f"a worker pool was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""
