"""The node's object store and worker pool in virtual time.

They receive the same messages as the real ones. Three things take time: transfers over
the network, one after another from each source node and over as many streams as in the
real object store, for which both ends need a core as well; the disk, which serves one
request after another; and the start of a worker.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from raytwin.runtime.control.messages import (
    IN_FILE,
    Allocate,
    Allocated,
    DropSpilled,
    Fetch,
    Fetched,
    Free,
    KillWorker,
    NoRoom,
    Spill,
    Spilled,
    StartWorker,
    StopWorker,
    WorkerDied,
)
from raytwin.runtime.control.objects.fetch_queue import (
    NODE_DIED,
    Fetching,
    FetchQueue,
    fetch_streams,
    not_on_disk,
)
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.machine.network import Transfer
from raytwin.simulator.machine.simulated_process import SimProcess

NO_SPACE = os.strerror(errno.ENOSPC)
LOST = "the connection was lost"


class SimStore:
    """``store:<n>``: counts the memory in use, which never fragments, and stores pickles."""

    def __init__(self, cluster: ClusterPort, node: int, capacity: int) -> None:
        self.cluster = cluster
        self.node = node
        self.capacity = capacity
        self.used = 0
        self.values: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._high_water = 0
        """The most memory that was ever in use: the real store takes what it had before first."""
        self._untouched: dict[int, int] = {}
        """By offset: bytes above the mark before, of places that nothing was written to yet."""
        self._places: dict[bytes, dict[int, None]] = {}
        """By object: its offsets; several for a while if it was created or fetched twice."""
        self._offsets = 0
        self._disk: dict[bytes, dict[int, tuple[bytes, int]]] = {}
        """By object: (pickle, size) by place."""
        self.disk_bandwidth = cluster.profile.disk_bandwidth
        """Bytes/s, which a fault may change."""
        self.disk_full = False
        """Whether every further write to the disk fails, by a fault."""
        self._disk_free_s = 0.0
        """When the disk will have served all its requests."""
        self.disk_used = 0
        self.spilled_bytes = 0
        """Bytes written to disk so far."""
        self._fetchers: dict[int, _Fetcher] = {}
        """By source node."""

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self.reserve(message.size, message.in_file)
            if offset >= 0:
                self._places.setdefault(message.object, {})[offset] = None
                allocated = Allocated(message.object, offset, message.client)
                if message.in_file:
                    self._use_disk(message.size, partial(self.send, allocated))
                else:
                    self.send(allocated)
            else:
                reason = NO_SPACE if message.in_file else ""
                self.send_no_room(message.object, message.size, message.client, reason=reason)
        elif isinstance(message, Free):
            self.free(message.object, message.offset)
        elif isinstance(message, Fetch):
            if message.node == self.node:
                self._restore(message)
                return
            fetcher = self._fetchers.get(message.node)
            if fetcher is None:
                fetcher = self._fetchers[message.node] = _Fetcher(self, message.node)
            fetcher.queue.add(message)
        elif isinstance(message, Spill):
            self._spill(message)
        elif isinstance(message, DropSpilled):
            places = self._disk[message.object]
            _, size = places.pop(message.place)
            self.disk_used -= size
            if not places:
                del self._disk[message.object]
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def reserve(self, size: int, in_file: bool) -> int:
        """Allocate for a new copy, which a full disk does not take."""
        return -1 if in_file and self.disk_full else self.allocate(size, in_file)

    def allocate(self, size: int, in_file: bool = False) -> int:
        if not in_file and self.used + size > self.capacity:
            return -1
        self._offsets += 1
        offset = self._offsets
        if in_file:
            self.disk_used += size
            offset += IN_FILE
        else:
            self.used += size
            if self.used > self._high_water:
                self._untouched[offset] = self.used - self._high_water
                self._high_water = self.used
        self._sizes[offset] = size
        return offset

    def untouched(self, offset: int) -> int:
        return self._untouched.get(offset, 0)

    def send_no_room(
        self, oid: bytes, size: int, client: str = "", node: int = -1, reason: str = ""
    ) -> None:
        free = self.capacity - self.used
        self.send(NoRoom(oid, size, self.capacity, free, client, node, reason))

    def free(self, oid: bytes, offset: int) -> None:
        size = self._sizes.pop(offset)
        if offset >= IN_FILE:
            self.disk_used -= size
        else:
            self.used -= size
        self._untouched.pop(offset, None)
        self.values.pop(offset, None)
        places = self._places.get(oid, {})
        places.pop(offset, None)
        if not places:
            self._places.pop(oid, None)

    def add_copy(self, oid: bytes, offset: int, payload: bytes) -> None:
        """Enter a copy that has arrived in full."""
        self.values[offset] = payload
        self._places.setdefault(oid, {})[offset] = None

    def drop_peer(self, node: int) -> None:
        """Fail all fetches from a node that is dead."""
        fetcher = self._fetchers.pop(node, None)
        if fetcher is not None:
            fetcher.queue.drop(NODE_DIED)

    def break_connection(self, node: int) -> None:
        """Break the connection over which this store fetches from a node, as a reset does."""
        if node in self._fetchers:
            self._fetchers[node].break_connection()

    @property
    def ended(self) -> bool:
        """Whether this store's process has ended; a restarted node may have its number by now."""
        return self.cluster.stores.get(self.node) is not self

    def value_of(self, oid: bytes) -> bytes | None:
        """Return the pickle of an object that is here, in memory or on disk."""
        for offset in self._places.get(oid, ()):
            if offset in self.values:
                return self.values[offset]
        return next((payload for payload, _ in self._disk.get(oid, {}).values()), None)

    def read_for_sending(self, oid: bytes, done: Callable[[], None]) -> None:
        """Call `done` when the object can be sent: after a read, if it is only on disk."""
        spilled = self._disk.get(oid)
        if oid in self._places or spilled is None:
            done()
        else:
            self._use_disk(next(size for _, size in spilled.values()), done)

    # -- disk ------------------------------------------------------------------

    def _use_disk(self, size: int, done: Callable[[], None]) -> None:
        """Call `done` when the disk, after its earlier requests, has moved `size` bytes."""
        env = self.cluster.env
        begin_s = max(env.now, self._disk_free_s)
        self._disk_free_s = begin_s + size / self.disk_bandwidth
        self.cluster.working += 1

        def served() -> None:
            self.cluster.working -= 1
            done()

        env.after(self._disk_free_s - env.now, served)

    def _spill(self, message: Spill) -> None:
        if self.disk_full:
            self.send(Spilled(message.object, message.offset, message.size, -1, NO_SPACE))
            return
        # The control plane may free the memory during the write: take the pickle now.
        payload = self.values[message.offset]
        self._offsets += 1
        place = self._offsets
        self.disk_used += message.size
        self.spilled_bytes += message.size

        def written() -> None:
            self._disk.setdefault(message.object, {})[place] = (payload, message.size)
            self.send(Spilled(message.object, message.offset, message.size, place))

        self._use_disk(message.size, written)

    def _restore(self, fetch: Fetch) -> None:
        oid, size = fetch.object, fetch.size
        spilled = self._disk.get(oid)
        offset = self.allocate(size, fetch.in_file) if spilled is not None else -1
        if spilled is None:
            self.send(not_on_disk(fetch))
        elif offset < 0:
            self.send_no_room(oid, size, node=self.node)
        else:
            payload = next(payload for payload, _ in spilled.values())
            started_s = self.cluster.env.now

            def read() -> None:
                self.add_copy(oid, offset, payload)
                elapsed_s = self.cluster.env.now - started_s
                self.send(Fetched(oid, offset, size, elapsed_s, "", self.node))

            self._use_disk(fetch.size, read)

    def send(self, message: Any) -> None:
        # The store is in the node's process: its messages take no network and no time.
        process = self.cluster.processes.get(f"node:{self.node}")
        if process is not None and not self.ended:
            process.arrive(f"store:{self.node}", f"node:{self.node}", [message])


