"""The objects in a node's memory and on its disk, and eviction from a full arena.

Small objects are in results, large ones in the arena. A client first writes a large object::

    AllocateObject ──> Allocate to the store ──> Allocated ──> UNSEALED: its client writes
                            │ NoRoom                              │
                            └──> eviction makes room              ├─ sealed: a result or a put
                                 and retries, in the end          │  names it
                                 in the file                      └─ freed: abandoned, its client
                                                                     died, its result is not kept

A client that has the place of a sealed object **pins** it until it sends `Unpin` or dies. The
memory is freed when the array is released and the last pin has ended.

The store (``store:<n>``) allocates. If it has no room it replies `NoRoom`, and the node queues the
allocation or fetch as a *request* for room::

    NoRoom ──> WAITING ──victims──> Spill ──> Spilled ──> tried again
                  ↑  │                                        │
                  │  ├─ no victim: clients are asked to unpin │
                  │  │  objects that they do not read ────────┤
                  │  └─ none for too long, or too large: tried again in the file
                  └───────────── NoRoom (it was in pieces) ───┘

The node's file on disk, which clients can map, takes what finds no room in memory: there it is read
and written like an object in memory, and counts as one that nobody evicts. An object that was
spilled before is mapped where it is, as long as a client pins it. Only if the disk fails, the
request does, with ObjectStoreFullError.

The least recently used objects go to disk first, as in the paper. A large object is in memory, on
disk, or both (*clean*: it was brought back, or pinned while it was written). Objects never change,
so a clean one leaves memory at no cost. The disk's copy lives until the object is released.

Which objects a request may evict:

* none that is pinned (a client maps it, a task on a worker has it as input);
* an input of a task that waits or is ready is *claimed* with the task's rank. Clients (rank
  `CLIENT`) may evict it; a task only if it came before the one that claims it. So the oldest
  waiting task always gets all its inputs, however many tasks want more than the arena holds.

Requests are served by rank, one at a time. Evicting a 32nd of the arena at once
keeps the number of round trips to the disk low when small objects fill it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.ids import ARRAY_BYTES, object_id, split_object_id
from raytwin.runtime.control.messages import (
    IN_FILE,
    OK,
    AbandonObject,
    Allocate,
    Allocated,
    AllocateObject,
    DropSpilled,
    Free,
    NoRoom,
    ObjectAllocated,
    ObjectValue,
    RangeResult,
    Spill,
    Spilled,
)
from raytwin.runtime.control.messages.errors import StoreFull
from raytwin.runtime.control.objects.result_table import ResultTable

CLIENT = -1
"""The rank of a client's request; tasks have ranks from 0 on, older ones first."""
BATCH_SHARE = 32


class Request(Struct):
    """A fetch or an allocation that waits for free memory in the arena."""

    size: int
    rank: int
    until_s: float
    retry: Callable[[bool], None]
    """Its argument: whether in the file."""
    fail: Callable[[StoreFull], None]
    free: int = 0
    """Bytes that were free, perhaps fragmented, when the request did not fit."""
    tries: int = 0
    asked: bool = False
    seen: int = 0
    """The value of `_frees` when the store had no room."""


