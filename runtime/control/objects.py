"""The node's object directory: what is here, and how to bring what is not.

An object is one element of a `RangeResult`. Small values live in that result's
payload, large ones in the node's arena, where ``stored`` says.

The life of a wanted object that is not here::

    want ──> EXPECTED   its owner is a client of this node: the result will pass
       │                through here anyway, nothing is asked
       ├───> on disk here: Fetch from this node ─────> Fetched ──> here
       │         └─ it fails: as if a source had ──> LOCATING
       └───> LOCATING ──> ObjectLocations
                 ↑            ├─ small: PullObject ──> ObjectPayload ─┐
                 │            ├─ large: Fetch ───────> Fetched ───────┤
              (source         ├─ lost for ever: SYSTEM_ERROR ─────────┤
               failed)        └─ nowhere (yet): the GCS will say, when ↓
                 └───────────────  it is made, or made again  ───────  here

A source that died is left at once, and not asked again. One that lives and does
not have the object is reported (`ObjectsMissing`), or the GCS would name it again.

Pins: a client that was given a large object's place holds a pin until it sends
`Unpin` or dies; memory is freed when the array is released and no pin is left.
What has no pin may leave for the disk when the arena is full, see `eviction`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from runtime.control.config import Config
from runtime.control.context import Context
from runtime.control.eviction import CLIENT, Eviction, Request
from runtime.control.ids import ARRAY_BYTES, STREAM_BASE, job_of, split_object_id
from runtime.control.messages import (
    DROPPED,
    OK,
    SYSTEM_ERROR,
    Fetch,
    Fetched,
    Free,
    GiveBack,
    LocateObjects,
    Location,
    NoRoom,
    ObjectPayload,
    ObjectsMissing,
    ObjectValue,
    PullObject,
    RangeResult,
)
from runtime.control.timeline import TransferLog

NOWHERE = -1
"""The node of a result whose large values were lost with theirs."""
NOBODY = ""
"""Owns the arrays of a dead client while its task is retried."""
GONE = "it is not there any more"
"""What a store says of an object that it was asked for and does not have."""
RETRY_S = 0.1
"""Pause before asking again where an object is, when its source failed."""

Ready = Callable[[ObjectValue], None]

_start = attrgetter("start")


class ObjectDirectory:
    """What one node knows of objects."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        copied: Callable[[bytes, bytes, int], None],
        wait_s: float = Config().store_wait_s,
    ) -> None:
        self._ctx = ctx
        self._wait_s = wait_s
        self._node = node
        self._store = f"store:{node}"
        self._copied = copied
        self.owners: dict[bytes, str] = {}
        """Arrays whose owner is a client of this node."""
        self.others: dict[bytes, list[str]] = {}
        """Further owners of some of them."""
        self._owned: dict[str, int] = {}
        """How many of them each client owns."""
        self._results: dict[bytes, list[RangeResult]] = {}
        """By start."""
        self._ended_again: dict[bytes, bytes] = {}
        self._failed: set[bytes] = set()
        """Arrays with errors of the system among the results."""
        self._overlapping: set[bytes] = set()
        """Arrays of which some elements ran twice, so that results overlap."""
        self._stored: dict[bytes, tuple[int, int]] = {}
        self._stored_of: dict[bytes, set[bytes]] = {}
        self._pins: dict[bytes, dict[str, int]] = {}
        self._doomed: set[bytes] = set()
        self._wanted: dict[bytes, list[Ready]] = {}
        self._wanted_of: dict[bytes, set[bytes]] = {}
        self._ranks: dict[bytes, int] = {}
        """Who wants it most; see `eviction`."""
        self._until_s: dict[bytes, float] = {}
        """How long a client's want may wait for room, once it had to."""
        self._primary: dict[bytes, int] = {}
        """Of copies: the living node that has the primary."""
        self._dropped: set[bytes] = set()
        """Copies that had to make room; they can be fetched again."""
        self.eviction = Eviction(
            ctx,
            node,
            lambda oid: self._stored[oid][0],
            self._leave,
            self._primary.__contains__,
            self._pins.__contains__,
            self._ask_back,
        )
        self._fetching: dict[bytes, tuple[Fetch, int]] = {}
        """What the store was asked for, and which node has the primary (-1: unknown)."""
        self._pulling: dict[bytes, int] = {}
        """Small objects that were asked of a node, which may die instead of answering."""
        self._dead: set[int] = set()
        self._asking: list[bytes] = []
        """What to ask the GCS for at the end of the turn: in one message."""
        self.transfers = TransferLog(ctx, node)
        self.bandwidth = 0.0
        """Exponential average of what transfers to this node reached, bytes/s."""

    # -- what is here ----------------------------------------------------------

    def lookup(self, oid: bytes) -> ObjectValue | None:
        """Return the object as it is here, or None."""
        place = self._stored.get(oid)
        if place is not None:
            return ObjectValue(oid, OK, b"", 0, place[0], place[1])
        array, index, ret = split_object_id(oid)
        result = self._result(array, index)
        if result is None:
            return None
        if result.status != OK:
            return ObjectValue(oid, result.status, result.payload)
        if result.sizes and result.sizes[ret] > 0:
            return None
        position = (index - result.start) * result.returns + ret
        return ObjectValue(oid, OK, result.payload, position)

    def add(self, result: RangeResult) -> None:
        """Take what a task or a put has made, here or elsewhere.

        Large values that are elsewhere become known by it, not present.
        """
        array = result.array
        if result.status == SYSTEM_ERROR:
            self._failed.add(array)
        results = self._results.get(array)
        if results is None:
            self._results[array] = [result]
        else:
            at = bisect_right(results, result.start, key=_start)
            after_last = at == 0 or _end(results[at - 1]) <= result.start
            before_next = at == len(results) or _end(result) <= results[at].start
            if not (after_last and before_next):
                self._overlapping.add(array)
                at = self._outdate(results, result)
            results.insert(at, result)
        if result.sizes and result.node == self._node:
            for ret, size in enumerate(result.sizes):
                if size > 0:
                    oid = array + result.start.to_bytes(4, "big") + ret.to_bytes(2, "big")
                    self._primary.pop(oid, None)  # it was a copy: now the GCS counts on it
                    self._keep(array, oid, result.offsets[ret], size)
        if array in self._wanted_of:
            self._resolve(array)

    def outdoes(self, result: RangeResult) -> bool:
        """Whether a result is an error of the system instead of values that are there.

        A range may run twice, when its node dies after it has sent the result.
        """
        if result.status != SYSTEM_ERROR or result.array not in self._results:
            return False
        for index in range(result.start, _end(result)):
            made = self._result(result.array, index)
            if made is None or made.status == SYSTEM_ERROR:
                return False
            if any(made.sizes) and self._is_gone(made):
                return False
        return True

    def has_failed(self, result: RangeResult) -> bool:
        """Whether errors of the system stand for all of a result: what was told first, stays."""
        if result.array not in self._failed:
            return False
        ends = (self._result(result.array, i) for i in range(result.start, _end(result)))
        return all(end is not None and end.status == SYSTEM_ERROR for end in ends)

    @staticmethod
    def _outdate(results: list[RangeResult], newer: RangeResult) -> int:
        """Forget where the large values were that came again; return the newer one's place.

        They were lost, or came twice: what is here of them stays.
        """
        low = bisect_left(results, newer.start, key=_start)
        high = bisect_left(results, _end(newer), key=_start)
        # A result with large values is of one element, so each of these is covered.
        results[low:high] = [r for r in results[low:high] if not any(r.sizes)]
        return bisect_right(results, newer.start, key=_start)

    def usage(self) -> tuple[int, int]:
        """Return how many large objects are in memory here, and their bytes together."""
        return len(self._stored), self.eviction.stored_bytes

    def have_left(self, oids: Sequence[bytes]) -> list[bytes]:
        """Return which objects were here, had to make room and can be brought back."""
        return [
            oid
            for oid in oids
            if (oid in self.eviction.on_disk or oid in self._dropped) and self.lookup(oid) is None
        ]

    def of_job(self, job: bytes) -> list[bytes]:
        """Return the arrays of a job that are here, owned here or wanted here."""
        tables = (self.owners, self._results, self._stored, self._wanted, self.eviction.on_disk)
        return list({key[:ARRAY_BYTES]: None for t in tables for key in t if job_of(key) == job})

    def has_array(self, array: bytes) -> bool:
        """Whether anything of the array is here."""
        return array in self._results or array in self._stored_of

    def has_end(self, array: bytes) -> bool:
        """Whether a call's own result is here; the items of its stream do not count."""
        return self._result(array, 0) is not None

    def is_on_its_way(self, oid: bytes) -> bool:
        """Whether an owner here waits for it: another node may hear of it sooner."""
        array, index, _ = split_object_id(oid)
        return array in self.owners and self._result(array, index) is None

    def result_of(self, oid: bytes) -> RangeResult | None:
        """Return the range that a small object is part of, if it is here."""
        array, index, ret = split_object_id(oid)
        result = self._result(array, index)
        if result is None or (result.status == OK and result.sizes and result.sizes[ret] > 0):
            return None
        return result

    def _result(self, array: bytes, index: int) -> RangeResult | None:
        results = self._results.get(array)
        if results is None:
            return None
        at = bisect_right(results, index, key=_start)
        for result in reversed(results[0 if array in self._overlapping else max(at - 1, 0) : at]):
            if index < _end(result):
                return result
        return None

    def results_of(self, array: bytes) -> list[RangeResult]:
        """Return all that is known to be made of an array."""
        return list(self._results.get(array, ()))

    def _keep(self, array: bytes, oid: bytes, offset: int, size: int) -> None:
        if oid in self._doomed:
            # Released, still pinned, and made again: what is here will do.
            self._doomed.discard(oid)
            self._stored_of.setdefault(array, set()).add(oid)
        if oid in self._stored:
            # The same object came twice (a task ran again): one copy is enough.
            if self._stored[oid][0] != offset:
                self._ctx.send(self._store, Free(oid, offset))
            return
        self._stored[oid] = (offset, size)
        self._stored_of.setdefault(array, set()).add(oid)
        self._dropped.discard(oid)
        self.eviction.kept(oid, size)

    # -- ownership -------------------------------------------------------------

    def own(self, array: bytes, client: str) -> None:
        """A client of this node submits or puts the array.

        It has one owner, unless the task that submits it runs twice at once.
        """
        owner = self.owners.get(array)
        if owner == client or (self.others and client in self.others.get(array, ())):
            return
        self._owned[client] = self._owned.get(client, 0) + 1
        if owner is None or owner == NOBODY:
            if owner is not None:
                self._disown(owner)
            self.owners[array] = client
        else:
            self.others.setdefault(array, []).append(client)

    def owners_of(self, array: bytes) -> list[str]:
        """Return the clients of this node that wait for the array's results."""
        owner = self.owners.get(array, NOBODY)
        return [*([owner] if owner != NOBODY else []), *self.others.get(array, ())]

    def let_go(self, array: bytes, client: str) -> bool:
        """An owner needs the array no more; return whether it was the only one."""
        others = self.others.get(array)
        if others is None:
            return True
        if client in others:
            others.remove(client)
        elif client == self.owners[array]:
            self.owners[array] = others.pop(0)
        else:
            return False
        if not others:
            del self.others[array]
        self._disown(client)
        return False

    def orphan(self, array: bytes) -> None:
        """Its owner died, and may be run again: keep the array for the next one."""
        self._disown(self.owners[array])
        self._owned[NOBODY] = self._owned.get(NOBODY, 0) + 1
        self.owners[array] = NOBODY

    def _disown(self, client: str) -> None:
        self._owned[client] -= 1
        if not self._owned[client]:
            del self._owned[client]

    def clients(self) -> list[str]:
        """Return the clients that own anything."""
        return sorted(self._owned.keys() - {NOBODY})

    def owns(self, client: str) -> bool:
        """Whether a client owns anything that is not released."""
        return client in self._owned

    # -- pins and release ------------------------------------------------------

    def pin(self, oid: bytes, client: str) -> None:
        """A client was given the place of a large object."""
        pins = self._pins.setdefault(oid, {})
        pins[client] = pins.get(client, 0) + 1
        self.eviction.busy(oid)

    def unpin(self, oid: bytes, client: str) -> None:
        """The client has no view of it any more."""
        pins = self._pins.get(oid)
        if pins is None or client not in pins:
            return
        pins[client] -= 1
        if pins[client] == 0:
            del pins[client]
        if not pins:
            del self._pins[oid]
            if oid in self._doomed:
                self._free(oid)
            else:
                self.eviction.idle(oid)

    def drop_client(self, client: str) -> list[bytes]:
        """Forget a client's pins; return the arrays it owned."""
        for oid in [o for o, pins in self._pins.items() if client in pins]:
            self._pins[oid][client] = 1
            self.unpin(oid, client)
        if client not in self._owned:
            return []  # as of most: no need to look through all arrays
        owned = [array for array, owner in self.owners.items() if owner == client]
        return owned + [array for array, others in self.others.items() if client in others]

    def release(self, array: bytes) -> None:
        """Free every object of the array, pinned ones when their pins are gone.

        If somebody waits for one the GCS is asked, since it may be made again meanwhile.
        """
        owner = self.owners.pop(array, None)
        if owner is not None:
            self._disown(owner)
        if self.others:
            for other in self.others.pop(array, ()):
                self._disown(other)
        self._results.pop(array, None)
        if self._failed:
            self._failed.discard(array)
        if self._ended_again:
            self._ended_again.pop(array, None)
        if self._overlapping:
            self._overlapping.discard(array)
        if self._wanted_of:
            for oid in sorted(self._wanted_of.get(array, ())):
                if oid not in self._fetching:
                    self._asking.append(oid)
        if not self._stored_of:
            return
        for oid in self._stored_of.pop(array, ()):
            self._primary.pop(oid, None)
            self._dropped.discard(oid)
            self.eviction.release(oid)
            if oid in self._pins:
                self._doomed.add(oid)
            elif oid in self._stored:
                self._free(oid)

    def _free(self, oid: bytes) -> None:
        self._doomed.discard(oid)
        offset, _ = self._stored.pop(oid)
        self.eviction.gone(oid)
        self._ctx.send(self._store, Free(oid, offset))

    def _leave(self, oid: bytes) -> None:
        """Give up an object's memory: it is on disk, or its primary elsewhere."""
        if oid not in self.eviction.on_disk:
            del self._primary[oid]
            self._dropped.add(oid)
            self._copied(split_object_id(oid)[0], oid, DROPPED)
        self._free(oid)

    def _ask_back(self) -> None:
        clients = {client for pins in self._pins.values() for client in pins}
        for client in sorted(clients | (self._owned.keys() - {NOBODY})):
            self._ctx.send(client, GiveBack())

    def on_no_room(self, message: NoRoom) -> None:
        """A fetch found the arena full."""
        oid = message.object
        fetch, _ = self._fetching.get(oid, (None, -1))
        if fetch is None or fetch.node != message.node:
            return  # that node has died since, and another one is asked
        if oid not in self._wanted:
            del self._fetching[oid]
            return

        def outdated() -> bool:
            return self._fetching.get(oid, (None, -1))[0] is not fetch

        def retry() -> None:
            if outdated():
                return
            if oid in self._wanted:
                again = Fetch(oid, fetch.size, fetch.node, first=True)
                self._ctx.send(self._store, again)
            else:
                del self._fetching[oid]  # nobody waits for it any more

        def fail(reason: str) -> None:
            if outdated():
                return
            del self._fetching[oid]
            if oid in self._wanted:
                text = f"ObjectStoreFullError: {reason}"
                self._tell(ObjectValue(oid, SYSTEM_ERROR, text.encode()))

        rank = self._ranks.get(oid, CLIENT)
        until_s = self._ctx.now() + self._wait_s
        if rank == CLIENT:
            # A client's time is limited in all. Tasks wait on while there is progress:
            # what is pinned for others is free once these have run.
            until_s = self._until_s.setdefault(oid, until_s)
        self.eviction.need(Request(message.size, rank, until_s, retry, fail), message)

    # -- what is not here ------------------------------------------------------

    def want(self, oid: bytes, ready: Ready, rank: int = CLIENT) -> None:
        """Call `ready` with the object once it is here, or with its error."""
        value = self.lookup(oid)
        if value is not None:
            if value.size:
                self.eviction.used(oid)
            ready(value)
            return
        self._ranks[oid] = min(rank, self._ranks.get(oid, rank))
        waiting = self._wanted.get(oid)
        if waiting is not None:
            waiting.append(ready)
            return
        self._wanted[oid] = [ready]
        array, index, ret = split_object_id(oid)
        self._wanted_of.setdefault(array, set()).add(oid)
        result = self._result(array, index)
        place = self.eviction.on_disk.get(oid)
        if place is not None:
            self._fetch(oid, place[1], self._node)
        elif result is not None and not self._is_gone(result):
            self._fetch(oid, result.sizes[ret], result.node, result.node)
        elif result is not None or array not in self.owners:
            self._asking.append(oid)

    def end_turn(self) -> None:
        """Ask the GCS for all that this turn did not find here."""
        if self._asking:
            asking = dict.fromkeys(oid for oid in self._asking if oid in self._wanted)
            self._asking = []
            if asking:
                self._ctx.send("gcs", LocateObjects(list(asking)))

    def on_location(self, location: Location) -> None:
        """The GCS said where a wanted object is."""
        oid = location.object
        if oid not in self._wanted or oid in self._fetching:
            return
        if location.lost:
            message = f"ObjectLostError: object {oid.hex()} is lost: {location.lost}"
            message += self._why_not_yielded(oid)
            self._tell(ObjectValue(oid, SYSTEM_ERROR, message.encode()))
        elif location.nodes:
            # Any copy will do; spread the load over those that have one.
            nodes = [n for n in location.nodes if n != self._node and n not in self._dead]
            if not nodes:
                if self._node in location.nodes:
                    self._missing(oid, self._node)
                self._retry(oid)
                return
            node = nodes[self._ctx.rng.randrange(len(nodes))]
            if location.size:
                self._fetch(oid, location.size, node, location.primary)
            else:
                self._pulling[oid] = node
                self._ctx.send(f"node:{node}", PullObject(oid))

    def on_node_changed(self, node: int, alive: bool) -> None:
        """Look elsewhere for what a node was asked for that is dead."""
        if alive:
            self._dead.discard(node)
            return
        self._dead.add(node)
        # It may come back, without them.
        for results in self._results.values():
            for at, result in enumerate(results):
                if result.node == node and any(result.sizes):
                    results[at] = replace(result, node=NOWHERE)
        for oid in [oid for oid, source in self._pulling.items() if source == node]:
            del self._pulling[oid]
            self._asking.append(oid)
        for oid, (fetch, primary) in list(self._fetching.items()):
            if fetch.node == node:
                del self._fetching[oid]
                self._asking.append(oid)
            elif primary == node:
                self._fetching[oid] = (fetch, -1)
        for oid in [oid for oid, primary in self._primary.items() if primary == node]:
            del self._primary[oid]

    def _why_not_yielded(self, oid: bytes) -> str:
        """Return ": " and the error that a stream's task ended with, if an item is lost by it."""
        array, index, _ = split_object_id(oid)
        why = self._ended_again.get(array)
        return f": {why.decode(errors='replace')}" if why and index >= STREAM_BASE else ""

    def ended_again(self, result: RangeResult) -> None:
        """A task whose value is known has run again, and ended with this error."""
        self._ended_again[result.array] = bytes(result.payload)

    def _is_gone(self, result: RangeResult) -> bool:
        """Whether the node has died that made large values, and another may have them."""
        return result.node == NOWHERE or result.node in self._dead

    def will_tell(self, array: bytes) -> bool:
        """Whether results of an array are still to come, or are where somebody can find them."""
        ends = self._results.get(array, ())
        return array in self.owners and not any(self._is_gone(end) for end in ends)

    def _missing(self, oid: bytes, node: int, reason: str = "") -> None:
        self._ctx.send("gcs", ObjectsMissing(node, [oid], reason))

    def on_payload(self, message: ObjectPayload) -> None:
        """A small object arrived from another node."""
        asked = self._pulling.pop(message.object, None)
        if message.object not in self._wanted:
            return
        if message.result is None:
            if asked is not None:
                self._missing(message.object, asked)
            self._retry(message.object)
            return
        array = message.result.array
        self._copied(array, message.object, 0)
        self.add(message.result)

    def on_fetched(self, message: Fetched) -> None:
        """The store has copied a large object into the arena, or failed to."""
        oid = message.object
        far = message.node != self._node
        fetch, primary = self._fetching.get(oid, (None, -1))
        if fetch is not None and fetch.node == message.node:
            del self._fetching[oid]
        else:
            # A node that died may answer after another was asked: what came will do.
            primary = -1
            if message.offset < 0:
                return
        array = split_object_id(oid)[0]
        if message.offset >= 0:
            self.transfers.arrived(message.node, message.elapsed_s, message.size, oid)
            if message.elapsed_s > 0 and far:
                rate = message.size / message.elapsed_s
                self.bandwidth = 0.8 * self.bandwidth + 0.2 * rate if self.bandwidth else rate
            if oid not in self._wanted:
                # Released while it was on its way.
                self._ctx.send(self._store, Free(oid, message.offset))
                return
            self._keep(array, oid, message.offset, message.size)
            if far:
                if primary not in (-1, self._node) and primary not in self._dead:
                    self._primary[oid] = primary
                self._copied(array, oid, message.size)
            self._resolve(array)
        elif oid in self._wanted:
            if not far and oid in self.eviction.on_disk:
                # The disk does not give back what it was given: it may be made again.
                self.eviction.drop_from_disk(oid)
                self._dropped.add(oid)
                self._missing(oid, self._node, message.reason)
            elif far and message.reason == GONE and message.node not in self._dead:
                self._missing(oid, message.node)
            self._retry(oid)

    def _fetch(self, oid: bytes, size: int, node: int, primary: int = -1) -> None:
        if oid in self._fetching:
            return  # released and wanted again while it is on its way
        if node in self._dead or (node == self._node and oid not in self.eviction.on_disk):
            if node in self._dead:
                self._missing(oid, node, "it died")
            self._asking.append(oid)
            return
        fetch = Fetch(oid, size, node)
        self._fetching[oid] = (fetch, primary)
        self._ctx.send(self._store, fetch)

    def _retry(self, oid: bytes) -> None:
        def again() -> None:
            if oid in self._wanted and oid not in self._fetching:
                self._asking.append(oid)

        self._ctx.after(RETRY_S, again)

    def _resolve(self, array: bytes) -> None:
        """Tell those who wait for objects of the array that are here now."""
        for oid in sorted(self._wanted_of[array]):
            value = self.lookup(oid)
            if value is not None:
                self._tell(value)
            elif oid not in self._fetching:
                _, index, ret = split_object_id(oid)
                result = self._result(array, index)
                if result is None:
                    continue
                if self._is_gone(result):
                    self._asking.append(oid)
                else:
                    self._fetch(oid, result.sizes[ret], result.node, result.node)

    def _tell(self, value: ObjectValue) -> None:
        oid = value.object
        array = split_object_id(oid)[0]
        self._pulling.pop(oid, None)
        self._ranks.pop(oid, None)
        self._until_s.pop(oid, None)
        of_array = self._wanted_of[array]
        of_array.discard(oid)
        if not of_array:
            del self._wanted_of[array]
        for ready in self._wanted.pop(oid):
            ready(value)


def released_error(oid: bytes) -> ObjectValue:
    """Return what an object is whose owner has died, or released it."""
    message = f"ObjectLostError: object {oid.hex()} is lost: its owner has died or released it"
    return ObjectValue(oid, SYSTEM_ERROR, message.encode())


def _end(result: RangeResult) -> int:
    return result.start + result.count
