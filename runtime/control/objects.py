"""The node's object directory: what is here, and how to bring what is not.

An object is one element of a `RangeResult`. Small values live in that result's
payload, large ones in the node's arena, where ``stored`` says.

The life of a wanted object that is not here::

    want ──> EXPECTED   its owner is a client of this node: the result will pass
       │                through here anyway, nothing is asked
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
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter

from runtime.control.context import Context
from runtime.control.ids import split_object_id
from runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    Fetch,
    Fetched,
    Free,
    LocateObjects,
    Location,
    ObjectPayload,
    ObjectsMissing,
    ObjectValue,
    PullObject,
    RangeResult,
)

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
        self, ctx: Context, node: int, copied: Callable[[bytes, bytes, int], None]
    ) -> None:
        self._ctx = ctx
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
        self._overlapping: set[bytes] = set()
        """Arrays of which some elements ran twice, so that results overlap."""
        self._stored: dict[bytes, tuple[int, int]] = {}
        self._stored_of: dict[bytes, set[bytes]] = {}
        self._pins: dict[bytes, dict[str, int]] = {}
        self._doomed: set[bytes] = set()
        self._wanted: dict[bytes, list[Ready]] = {}
        self._wanted_of: dict[bytes, set[bytes]] = {}
        self._fetching: dict[bytes, int] = {}
        """Large objects on their way here, and the node that was asked."""
        self._pulling: dict[bytes, int] = {}
        """Small objects that were asked of a node, which may die instead of answering."""
        self._dead: set[int] = set()
        self._asking: list[bytes] = []
        """What to ask the GCS for at the end of the turn: in one message."""
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
        results = self._results.get(array)
        if results is None:
            self._results[array] = [result]
        else:
            at = bisect_right(results, result.start, key=_start)
            after_last = at == 0 or _end(results[at - 1]) <= result.start
            before_next = at == len(results) or _end(result) <= results[at].start
            if not (after_last and before_next):
                self._overlapping.add(array)
            results.insert(at, result)
        if result.sizes and result.node == self._node:
            for ret, size in enumerate(result.sizes):
                if size > 0:
                    oid = array + result.start.to_bytes(4, "big") + ret.to_bytes(2, "big")
                    self._keep(array, oid, result.offsets[ret], size)
        if array in self._wanted_of:
            self._resolve(array)

    def usage(self) -> tuple[int, int]:
        """Return how many large objects are here, and their bytes together."""
        return len(self._stored), sum(size for _, size in self._stored.values())

    def has_array(self, array: bytes) -> bool:
        """Whether anything of the array is here."""
        return array in self._results or array in self._stored_of

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

    # -- ownership -------------------------------------------------------------

    def own(self, array: bytes, client: str) -> None:
        """A client of this node submits or puts the array.

        It has one owner, unless the task that submits it runs twice at once.
        """
        owner = self.owners.get(array)
        if owner == client or client in self.others.get(array, ()):
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

    def owns(self, client: str) -> bool:
        """Whether a client owns anything that is not released."""
        return client in self._owned

    # -- pins and release ------------------------------------------------------

    def pin(self, oid: bytes, client: str) -> None:
        """A client was given the place of a large object."""
        pins = self._pins.setdefault(oid, {})
        pins[client] = pins.get(client, 0) + 1

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

    def drop_client(self, client: str) -> list[bytes]:
        """Forget a client's pins; return the arrays it owned."""
        for oid in [o for o, pins in self._pins.items() if client in pins]:
            self._pins[oid][client] = 1
            self.unpin(oid, client)
        owned = [array for array, owner in self.owners.items() if owner == client]
        return owned + [array for array, others in self.others.items() if client in others]

    def release(self, array: bytes, by_owner: bool = True) -> None:
        """Free every object of the array, pinned ones when their pins are gone.

        Who waits for one hears so; if it was not the owner who let go, the GCS
        is asked first, since it may be made again meanwhile.
        """
        owner = self.owners.pop(array, None)
        if owner is not None:
            self._disown(owner)
        for other in self.others.pop(array, ()):
            self._disown(other)
        self._results.pop(array, None)
        self._overlapping.discard(array)
        for oid in sorted(self._wanted_of.get(array, ())):
            if by_owner:
                self._tell(released_error(oid))
            elif oid not in self._fetching:
                self._asking.append(oid)
        for oid in self._stored_of.pop(array, ()):
            if oid in self._pins:
                self._doomed.add(oid)
            else:
                self._free(oid)

    def _free(self, oid: bytes) -> None:
        self._doomed.discard(oid)
        offset, _ = self._stored.pop(oid)
        self._ctx.send(self._store, Free(oid, offset))

    # -- what is not here ------------------------------------------------------

    def want(self, oid: bytes, ready: Ready) -> None:
        """Call `ready` with the object once it is here, or with its error."""
        value = self.lookup(oid)
        if value is not None:
            ready(value)
            return
        waiting = self._wanted.get(oid)
        if waiting is not None:
            waiting.append(ready)
            return
        self._wanted[oid] = [ready]
        array, index, ret = split_object_id(oid)
        self._wanted_of.setdefault(array, set()).add(oid)
        result = self._result(array, index)
        if result is not None:
            self._fetch(oid, result.sizes[ret], result.node)
        elif array not in self.owners:
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
                self._fetch(oid, location.size, node)
            else:
                self._pulling[oid] = node
                self._ctx.send(f"node:{node}", PullObject(oid))

    def on_node_changed(self, node: int, alive: bool) -> None:
        """Look elsewhere for what a node was asked for that is dead."""
        if alive:
            self._dead.discard(node)
            return
        self._dead.add(node)
        for asked in (self._pulling, self._fetching):
            for oid in [oid for oid, source in asked.items() if source == node]:
                del asked[oid]
                self._asking.append(oid)

    def _missing(self, oid: bytes, node: int) -> None:
        self._ctx.send("gcs", ObjectsMissing(node, [oid]))

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
        # A node that died may answer after another was asked.
        late = self._fetching.get(oid) not in (message.node, None)
        if not late:
            self._fetching.pop(oid, None)
        array = split_object_id(oid)[0]
        if message.offset >= 0:
            if message.elapsed_s > 0:
                rate = message.size / message.elapsed_s
                self.bandwidth = 0.8 * self.bandwidth + 0.2 * rate if self.bandwidth else rate
            if oid not in self._wanted:
                # Released while it was on its way.
                self._ctx.send(self._store, Free(oid, message.offset))
                return
            self._keep(array, oid, message.offset, message.size)
            self._copied(array, oid, message.size)
            self._resolve(array)
        elif oid in self._wanted and not late:
            if message.reason.startswith("ObjectStoreFullError"):
                self._tell(ObjectValue(oid, SYSTEM_ERROR, message.reason.encode()))
            else:
                if message.reason == GONE and message.node not in self._dead:
                    self._missing(oid, message.node)
                self._retry(oid)

    def _fetch(self, oid: bytes, size: int, node: int) -> None:
        if node in self._dead:
            self._asking.append(oid)
            return
        self._fetching[oid] = node
        self._ctx.send(self._store, Fetch(oid, size, node))

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
                if result is not None and result.node not in self._dead:
                    self._fetch(oid, result.sizes[ret], result.node)

    def _tell(self, value: ObjectValue) -> None:
        oid = value.object
        array = split_object_id(oid)[0]
        self._pulling.pop(oid, None)
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
