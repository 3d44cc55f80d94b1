"""The pull manager: fetches the objects that the clients and tasks of a node want.

The life of a wanted object that is not in memory::

    want ──> EXPECTED   its owner is a client of this node, so the result comes here anyway
       ├───> on this node's disk: Fetch ─────────────> Fetched ──> in memory
       │         └─ the disk failed ─────────────────> LOCATING
       └───> LOCATING ──> ObjectLocations
                 ↑            ├─ small: PullObject ──> ObjectPayload ─┐
                 │            ├─ large: Fetch ───────> Fetched ───────┤
              the source      ├─ lost: SYSTEM_ERROR ──────────────────┤
              failed          └─ nowhere: the GCS answers once it     ↓
                 └─────────────  is made, or made again ─────────  in memory

The node neither waits for a dead source nor asks it again. It reports a living source that does
not have the object to the GCS (`ObjectsMissing`), which would otherwise name that source again. A
fetch whose bytes stay out is given up: the node takes another copy, if there is one, and probes
whether it still reaches the source. If not, its channel reports the source as unreachable.

When a job ends, nothing of it is wanted any more: no client or GCS would release what comes later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_of, split_object_id
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    Fetch,
    Fetched,
    Free,
    LocateObjects,
    Location,
    Missing,
    NoRoom,
    ObjectPayload,
    ObjectsMissing,
    ObjectValue,
    Probe,
    PullObject,
    RangeResult,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, StoreFull, unpack
from raytwin.runtime.control.objects.object_memory import CLIENT, ObjectMemory, Request
from raytwin.runtime.control.objects.result_table import ResultTable
from raytwin.runtime.control.ownership.owner_table import OwnerTable

TRANSFERS_MAX = 10_000
RETRY_S = 0.1
"""Pause before the node asks the GCS again, after the source of an object failed."""

Ready = Callable[[ObjectValue], None]


class _Wanted(Struct):
    """An object that clients or tasks of this node want."""

    rank: int
    """The smallest rank of a task that wants it; see `object_memory`."""
    ready: list[Ready] = []
    until_s: float = 0.0
    """The end of a client's wait for free memory, once the wait has begun."""
    source: int = -1
    """The node to which the `PullObject` was sent; -1: none."""
    loss: Loss | None = None
    """For a lost item of a stream: the loss, while the node asks how the task ended."""