class ObjectMemory:
    """The large objects of one node, the clients that pin them, and the order of eviction."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        config: Config,
        results: ResultTable,
        lives: Callable[[str], bool],
        ask_back: Callable[[], None],
    ) -> None:
        """`results` has the small values; `lives` returns whether a client of this node lives;
        `ask_back` asks clients to end pins that they do not need."""
        self._ctx = ctx
        self._store = f"store:{node}"
        self._allocate_wait_s = config.allocate_wait_s
        self._results = results
        self._lives = lives
        self._ask_back = ask_back
        self._unsealed: dict[bytes, tuple[str, int]] = {}
        """By object: the client that writes it, and its place."""
        self._stored: dict[bytes, tuple[int, int]] = {}
        """Large objects: place in the arena and size."""
        self._stored_of: dict[bytes, set[bytes]] = {}
        """Large objects in memory or on disk, by array."""
        self._pins: dict[bytes, dict[str, int]] = {}
        """By object: how many pins each client has."""
        self._released_pinned: set[bytes] = set()
        """Released objects that are pinned."""
        self._lost: set[bytes] = set()
        """Objects that the disk could not return: they can be fetched or reconstructed."""
        self._idle: dict[bytes, None] = {}
        """Objects that are neither pinned nor being written, least recently used first."""
        self._claims: dict[bytes, list[int]] = {}
        """Ranks of the tasks that need an object, the smallest first."""
        self._spilling: dict[bytes, int] = {}
        """Objects that are being written to disk, and their places in the arena."""
        self.on_disk: dict[bytes, tuple[int, int]] = {}
        """By object: (place on disk, size)."""
        self.requests: list[tuple[int, int, Request]] = []
        self._numbers = 0
        self._changed = False
        """Whether memory may have become free, or objects evictable, since the last `make_room`."""
        self._frees = 0
        """How often memory was freed."""
        self._watching = False
        self.stored_bytes = 0
        self._idle_bytes = 0
        self.spilled_bytes = 0
        """Bytes on disk now."""
        self.capacity = 0
        """The size of the arena, as the store reported when it was full."""
        self._disk_error = ""

    def handlers(self) -> Handlers:
        return {
            AllocateObject: self.on_allocate,
            Allocated: self.on_allocated,
            AbandonObject: self.on_abandon,
            Spilled: lambda _, m: self.on_spilled(m),
        }

    def __contains__(self, array: bytes) -> bool:
        """Whether large objects of an array are here."""
        return array in self._stored_of

    def has_any(self, arrays: Sequence[bytes]) -> bool:
        """Whether large objects of any of these arrays are here."""
        return not self._stored_of.keys().isdisjoint(arrays)

    def lookup(self, oid: bytes) -> ObjectValue | None:
        """Return the object if it is in memory, else None."""
        place = self._stored.get(oid)
        if place is not None:
            return ObjectValue(oid, OK, b"", 0, place[0], place[1])
        array, index, ret = split_object_id(oid)
        result = self._results.find(array, index)
        if result is None:
            return None
        if result.status != OK:
            return ObjectValue(oid, result.status, result.payload)
        if result.sizes and result.sizes[ret] > 0:
            return None
        position = result.position + (index - result.start) * result.returns + ret
        return ObjectValue(oid, OK, result.payload, position)

    def evicted(self, oids: Sequence[bytes]) -> list[bytes]:
        """Return the objects among these that were evicted and can be brought back."""
        return [
            oid
            for oid in oids
            if (oid in self.on_disk or oid in self._lost) and self.lookup(oid) is None
        ]

    def memory_usage(self) -> tuple[int, int, int]:
        """Return (large objects in memory, their bytes, unsealed objects)."""
        return len(self._stored) - len(self.in_file()), self.stored_bytes, len(self._unsealed)

    def disk_usage(self) -> tuple[int, int]:
        """Return (objects on disk, their bytes)."""
        sizes = {oid: size for oid, (_, size) in self.on_disk.items()} | self.in_file()
        return len(sizes), sum(sizes.values())

    def in_file(self) -> dict[bytes, int]:
        """Return the sizes of the large objects that clients map in the file."""
        return {oid: size for oid, (offset, size) in self._stored.items() if offset >= IN_FILE}

    def objects(self) -> list[bytes]:
        """Return the large objects in memory and on disk."""
        return [*self._stored, *self.on_disk]

    # -- unsealed objects ----------------------------------------------------------

    def on_allocate(self, source: str, message: AllocateObject) -> None:
        """A client wants to write an object."""
        self._ctx.send(self._store, Allocate(message.object, message.size, source))

    def on_allocated(self, source: str, message: Allocated) -> None:
        """The store has allocated room for a client's object."""
        client = message.client
        if not self._lives(client):
            self._ctx.send(self._store, Free(message.object, message.offset))
            return
        self._unsealed[message.object] = (client, message.offset)
        self._ctx.send(client, ObjectAllocated(message.object, message.offset))

    def on_no_room(self, message: NoRoom) -> None:
        """The arena is full: make room for a client's object."""
        oid, size, client = message.object, message.size, message.client

        def retry(in_file: bool) -> None:
            self._ctx.send(self._store, Allocate(oid, size, client, in_file))

        def fail(full: StoreFull) -> None:
            self._ctx.send(client, ObjectAllocated(oid, -1, full))

        until_s = self._ctx.now() + self._allocate_wait_s
        self.need(Request(size, CLIENT, until_s, retry, fail), message)

    def on_abandon(self, source: str, message: AbandonObject) -> None:
        """A client gives up an object before it has written it."""
        place = self._unsealed.pop(message.object, None)
        if place is not None:
            self._ctx.send(self._store, Free(message.object, place[1]))

    def seal(self, result: RangeResult) -> None:
        """Seal the large values of a result or a put: they outlive the client that wrote them."""
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                self._unsealed.pop(object_id(result.array, result.start, ret), None)

    def discard(self, result: RangeResult) -> None:
        """Free the large values of a result that is not kept."""
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                oid = object_id(result.array, result.start, ret)
                self._ctx.send(self._store, Free(oid, offset))

    # -- sealed objects ------------------------------------------------------------

    def keep(self, oid: bytes, offset: int, size: int) -> None:
        """Add a sealed large object, without a pin."""
        if oid in self._released_pinned:
            # The object was released, is still pinned, and was made again: keep its memory.
            self._released_pinned.discard(oid)
            self._stored_of.setdefault(oid[:ARRAY_BYTES], set()).add(oid)
        if oid in self._stored:
            # A task that ran again made the same object: one copy is enough.
            if self._stored[oid][0] != offset:
                self._ctx.send(self._store, Free(oid, offset))
            return
        self._stored[oid] = (offset, size)
        self._stored_of.setdefault(oid[:ARRAY_BYTES], set()).add(oid)
        self._lost.discard(oid)
        if offset < IN_FILE:
            self.stored_bytes += size
            self._make_idle(oid)

    # -- pins --------------------------------------------------------------------

    def pin(self, oid: bytes, client: str) -> None:
        """A client gets the place of a large object."""
        pins = self._pins.setdefault(oid, {})
        pins[client] = pins.get(client, 0) + 1
        self._make_busy(oid)

    def unpin(self, oid: bytes, client: str) -> None:
        """A client no longer reads the object."""
        pins = self._pins.get(oid)
        if pins is None or client not in pins:
            return
        pins[client] -= 1
        if pins[client] == 0:
            del pins[client]
        if not pins:
            del self._pins[oid]
            mapped = oid in self.on_disk and self._is_in_file(oid)
            if oid in self._released_pinned or mapped:
                self._free(oid)
            else:
                self._make_idle(oid)

    def drop_client(self, client: str) -> None:
        """A client died: end its pins, and free its unsealed objects."""
        for oid in [o for o, (c, _) in self._unsealed.items() if c == client]:
            _, offset = self._unsealed.pop(oid)
            self._ctx.send(self._store, Free(oid, offset))
        for oid in [o for o, pins in self._pins.items() if client in pins]:
            self._pins[oid][client] = 1
            self.unpin(oid, client)

    def clients(self) -> set[str]:
        """Return the clients that pin objects."""
        return {client for pins in self._pins.values() for client in pins}

    def used(self, oid: bytes) -> None:
        """A client read an object, which is now the last one to evict."""
        if oid in self._idle:
            del self._idle[oid]
            self._idle[oid] = None

    def claim(self, oid: bytes, rank: int) -> None:
        """A task that waits has an object as input."""
        claims = self._claims.setdefault(oid, [])
        claims.append(rank)
        claims.sort()

    def unclaim(self, oid: bytes, rank: int) -> None:
        """End a claim: the task has pinned its inputs, or never runs. No effect without a claim."""
        claims = self._claims.get(oid)
        if claims is not None and rank in claims:
            claims.remove(rank)
            self._changed = True
            if not claims:
                del self._claims[oid]

    def _is_in_file(self, oid: bytes) -> bool:
        """Whether a large object is in the node's file, as if it were in memory."""
        return oid in self._stored and self._stored[oid][0] >= IN_FILE

    def _make_idle(self, oid: bytes) -> None:
        if oid not in self._stored or oid in self._idle or oid in self._spilling:
            return
        if not self._is_in_file(oid):
            self._idle[oid] = None
            self._idle_bytes += self._stored[oid][1]
            self._changed = True

    def _make_busy(self, oid: bytes) -> None:
        if oid in self._idle:
            del self._idle[oid]
            self._idle_bytes -= self._stored[oid][1]

    # -- freeing -----------------------------------------------------------------

    def free(self, array: bytes) -> None:
        """Free every object of an array, pinned ones when their pins end."""
        for oid in self._stored_of.pop(array, ()):
            self._lost.discard(oid)
            self._claims.pop(oid, None)
            # An object that is being written is dropped from disk after the write.
            self._spilling.pop(oid, None)
            self._changed = True
            self._drop_from_disk(oid)
            if oid in self._pins:
                self._released_pinned.add(oid)
            elif oid in self._stored:
                self._free(oid)

    def _free(self, oid: bytes) -> None:
        self._released_pinned.discard(oid)
        self._make_busy(oid)
        self._spilling.pop(oid, None)
        offset, size = self._stored.pop(oid)
        if offset < IN_FILE:
            self.stored_bytes -= size
        self._frees += 1
        self._changed = True
        self._ctx.send(self._store, Free(oid, offset))

    def disk_failed(self, oid: bytes) -> None:
        """An object could not be read from disk: it has to be fetched or reconstructed."""
        self._drop_from_disk(oid)
        self._lost.add(oid)

    def _drop_from_disk(self, oid: bytes) -> None:
        place = self.on_disk.pop(oid, None)
        if place is not None:
            self.spilled_bytes -= place[1]
            self._ctx.send(self._store, DropSpilled(oid, place[0]))

    # -- making room -------------------------------------------------------------

    def need(self, request: Request, full: NoRoom) -> None:
        """The store has no room for a request; `make_room` serves it."""
        self.capacity = full.capacity
        if full.reason:
            request.fail(StoreFull(request.size, full.capacity, full.reason))
            return
        request.free = full.free
        request.seen = self._frees
        self._numbers += 1
        self._changed = True
        heappush(self.requests, (request.rank, self._numbers, request))

    def make_room(self) -> None:
        """Serve the requests, as far as possible; call it at the end of each turn."""
        while self.requests and not self._spilling:
            request = self.requests[0][2]
            if self._frees != request.seen:
                heappop(self.requests)
                request.tries += 1
                request.retry(False)
                continue
            if self._disk_error:
                reason, self._disk_error = self._disk_error, ""
                heappop(self.requests)
                self._changed = True
                request.fail(StoreFull(request.size, self.capacity, reason))
                continue
            fits = request.size <= self.capacity
            if fits and self._changed:
                victims = self._choose(request)
                for oid in victims:
                    self._evict(oid)
                if victims:
                    continue
                if not request.asked:
                    # Clients may still pin objects that they no longer read.
                    request.asked = True
                    self._ask_back()
            if fits and self._ctx.now() < request.until_s:
                self._changed = False
                self._watch(request.until_s)
                return
            heappop(self.requests)
            self._changed = True
            request.retry(True)

    def on_spilled(self, message: Spilled) -> None:
        """The store has written an object to disk, or could not."""
        oid = message.object
        if self._spilling.get(oid) != message.offset:
            # Released meanwhile.
            if message.place >= 0:
                self._ctx.send(self._store, DropSpilled(oid, message.place))
            return
        del self._spilling[oid]
        self._changed = True
        if message.place < 0:
            self._disk_error = message.reason
        else:
            self.on_disk[oid] = (message.place, message.size)
            self.spilled_bytes += message.size
        if oid not in self._pins:
            if message.place < 0:
                self._make_idle(oid)
            else:
                self._free(oid)

    def _evict(self, oid: bytes) -> None:
        if oid in self.on_disk:
            self._free(oid)
        else:
            self._make_busy(oid)
            offset, size = self._stored[oid]
            self._spilling[oid] = offset
            self._ctx.send(self._store, Spill(oid, offset, size))

    def _watch(self, until_s: float) -> None:
        """Run a turn when a request has waited for too long."""
        if self._watching:
            return
        self._watching = True

        def look() -> None:
            self._watching = False

        self._ctx.after(max(0.0, until_s - self._ctx.now()), look)

    def _choose(self, request: Request) -> list[bytes]:
        """Return objects to evict for a request: enough for it, or none."""
        free = self.capacity - self.stored_bytes
        if free + self._idle_bytes < request.size:
            return []
        missing = request.size - request.free
        if request.tries or missing <= 0:
            # A retry failed, or the free memory is fragmented.
            missing = request.size
        least = max(missing, self.capacity // BATCH_SHARE)
        victims: list[bytes] = []
        found = 0
        for oid in self._idle:
            if oid not in self._claims:
                victims.append(oid)
                found += self._stored[oid][1]
                if found >= least:
                    return victims
        for oid in self._idle:
            if found >= missing:
                break
            if self._claims.get(oid, [request.rank])[0] > request.rank:
                victims.append(oid)
                found += self._stored[oid][1]
        return victims if found + free >= request.size else []
