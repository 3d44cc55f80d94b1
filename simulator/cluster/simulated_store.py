"""The node's object store and worker pool in virtual time.

They receive the same messages as the real ones. Three things take time: transfers over
the network, one after another from each source node and over as many streams as in the
real object store, for which both ends need a core as well; the disk, which serves one
request after another; and the start of a worker.
"""

from __future__ import annotations

import errno
import os
from collections import deque
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
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.machine.network import Transfer
from raytwin.simulator.machine.simulated_process import SimProcess

NO_SPACE = os.strerror(errno.ENOSPC)


class _Fetching:
    """An object that is being fetched."""

    __slots__ = ("arrived", "copying", "fetch", "offset", "transfer")

    def __init__(self, fetch: Fetch, offset: int) -> None:
        self.fetch = fetch
        self.offset = offset
        self.transfer: Transfer | None = None
        """None before the first byte and after the last."""
        self.copying = 0
        """How many of the two nodes still need a core for it."""
        self.arrived = False
        """Whether its last byte is here."""


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
        self._queues: dict[int, deque[tuple[Fetch, int]]] = {}
        """By source node: fetches that wait, with the offset allocated for each, or -1."""
        self._current: dict[int, _Fetching] = {}
        """By source node: the fetch under way."""

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self._reserve(message.size, message.in_file)
            if offset >= 0:
                self._places.setdefault(message.object, {})[offset] = None
                allocated = Allocated(message.object, offset, message.client)
                if message.in_file:
                    self._use_disk(message.size, partial(self._send, allocated))
                else:
                    self._send(allocated)
            else:
                reason = NO_SPACE if message.in_file else ""
                self._send_no_room(message.object, message.size, message.client, reason=reason)
        elif isinstance(message, Free):
            self._free(message.object, message.offset)
        elif isinstance(message, Fetch):
            if message.node == self.node:
                self._restore(message)
                return
            self._enqueue(message)
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

    def _reserve(self, size: int, in_file: bool) -> int:
        """Allocate for a new copy, which a full disk does not take."""
        return -1 if in_file and self.disk_full else self._allocate(size, in_file)

    def _allocate(self, size: int, in_file: bool = False) -> int:
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

    def _send_no_room(
        self, oid: bytes, size: int, client: str = "", node: int = -1, reason: str = ""
    ) -> None:
        free = self.capacity - self.used
        self._send(NoRoom(oid, size, self.capacity, free, client, node, reason))

    def _free(self, oid: bytes, offset: int) -> None:
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

    def _add_copy(self, oid: bytes, offset: int, payload: bytes) -> None:
        """Enter a copy that has arrived in full."""
        self.values[offset] = payload
        self._places.setdefault(oid, {})[offset] = None

    def _enqueue(self, fetch: Fetch) -> None:
        queue = self._queues.setdefault(fetch.node, deque())
        if not fetch.first:
            queue.append((fetch, -1))
        else:
            offset = self._reserve(fetch.size, fetch.in_file)
            if offset < 0:
                reason = NO_SPACE if fetch.in_file else ""
                self._send_no_room(fetch.object, fetch.size, node=fetch.node, reason=reason)
                return
            queue.appendleft((fetch, offset))
        self._next(fetch.node)

    def _next(self, node: int) -> None:
        queue = self._queues[node]
        if node in self._current or not queue:
            return
        fetch, offset = queue.popleft()
        if offset < 0:
            offset = self._allocate(fetch.size)
        if offset < 0:
            self._send_no_room(fetch.object, fetch.size, node=node)
            self._next(node)
            return
        current = self._current[node] = _Fetching(fetch, offset)
        cluster = self.cluster
        config = cluster.config
        started_s = cluster.env.now

        def begin() -> None:
            peer = cluster.stores.get(node)
            if peer is not None:
                peer.read_for_sending(fetch.object, send)
            else:
                send()

        def send() -> None:
            if self._current.get(node) is current:
                streams = config.fetch_streams if fetch.size >= config.stripe_bytes_min else 1
                cluster.working += 1
                current.transfer = cluster.network.transfer(
                    node, self.node, fetch.size, transferred, streams
                )
                profile = cluster.profile
                copy_s = fetch.size * profile.transfer_byte_s
                touch_s = self.untouched(offset) * profile.touch_byte_s
                for end, cpu_s in ((node, copy_s), (self.node, copy_s + touch_s)):
                    if cpu_s:
                        current.copying += 1
                        cluster.use_core(end, cpu_s, copied)

        def transferred(arrived: bool) -> None:
            cluster.working -= 1
            current.transfer = None
            if not arrived or not current.copying:
                done(arrived)
            else:
                current.arrived = True

        def copied() -> None:
            current.copying -= 1
            if current.arrived and not current.copying:
                done(True)

        def watch(sent_bytes: float) -> None:
            cluster.env.after(config.stall_s, partial(look, sent_bytes))

        def look(before: float) -> None:
            """Give the fetch up if no byte has come since the last look."""
            if self._current.get(node) is not current or self._ended:
                return
            transfer = current.transfer
            sent_bytes = 0.0 if transfer is None else transfer.sent_bytes(cluster.env.now)
            under_way = current.arrived or sent_bytes > before or sent_bytes >= fetch.size
            if under_way or (transfer is None and not blocked()):
                watch(sent_bytes)
                return
            del self._current[node]
            if transfer is not None:
                cluster.network.cancel(transfer)
                cluster.working -= 1
            self._free(fetch.object, offset)
            elapsed_s, reason = cluster.env.now - started_s, "no data came"
            self._send(Fetched(fetch.object, -1, fetch.size, elapsed_s, reason, node, stalled=True))
            self._next(node)

        def blocked() -> bool:
            network = cluster.network
            return network.is_blocked(self.node, node) or network.is_blocked(node, self.node)

        def done(arrived: bool) -> None:
            if self._current.get(node) is not current or self._ended:
                return
            del self._current[node]
            peer = cluster.stores.get(node)
            payload = peer.value_of(fetch.object) if peer is not None else None
            elapsed_s = cluster.env.now - started_s
            if arrived and payload is not None:
                self._add_copy(fetch.object, offset, payload)
                self._send(Fetched(fetch.object, offset, fetch.size, elapsed_s, "", node))
            else:
                self._free(fetch.object, offset)
                reason = "the connection was lost" if not arrived else "it is not there any more"
                self._send(Fetched(fetch.object, -1, fetch.size, elapsed_s, reason, node, arrived))
            self._next(node)

        if node not in cluster.stores:
            cluster.env.after(0, lambda: done(False))
            return
        # The request takes a latency before the transfer begins.
        cluster.network.send(self.node, node, 60, begin)
        watch(0.0)

    def drop_peer(self, node: int) -> None:
        """Fail all fetches from a node that is dead."""
        waiting = self._queues.pop(node, deque())
        current = self._current.pop(node, None)
        if current is not None:
            if current.transfer is not None:
                self.cluster.network.cancel(current.transfer)
                self.cluster.working -= 1
            waiting.appendleft((current.fetch, current.offset))
        for fetch, offset in waiting:
            if offset >= 0:
                self._free(fetch.object, offset)
            self._send(Fetched(fetch.object, -1, fetch.size, 0.0, "its node died", node))

    @property
    def _ended(self) -> bool:
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
            self._send(Spilled(message.object, message.offset, message.size, -1, NO_SPACE))
            return
        # The control plane may free the memory during the write: take the pickle now.
        payload = self.values[message.offset]
        self._offsets += 1
        place = self._offsets
        self.disk_used += message.size
        self.spilled_bytes += message.size

        def written() -> None:
            self._disk.setdefault(message.object, {})[place] = (payload, message.size)
            self._send(Spilled(message.object, message.offset, message.size, place))

        self._use_disk(message.size, written)

    def _restore(self, fetch: Fetch) -> None:
        oid, size = fetch.object, fetch.size
        spilled = self._disk.get(oid)
        offset = self._allocate(size, fetch.in_file) if spilled is not None else -1
        if spilled is None:
            self._send(Fetched(oid, -1, size, 0.0, "it is not on disk any more", self.node))
        elif offset < 0:
            self._send_no_room(oid, size, node=self.node)
        else:
            payload = next(payload for payload, _ in spilled.values())
            started_s = self.cluster.env.now

            def read() -> None:
                self._add_copy(oid, offset, payload)
                elapsed_s = self.cluster.env.now - started_s
                self._send(Fetched(oid, offset, size, elapsed_s, "", self.node))

            self._use_disk(fetch.size, read)

    def _send(self, message: Any) -> None:
        # The store is in the node's process: its messages take no network and no time.
        process = self.cluster.processes.get(f"node:{self.node}")
        if process is not None and not self._ended:
            process.arrive(f"store:{self.node}", f"node:{self.node}", [message])


class SimPool:
    """``pool:<n>``: starts and ends a node's workers."""

    def __init__(self, cluster: ClusterPort, node: int, process: SimProcess) -> None:
        self.cluster = cluster
        self.node = node
        self.process = process

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            self.cluster.zygotes.fork(self.node, partial(self._started, message.worker))
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