class PullManager:
    """The objects that one node wants, and their sources."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        owners: OwnerTable,
        results: ResultTable,
        memory: ObjectMemory,
        dead: Collection[int],
        copied: Callable[[bytes, bytes, int], None],
        config: Config,
    ) -> None:
        """`dead` are the nodes that are dead now; `copied` notifies the GCS of a copy (array,
        object, size)."""
        self._ctx = ctx
        self._node = node
        self._store = f"store:{node}"
        self._owners = owners
        self._results = results
        self._memory = memory
        self._dead = dead
        self._copied = copied
        self._config = config
        self._wanted: dict[bytes, _Wanted] = {}
        self.wanted_of: dict[bytes, set[bytes]] = {}
        """Wanted objects by array."""
        self._fetching: dict[bytes, Fetch] = {}
        """Requests to the store."""
        self.asking: list[bytes] = []
        """Objects to ask the GCS for at the end of the turn, in one message."""
        self._stalled: set[int] = set()
        """Sources of the last fetch from which no bytes came."""
        self.transfers: deque[tuple[Any, ...]] = deque(maxlen=TRANSFERS_MAX)
        """The rows of ``transfers`` for `queries`; the source is this node if it read its disk."""
        self.bandwidth = 0.0
        """Exponential average of the bandwidth of transfers to this node, bytes/s."""

    def handlers(self) -> Handlers:
        return {
            Fetched: lambda _, m: self.on_fetched(m),
            NoRoom: lambda _, m: self.on_no_room(m),
            Probe: lambda *_: None,
        }

    def wants_any(self, arrays: Sequence[bytes]) -> bool:
        """Whether an object of any of these arrays is wanted."""
        return not self.wanted_of.keys().isdisjoint(arrays)

    @property
    def fetches_inputs(self) -> bool:
        """Whether the store fetches an object that a task here waits for."""
        wanted = self._wanted
        return any(oid in wanted and wanted[oid].rank != CLIENT for oid in self._fetching)

    def want(self, oid: bytes, ready: Ready, rank: int = CLIENT) -> None:
        """Call `ready` with the object, or its error, once it is in memory."""
        value = self._memory.lookup(oid)
        if value is not None:
            if value.size:
                self._memory.used(oid)
            ready(value)
            return
        wanted = self._wanted.get(oid)
        if wanted is not None:
            wanted.rank = min(rank, wanted.rank)
            wanted.ready.append(ready)
            return
        self._wanted[oid] = _Wanted(rank, [ready])
        array, index, ret = split_object_id(oid)
        self.wanted_of.setdefault(array, set()).add(oid)
        result = self._results.find(array, index)
        place = self._memory.on_disk.get(oid)
        if place is not None:
            self._fetch(oid, place[1], self._node)
        elif result is not None and not self._results.is_lost(result):
            self._fetch(oid, result.sizes[ret], result.node)
        elif result is not None or array not in self._owners:
            self.asking.append(oid)

    def released(self, array: bytes) -> None:
        """Ask the GCS for wanted objects of a released array: it may reconstruct them."""
        for oid in sorted(self.wanted_of.get(array, ())):
            if oid not in self._fetching:
                self.asking.append(oid)

    def end_job(self, job: bytes) -> None:
        """A job has ended: drop its wanted objects; what fetches them for other jobs gets an
        error."""
        for oid in [oid for oid in self._wanted if job_of(oid) == job]:
            self._arrived(failed_value(Loss(LossCause.JOB_ENDED, object=oid), oid))

    def end_turn(self) -> None:
        """Ask the GCS to locate the objects that this turn did not find here."""
        asking = dict.fromkeys(oid for oid in self.asking if oid in self._wanted)
        self.asking = []
        if asking:
            self._ctx.send("gcs", LocateObjects(list(asking)))

    # -- sources -----------------------------------------------------------------

    def on_location(self, location: Location) -> None:
        """Pull a wanted object from a node that the GCS names."""
        oid = location.object
        wanted = self._wanted.get(oid)
        if wanted is None or oid in self._fetching:
            return
        if location.lost is not None:
            if location.ended in (-1, self._node) or location.ended in self._dead:
                here = location.ended == self._node
                self._lost(oid, location.lost, self._results.end_instead_of(oid) if here else None)
            else:
                wanted.loss, wanted.source = location.lost, location.ended
                self._ctx.send(f"node:{location.ended}", PullObject(oid))
        elif location.nodes:
            # A random copy, so that the load is spread.
            nodes = [n for n in location.nodes if n != self._node and n not in self._dead]
            if not nodes:
                if self._node in location.nodes:
                    self._missing(oid, self._node)
                self._retry(oid)
                return
            nodes = [n for n in nodes if n not in self._stalled] or nodes
            node = nodes[self._ctx.rng.randrange(len(nodes))]
            if location.size:
                self._fetch(oid, location.size, node)
            else:
                wanted.source = node
                self._ctx.send(f"node:{node}", PullObject(oid))

    def _lost(self, oid: bytes, why: Loss, end: RangeResult | None) -> None:
        """An object is lost; `end` is the error of the task that was to yield it again."""
        if end is not None and end.status != SYSTEM_ERROR:
            # The task raised this time: the reader of the item gets its error and traceback.
            self._arrived(ObjectValue(oid, end.status, end.payload))
            return
        root = why.root if end is None else unpack(end.payload)
        self._arrived(failed_value(replace(why, object=oid, root=root), oid))

    def node_died(self, node: int) -> None:
        """Ask the GCS for other sources of the objects that a dead node was asked for."""
        for oid, wanted in self._wanted.items():
            if wanted.source == node:
                wanted.source, wanted.loss = -1, None
                self.asking.append(oid)
        self._stalled.discard(node)
        for oid, fetch in list(self._fetching.items()):
            if fetch.node == node:
                del self._fetching[oid]
                self.asking.append(oid)

    def _missing(
        self, oid: bytes, node: int, why: Missing = Missing.ABSENT, detail: str = ""
    ) -> None:
        self._ctx.send("gcs", ObjectsMissing(node, [oid], why, detail))

    def _retry(self, oid: bytes) -> None:
        def again() -> None:
            if oid in self._wanted and oid not in self._fetching:
                self.asking.append(oid)

        self._ctx.after(RETRY_S, again)

    # -- arriving objects --------------------------------------------------------

    def on_payload(self, message: ObjectPayload) -> bool:
        """Take a small object from another node; return whether to keep it."""
        oid = message.object
        wanted = self._wanted.get(oid)
        if wanted is None:
            return False
        source, wanted.source = wanted.source, -1
        if wanted.loss is not None:
            self._lost(oid, wanted.loss, message.result)
            return False
        if message.result is None:
            if source >= 0:
                self._missing(oid, source)
            self._retry(oid)
            return False
        self._copied(message.result.array, oid, 0)
        return True

    def _fetch(self, oid: bytes, size: int, node: int) -> None:
        if oid in self._fetching:
            return  # released, and wanted again before the fetch has ended
        if node in self._dead or (node == self._node and oid not in self._memory.on_disk):
            if node in self._dead:
                self._missing(oid, node, Missing.NODE_DIED)
            self.asking.append(oid)
            return
        fetch = Fetch(oid, size, node)
        self._fetching[oid] = fetch
        self._ctx.send(self._store, fetch)

    def on_no_room(self, message: NoRoom) -> None:
        """The arena is full: request room for a fetch, or for a client's object."""
        if message.client:
            self._memory.on_no_room(message)
            return
        oid = message.object
        fetch = self._fetching.get(oid)
        if fetch is None or fetch.node != message.node:
            return  # that source has died since, and another one is asked
        if oid not in self._wanted:
            del self._fetching[oid]
            return

        def outdated() -> bool:
            return self._fetching.get(oid) is not fetch

        def retry(in_file: bool) -> None:
            if outdated():
                return
            if oid in self._wanted:
                again = Fetch(oid, fetch.size, fetch.node, first=True, in_file=in_file)
                self._ctx.send(self._store, again)
            else:
                del self._fetching[oid]

        def fail(full: StoreFull) -> None:
            if outdated():
                return
            del self._fetching[oid]
            if oid in self._wanted:
                self._arrived(failed_value(full, oid))

        wanted = self._wanted[oid]
        if wanted.rank == CLIENT:
            # One limit holds for all waits of a client together.
            until_s = wanted.until_s or self._ctx.now() + self._config.allocate_wait_s
            wanted.until_s = until_s
        else:
            # Tasks wait as long as there is progress: the pins of earlier tasks end when these
            # have run.
            until_s = self._ctx.now() + self._config.store_wait_s
        self._memory.need(Request(message.size, wanted.rank, until_s, retry, fail), message)

    def on_fetched(self, message: Fetched) -> None:
        """The store has copied a large object into the arena, or failed to."""
        oid = message.object
        far = message.node != self._node
        fetch = self._fetching.get(oid)
        if fetch is not None and fetch.node == message.node:
            del self._fetching[oid]
        elif message.offset < 0:
            return  # the late answer of a dead source, after the request to another one
        if message.offset >= 0:
            self._stalled.discard(message.node)
            elapsed_s = message.elapsed_s
            start_s = self._ctx.now() - elapsed_s
            self.transfers.append((self._node, message.node, start_s, elapsed_s, message.size, oid))
            if message.elapsed_s > 0 and far:
                rate = message.size / message.elapsed_s
                self.bandwidth = 0.8 * self.bandwidth + 0.2 * rate if self.bandwidth else rate
            if oid not in self._wanted:
                # Released before the fetch ended.
                self._ctx.send(self._store, Free(oid, message.offset))
                return
            self._memory.keep(oid, message.offset, message.size)
            if far or oid not in self._memory.on_disk:
                # Its array may have been released while the disk was read: the GCS frees it.
                self._copied(oid[:ARRAY_BYTES], oid, message.size)
            self.resolve(oid[:ARRAY_BYTES])
        elif oid in self._wanted:
            if not far and oid in self._memory.on_disk:
                self._memory.disk_failed(oid)
                self._missing(oid, self._node, Missing.UNREADABLE, message.reason)
            elif far and message.gone and message.node not in self._dead:
                self._missing(oid, message.node)
            elif message.stalled and message.node not in self._dead:
                self._stalled.add(message.node)
                self._ctx.send(f"node:{message.node}", Probe())
            self._retry(oid)

    def resolve(self, array: bytes) -> None:
        """Deliver the wanted objects of an array that are in memory now, and fetch the others."""
        for oid in sorted(self.wanted_of[array]):
            value = self._memory.lookup(oid)
            if value is not None:
                self._arrived(value)
            elif oid not in self._fetching:
                _, index, ret = split_object_id(oid)
                result = self._results.find(array, index)
                if result is None:
                    continue
                if self._results.is_lost(result):
                    self.asking.append(oid)
                else:
                    self._fetch(oid, result.sizes[ret], result.node)

    def _arrived(self, value: ObjectValue) -> None:
        oid = value.object
        array = oid[:ARRAY_BYTES]
        of_array = self.wanted_of[array]
        of_array.discard(oid)
        if not of_array:
            del self.wanted_of[array]
        for ready in self._wanted.pop(oid).ready:
            ready(value)


def released_error(oid: bytes) -> ObjectValue:
    """Return the error of an object that its owner has released."""
    return failed_value(Loss(LossCause.RELEASED, object=oid), oid)
