"""The node's object store and worker pool in virtual time.

The same messages as the real ones; what takes time is the network's transfer,
one after another from each source node as in the real object manager, and the
start of a worker.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from runtime.control.messages import (
    Allocate,
    Allocated,
    Fetch,
    Fetched,
    Free,
    KillWorker,
    StartWorker,
    StopWorker,
    WorkerDied,
)

if TYPE_CHECKING:
    from simulator.cluster import SimCluster
    from simulator.network import Transfer
    from simulator.process import SimProcess


class _Fetching:
    """An object on its way."""

    __slots__ = ("fetch", "offset", "transfer")

    def __init__(self, fetch: Fetch, offset: int) -> None:
        self.fetch = fetch
        self.offset = offset
        self.transfer: Transfer | None = None


class SimStore:
    """``store:<n>``: room is counted, contents are kept as pickles."""

    def __init__(self, cluster: SimCluster, node: int, capacity: int) -> None:
        self.cluster = cluster
        self.node = node
        self.capacity = capacity
        self.used = 0
        self.values: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._places: dict[bytes, dict[int, None]] = {}
        """Where an object is: in several places for a while if it is made or fetched twice."""
        self._offsets = 0
        self._queues: dict[int, deque[Fetch]] = {}
        self._current: dict[int, _Fetching] = {}
        """What is being fetched, by the node that it comes from."""

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self._allocate(message.object, message.size)
            self._tell(Allocated(message.object, offset, message.client))
        elif isinstance(message, Free):
            self._free(message.object, message.offset)
        elif isinstance(message, Fetch):
            self._queues.setdefault(message.node, deque()).append(message)
            self._next(message.node)
        else:
            raise TypeError(f"an object store was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _allocate(self, oid: bytes, size: int) -> int:
        if self.used + size > self.capacity:
            return -1
        self.used += size
        self._offsets += 1
        self._sizes[self._offsets] = size
        self._places.setdefault(oid, {})[self._offsets] = None
        return self._offsets

    def _free(self, oid: bytes, offset: int) -> None:
        self.used -= self._sizes.pop(offset)
        self.values.pop(offset, None)
        places = self._places[oid]
        del places[offset]
        if not places:
            del self._places[oid]

    def _next(self, node: int) -> None:
        queue = self._queues[node]
        if node in self._current or not queue:
            return
        fetch = queue.popleft()
        offset = self._allocate(fetch.object, fetch.size)
        if offset < 0:
            reason = f"ObjectStoreFullError: no room for {fetch.size:,} bytes"
            self._tell(Fetched(fetch.object, -1, fetch.size, 0.0, reason, node))
            self._next(node)
            return
        current = self._current[node] = _Fetching(fetch, offset)
        cluster = self.cluster
        started_s = cluster.env.now

        def begin() -> None:
            if self._current.get(node) is current:
                cluster.working += 1
                current.transfer = cluster.network.transfer(node, self.node, fetch.size, landed)

        def landed(arrived: bool) -> None:
            cluster.working -= 1
            done(arrived)

        def done(arrived: bool) -> None:
            if self._current.get(node) is not current or self._gone:
                return
            del self._current[node]
            peer = cluster.stores.get(node)
            payload = peer.value_of(fetch.object) if peer is not None else None
            elapsed_s = cluster.env.now - started_s
            if arrived and payload is not None:
                self.values[offset] = payload
                self._tell(Fetched(fetch.object, offset, fetch.size, elapsed_s, "", node))
            else:
                self._free(fetch.object, offset)
                reason = "the connection was lost" if not arrived else "it is not there any more"
                self._tell(Fetched(fetch.object, -1, fetch.size, elapsed_s, reason, node))
            self._next(node)

        if node not in cluster.stores:
            cluster.env.timeout(0).callbacks.append(lambda _: done(False))
            return
        # The request goes there before the bytes come back.
        cluster.network.send(self.node, node, 60, begin)

    def drop_peer(self, node: int) -> None:
        """A node is dead: fail what is being fetched from it."""
        waiting = self._queues.pop(node, deque())
        current = self._current.pop(node, None)
        if current is not None:
            if current.transfer is not None:
                current.transfer.cancel()
                self.cluster.working -= 1
            self._free(current.fetch.object, current.offset)
            waiting.appendleft(current.fetch)
        for fetch in waiting:
            self._tell(Fetched(fetch.object, -1, fetch.size, 0.0, "its node died", node))

    @property
    def _gone(self) -> bool:
        """Whether its process has ended; another may have the node's number by now."""
        return self.cluster.stores.get(self.node) is not self

    def value_of(self, oid: bytes) -> bytes | None:
        """Return the pickle of an object that is here."""
        # The oldest: it is complete if any is.
        offset = next(iter(self._places.get(oid, ())), None)
        return None if offset is None else self.values.get(offset)

    def _tell(self, message: Any) -> None:
        # It lives in the node's process: no network, no wait.
        process = self.cluster.processes.get(f"node:{self.node}")
        if process is not None and not self._gone:
            process.arrive(f"store:{self.node}", f"node:{self.node}", [message])


class SimPool:
    """``pool:<n>``: starts workers after the time that a fork takes."""

    def __init__(self, cluster: SimCluster, node: int, process: SimProcess) -> None:
        self.cluster = cluster
        self.node = node
        self.process = process

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            name = message.worker
            delay_s = self.cluster.profile.start_worker_s
            started = self.cluster.env.timeout(delay_s)
            started.callbacks.append(lambda _: self._started(name))
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
        """Nothing is left for the end of a turn."""
