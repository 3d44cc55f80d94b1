"""Eviction from a full arena: least recently used first.

Theory of operation
-------------------
The store (``store:<n>``) allocates. Where it has no room it replies `NoRoom`, and the
allocation or fetch becomes a *request* here::

    NoRoom ──> WAITING ──victims?──> Spill ──> Spilled ──> tried again
                  ↑  │                                        │
                  │  ├─ none: clients are asked for pins that │
                  │  │  they do not need; any may go ─────────┤
                  │  └─ none for too long: ObjectStoreFullError
                  └───────────── NoRoom (it was in pieces) ───┘

A large object is in memory, on disk, or both (*clean*: it was brought back, or
pinned while it was written). Objects never change, so a clean one leaves memory
at no cost. A *copy*, whose primary is on another living node, is dropped: it
costs less to fetch again than to write and read. The disk's copy lives until
the object is released.

Which objects a request may evict:

* none that is pinned (a client maps it, a task on a worker has it as input);
* an input of a task that waits or is ready is *claimed* with the task's rank. Clients (rank
  `CLIENT`) may evict it; a task only if it came before the one that claims it. So the oldest
  waiting task always gets all its inputs, however many tasks want more than the arena holds.

Requests are served by rank, one at a time. Evicting a 32nd of the arena at once
keeps the number of round trips to the disk low when small objects fill it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.messages import DropSpilled, NoRoom, Spill, Spilled
from raytwin.runtime.control.messages.errors import FullCause, StoreFull

CLIENT = -1
"""The rank of what a client asks for; tasks have ranks from 0 on, older ones first."""
BATCH_SHARE = 32


class Request:
    """A fetch or an allocation that waits for room in the arena."""

    __slots__ = (
        "asked", "fail", "free", "rank", "retry", "seen", "size", "tries", "until_s",
    )  # fmt: skip

    def __init__(
        self,
        size: int,
        rank: int,
        until_s: float,
        retry: Callable[[], None],
        fail: Callable[[StoreFull], None],
    ) -> None:
        self.size = size
        self.rank = rank
        self.until_s = until_s
        self.retry = retry
        self.fail = fail
        self.free = 0
        """Bytes that were free, in pieces perhaps, when it did not fit."""
        self.tries = 0
        self.asked = False
        self.seen = 0
        """How often `Eviction` had freed memory when the store had no room."""


class Eviction:
    """Chooses the objects that leave one node's arena; `LocalObjects` has them.

    `place_of` returns an object's place in the arena, `leave` gives it up, `is_copy`
    returns whether the primary is on another node, `is_pinned` whether the object has to
    stay; `ask_back` asks clients for pins that they do not need.
    """

    def __init__(
        self,
        ctx: Context,
        node: int,
        place_of: Callable[[bytes], int],
        leave: Callable[[bytes], None],
        is_copy: Callable[[bytes], bool],
        is_pinned: Callable[[bytes], bool],
        ask_back: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._store = f"store:{node}"
        self._place_of = place_of
        self._leave = leave
        self._is_copy = is_copy
        self._is_pinned = is_pinned
        self._ask_back = ask_back
        self._sizes: dict[bytes, int] = {}
        """The objects in memory."""
        self._idle: dict[bytes, None] = {}
        """Those that are neither pinned nor being written, least recently used first."""
        self._claims: dict[bytes, list[int]] = {}
        """Ranks of the tasks that need an object, the smallest first."""
        self._spilling: dict[bytes, int] = {}
        """Objects that are being written to disk, and their places in the arena."""
        self.on_disk: dict[bytes, tuple[int, int]] = {}
        """Object -> (place on disk, size)."""
        self.requests: list[tuple[int, int, Request]] = []
        self._numbers = 0
        self._changed = False
        """Something may have become free or evictable since the last look."""
        self._frees = 0
        """How often memory was freed."""
        self._watching = False
        self.stored_bytes = 0
        self._idle_bytes = 0
        self.spilled_bytes = 0
        """On disk now."""
        self.capacity = 0
        """As the store said when it was full."""
        self._disk_error = ""

    # -- what is in memory -------------------------------------------------------

    def kept(self, oid: bytes, size: int) -> None:
        """An object is in memory now, without a pin."""
        self._sizes[oid] = size
        self.stored_bytes += size
        self.idle(oid)

    def idle(self, oid: bytes) -> None:
        """An object's last pin is gone: it was used just now."""
        if oid in self._sizes and oid not in self._idle and oid not in self._spilling:
            self._idle[oid] = None
            self._idle_bytes += self._sizes[oid]
            self._changed = True

    def busy(self, oid: bytes) -> None:
        """An object is pinned, or being written to disk."""
        if oid in self._idle:
            del self._idle[oid]
            self._idle_bytes -= self._sizes[oid]

    def gone(self, oid: bytes) -> None:
        """An object's memory is free again."""
        self.busy(oid)
        self._spilling.pop(oid, None)
        self.stored_bytes -= self._sizes.pop(oid)
        self._frees += 1
        self._changed = True

    def used(self, oid: bytes) -> None:
        """A client read an object: it is the last to be evicted."""
        if oid in self._idle:
            del self._idle[oid]
            self._idle[oid] = None

    def claim(self, oid: bytes, rank: int) -> None:
        """A task that waits has an object as input."""
        claims = self._claims.setdefault(oid, [])
        claims.append(rank)
        claims.sort()

    def unclaim(self, oid: bytes, rank: int) -> None:
        """The task has its inputs pinned, or never runs; does nothing without the claim."""
        claims = self._claims.get(oid)
        if claims is not None and rank in claims:
            claims.remove(rank)
            self._changed = True
            if not claims:
                del self._claims[oid]

    def release(self, oid: bytes) -> None:
        """Free the disk space of a released object."""
        self._claims.pop(oid, None)
        # An object that is being written is dropped from disk once it is there.
        self._spilling.pop(oid, None)
        self._changed = True
        self.drop_from_disk(oid)

    def drop_from_disk(self, oid: bytes) -> None:
        """Free an object's disk space, if it has any."""
        place = self.on_disk.pop(oid, None)
        if place is not None:
            self.spilled_bytes -= place[1]
            self._ctx.send(self._store, DropSpilled(oid, place[0]))

    # -- making room -------------------------------------------------------------

    def need(self, request: Request, full: NoRoom) -> None:
        """The store has no room for a request; `make_room` serves it."""
        self.capacity = full.capacity
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
                request.retry()
                continue
            reason = self._hopeless(request)
            if reason is None and self._changed:
                victims = self._choose(request)
                for oid in victims:
                    self._evict(oid)
                if victims:
                    continue
                if not request.asked:
                    # Clients may pin objects that they do not read any more.
                    request.asked = True
                    self._ask_back()
            if reason is None and self._ctx.now() < request.until_s:
                self._changed = False
                self._watch(request.until_s)
                return
            heappop(self.requests)
            self._changed = True
            request.fail(reason or self._in_use(request))

    def handlers(self) -> Handlers:
        return {Spilled: lambda _, m: self.on_spilled(m)}

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
        if self._is_pinned(oid):
            return
        if message.place < 0:
            self.idle(oid)
        else:
            self._leave(oid)

    def _evict(self, oid: bytes) -> None:
        if oid in self.on_disk or self._is_copy(oid):
            self._leave(oid)
        else:
            self.busy(oid)
            self._spilling[oid] = offset = self._place_of(oid)
            self._ctx.send(self._store, Spill(oid, offset, self._sizes[oid]))

    def _hopeless(self, request: Request) -> StoreFull | None:
        """Return why a request cannot be served whatever happens."""
        if request.size > self.capacity:
            return StoreFull(FullCause.TOO_LARGE, request.size, self.capacity)
        if self._disk_error:
            error, self._disk_error = self._disk_error, ""
            return StoreFull(FullCause.DISK_FAILED, request.size, self.capacity, detail=error)
        return None

    def _in_use(self, request: Request) -> StoreFull:
        pinned = self.stored_bytes - self._idle_bytes
        return StoreFull(FullCause.IN_USE, request.size, self.capacity, pinned, self.spilled_bytes)

    def _watch(self, until_s: float) -> None:
        """Run a turn when a request has waited for too long."""
        if self._watching:
            return
        self._watching = True

        def look() -> None:
            self._watching = False

        self._ctx.after(max(0.0, until_s - self._ctx.now()), look)

    def _may_evict(self, oid: bytes, rank: int) -> bool:
        claims = self._claims.get(oid)
        return claims is None or claims[0] > rank

    def _choose(self, request: Request) -> list[bytes]:
        """Return objects to evict for a request: enough for it, or none."""
        rank = request.rank
        free = self.capacity - self.stored_bytes
        if free + self._idle_bytes < request.size:
            return []
        missing = request.size - request.free
        if request.tries or missing <= 0:
            # A retry failed, or the free memory is in pieces.
            missing = request.size
        least = max(missing, self.capacity // BATCH_SHARE)
        victims: list[bytes] = []
        found = 0
        for oid in self._idle:
            if oid not in self._claims:
                victims.append(oid)
                found += self._sizes[oid]
                if found >= least:
                    return victims
        for oid in self._idle:
            if found >= missing:
                break
            if oid in self._claims and self._may_evict(oid, rank):
                victims.append(oid)
                found += self._sizes[oid]
        return victims if found + free >= request.size else []