class _Fetcher:
    """Moves bytes from one node, over the network: the `Transfers` of a `FetchQueue`."""

    def __init__(self, store: SimStore, node: int) -> None:
        self._store = store
        self._node = node
        self._cluster = store.cluster
        self.queue = FetchQueue(node, store.cluster.config, self, self._now, self._after)
        self.allocate = store.allocate
        self.free = store.free
        self.send = store.send
        self._connected = False
        self._requested = False
        """Whether the other node has been asked for bytes that are not all here."""
        self._transfer: Transfer | None = None
        """None before the first byte and after the last."""
        self._copying = 0
        """How many of the two nodes still need a core for it."""
        self._arrived = False
        """Whether its last byte is here."""
        self._seen_bytes = 0.0
        """The bytes that the other node had sent at the last call of `has_received`."""

    def _now(self) -> float:
        return self._cluster.env.now

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._cluster.env.after(delay_s, lambda: None if self._store.ended else callback())

    def break_connection(self) -> None:
        """Fail the fetch under way, if any; the next one opens another connection."""
        self._connected = False
        if self._requested:
            self.queue.fail(LOST)
        else:
            self.queue.drop(LOST)  # it is being opened, or idle

    # -- called by the queue -----------------------------------------------------

    def reserve(self, size: int, done: Callable[[int, str], None]) -> None:
        offset = self._store.reserve(size, True)
        done(offset, NO_SPACE if offset < 0 else "")

    def add_copy(self, oid: bytes, offset: int, size: int) -> None:
        peer = self._cluster.stores[self._node]
        self._store.add_copy(oid, offset, peer.value_of(oid))

    def send_no_room(self, oid: bytes, size: int, node: int, reason: str) -> None:
        self._store.send_no_room(oid, size, node=node, reason=reason)

    def begin(self, fetching: Fetching) -> None:
        cluster, node, queue = self._cluster, self._node, self.queue
        self._copying, self._arrived, self._seen_bytes = 0, False, 0.0
        fetch = fetching.fetch

        def connected() -> None:
            if queue.current is fetching:
                self._connected = True
                request()

        def request() -> None:
            fetching.began_s = cluster.env.now
            self._requested = True
            # The request takes a latency before the transfer begins.
            cluster.network.send(self._store.node, node, 60, read)

        def read() -> None:
            peer = cluster.stores.get(node)
            if peer is not None:
                peer.read_for_sending(fetch.object, send)
            else:
                send()

        def send() -> None:
            if queue.current is fetching:
                cluster.working += 1
                streams = fetch_streams(fetch.size, cluster.config)
                self._transfer = cluster.network.transfer(
                    node, self._store.node, fetch.size, transferred, streams
                )
                profile = cluster.profile
                copy_s = fetch.size * profile.transfer_byte_s
                touch_s = self._store.untouched(fetching.offset) * profile.touch_byte_s
                for end, cpu_s in ((node, copy_s), (self._store.node, copy_s + touch_s)):
                    if cpu_s:
                        self._copying += 1
                        cluster.use_core(end, cpu_s, copied)

        def transferred(arrived: bool) -> None:
            cluster.working -= 1
            self._transfer = None
            if not arrived or not self._copying:
                end(arrived)
            else:
                self._arrived = True

        def copied() -> None:
            if queue.current is fetching:
                self._copying -= 1
                if self._arrived and not self._copying:
                    end(True)

        def end(arrived: bool) -> None:
            if queue.current is not fetching or self._store.ended:
                return
            peer = cluster.stores.get(node)
            if not arrived:
                queue.fail(LOST)
                return
            self._requested = False
            if peer is None or peer.value_of(fetch.object) is None:
                queue.absent()
            else:
                queue.done()

        def refused() -> None:
            if queue.current is fetching and not self._store.ended:
                queue.drop(LOST)

        if node not in cluster.stores:
            cluster.env.after(0, refused)
        elif self._connected:
            request()
        else:
            cluster.network.connect(self._store.node, node, connected)

    def has_received(self, fetching: Fetching) -> bool:
        cluster, transfer = self._cluster, self._transfer
        if transfer is None:
            # Its bytes are here, and wait for a core; or the other node reads them from its disk.
            return self._arrived or not self._blocked()
        before, sent_bytes = self._seen_bytes, transfer.sent_bytes(cluster.env.now)
        self._seen_bytes = sent_bytes
        return sent_bytes > before or sent_bytes >= fetching.fetch.size

    def _blocked(self) -> bool:
        network, ends = self._cluster.network, (self._store.node, self._node)
        return network.is_blocked(*ends) or network.is_blocked(*reversed(ends))

    def stop(self, fetching: Fetching, stalled: bool) -> None:
        if self._requested or stalled:
            # The bytes of the fetch that has failed would come before those of the next one.
            self._connected = self._requested = False
        if self._transfer is not None:
            self._cluster.network.cancel(self._transfer)
            self._cluster.working -= 1
            self._transfer = None


class SimPool:
    """``pool:<n>``: starts and ends a node's workers."""

    def __init__(self, cluster: ClusterPort, node: int, process: SimProcess) -> None:
        self.cluster = cluster
        self.node = node
        self.process = process

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            begin = partial(self._started, message.worker)
            self.cluster.zygotes.fork(self.node, message.worker, begin)
        elif isinstance(message, StopWorker):
            self.cluster.stop_worker(message.worker)
        elif isinstance(message, KillWorker):
            self._kill(message.worker)
        else:
            raise TypeError(f"a worker pool was sent {type(message).__name__}")

    def _started(self, name: str) -> None:
        if self.process.alive:
            self.cluster.start_worker(name, self.node)

    def _kill(self, worker: str) -> None:
        self.cluster.stop_worker(worker)
        process = self.cluster.processes.get(f"node:{self.node}")
        if process is not None:
            died = WorkerDied(worker, "killed by SIGKILL")
            process.arrive(f"pool:{self.node}", f"node:{self.node}", [died])

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
