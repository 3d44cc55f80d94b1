"""The node's object directory: what is here, and how to bring what is not.

What is here is in `holdings`, whose it is in `owners`.

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
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_of, split_object_id
from raytwin.runtime.control.messages import (
    NOWHERE,
    SYSTEM_ERROR,
    Fetch,
    Fetched,
    Free,
    LocateObjects,
    Location,
    NoRoom,
    ObjectPayload,
    ObjectsMissing,
    ObjectValue,
    PullObject,
    RangeResult,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, StoreFull, unpack
from raytwin.runtime.control.objects.eviction import CLIENT, Request
from raytwin.runtime.control.objects.local_objects import Holdings, end_of, start_of
from raytwin.runtime.control.observability.timeline import TransferLog

RETRY_S = 0.1
"""Pause before asking again where an object is, when its source failed."""

Ready = Callable[[ObjectValue], None]
FEW = 4
"""Arrays for which it does not pay to look first whether all are of the plain kind."""


class ObjectDirectory(Holdings):
    """What one node knows of objects."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        copied: Callable[[bytes, bytes, int], None],
        wait_s: float = Config().store_wait_s,
    ) -> None:
        super().__init__(ctx, node, copied)
        self._wait_s = wait_s
        self._wanted: dict[bytes, list[Ready]] = {}
        self._wanted_of: dict[bytes, set[bytes]] = {}
        self._ranks: dict[bytes, int] = {}
        """Who wants it most; see `eviction`."""
        self._until_s: dict[bytes, float] = {}
        """How long a client's want may wait for room, once it had to."""
        self._fetching: dict[bytes, tuple[Fetch, int]] = {}
        """What the store was asked for, and which node has the primary (-1: unknown)."""
        self._pulling: dict[bytes, int] = {}
        """Small objects that were asked of a node, which may die instead of answering."""
        self._blaming: dict[bytes, Loss] = {}
        """Lost items, and why, of which a node is asked how their task has ended."""
        self._asking: list[bytes] = []
        """What to ask the GCS for at the end of the turn: in one message."""
        self.transfers = TransferLog(ctx, node)
        self.bandwidth = 0.0
        """Exponential average of what transfers to this node reached, bytes/s."""

    def add(self, result: RangeResult) -> None:
        """Take what a task or a put has made, here or elsewhere.

        Large values that are elsewhere become known by it, not present.
        """
        array = result.array
        if result.status == SYSTEM_ERROR:
            self._failed.add(array)
        results = self._results_of(array)
        if results is None:
            self._results[array] = [result]
        else:
            at = bisect_right(results, result.start, key=start_of)
            after_last = at == 0 or end_of(results[at - 1]) <= result.start
            before_next = at == len(results) or end_of(result) <= results[at].start
            if not (after_last and before_next):
                self._overlapping.add(array)
                at = self._outdate(results, result)
            results.insert(at, result)
        if result.sizes and result.node == self._node:
            for ret, size in enumerate(result.sizes):
                if size > 0 and result.offsets[ret] >= 0:  # else it is on disk
                    oid = array + result.start.to_bytes(4, "big") + ret.to_bytes(2, "big")
                    self._primary.pop(oid, None)  # it was a copy: now the GCS counts on it
                    self._keep(array, oid, result.offsets[ret], size)
        if array in self._wanted_of:
            self._resolve(array)

    def of_job(self, job: bytes) -> list[bytes]:
        """Return the arrays of a job that are here, owned here or wanted here."""
        tables = (
            self.owners,
            self._results,
            self._runs,
            self._stored,
            self._wanted,
            self.eviction.on_disk,
        )
        return list({key[:ARRAY_BYTES]: None for t in tables for key in t if job_of(key) == job})

    def is_on_its_way(self, oid: bytes) -> bool:
        """Whether an owner here waits for it: another node may hear of it sooner."""
        array, index, _ = split_object_id(oid)
        return array in self.owners and self._result(array, index) is None

    def may_add_run(self, arrays: Sequence[bytes], owner: str | None) -> bool:
        """Whether `owner` alone waits for all of these, and none has a result here.

        None: nobody of this node waits for any.
        """
        if self.others or not self._wanted_of.keys().isdisjoint(arrays):
            return False
        if set(map(self.owners.get, arrays)) != {owner}:
            return False
        for table in (self._results, self._runs, self._stored_of):
            if not table.keys().isdisjoint(arrays):
                return False
        return True

    def add_run(self, run: RangeResult, arrays: Sequence[bytes]) -> None:
        """Take the results of calls for which `may_add_run` holds."""
        self._runs.update(dict.fromkeys(arrays, run))

    def release(self, array: bytes) -> None:
        """Free every object of the array, pinned ones when their pins are gone.

        If somebody waits for one the GCS is asked, since it may be made again meanwhile.
        """
        self._forget(array)
        if self._wanted_of:
            for oid in sorted(self._wanted_of.get(array, ())):
                if oid not in self._fetching:
                    self._asking.append(oid)
        if self._stored_of:
            self._free_array(array)

    def release_all(self, arrays: Sequence[bytes]) -> None:
        """`release` each of these; their owners have let go."""
        tables = (self.others, self._wanted_of, self._stored_of)
        if len(arrays) < FEW or not all(table.keys().isdisjoint(arrays) for table in tables):
            for array in arrays:
                self.release(array)
            return
        owners, results, runs = self.owners, self._results, self._runs
        for owner, count in Counter(owners.pop(array, None) for array in arrays).items():
            if owner is not None:
                self._disown(owner, count)
        for array in arrays:
            if results.pop(array, None) is None:
                runs.pop(array, None)
        if self._failed:
            self._failed.difference_update(arrays)
        if self._ended_again:
            for array in arrays:
                self._ended_again.pop(array, None)
        if self._overlapping:
            self._overlapping.difference_update(arrays)

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

        def fail(full: StoreFull) -> None:
            if outdated():
                return
            del self._fetching[oid]
            if oid in self._wanted:
                self._tell(failed_value(full, oid))

        rank = self._ranks.get(oid, CLIENT)
        until_s = self._ctx.now() + self._wait_s
        if rank == CLIENT:
            # A client's time is limited in all. Tasks wait on while there is progress:
            # what is pinned for others is free once these have run.
            until_s = self._until_s.setdefault(oid, until_s)
        self.eviction.need(Request(message.size, rank, until_s, retry, fail), message)

    # -- what is not here --------------------------------------------------------

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
        if location.lost is not None:
            if location.ended in (-1, self._node) or location.ended in self._dead:
                end = self.end_instead_of(oid) if location.ended == self._node else None
                self._lost(oid, location.lost, end)
            else:
                self._blaming[oid] = location.lost
                self._pulling[oid] = location.ended
                self._ctx.send(f"node:{location.ended}", PullObject(oid))
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

    def _lost(self, oid: bytes, why: Loss, end: RangeResult | None) -> None:
        """An object is lost; `end` is the error of the task that was to yield it again."""
        if end is not None and end.status != SYSTEM_ERROR:
            # It raised this time. Whoever asks for the item hears what, and where.
            self._tell(ObjectValue(oid, end.status, end.payload))
            return
        root = why.root if end is None else unpack(end.payload)
        self._tell(failed_value(replace(why, object=oid, root=root), oid))

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
            self._blaming.pop(oid, None)
            self._asking.append(oid)
        for oid, (fetch, primary) in list(self._fetching.items()):
            if fetch.node == node:
                del self._fetching[oid]
                self._asking.append(oid)
            elif primary == node:
                self._fetching[oid] = (fetch, -1)
        for oid in [oid for oid, primary in self._primary.items() if primary == node]:
            del self._primary[oid]

    def _missing(self, oid: bytes, node: int, reason: str = "") -> None:
        self._ctx.send("gcs", ObjectsMissing(node, [oid], reason))

    def on_payload(self, message: ObjectPayload) -> bool:
        """A small object arrived from another node; return whether it is kept."""
        asked = self._pulling.pop(message.object, None)
        why = self._blaming.pop(message.object, None)
        if message.object not in self._wanted:
            return False
        if why is not None:
            self._lost(message.object, why, message.result)
            return False
        if message.result is None:
            if asked is not None:
                self._missing(message.object, asked)
            self._retry(message.object)
            return False
        array = message.result.array
        self._copied(array, message.object, 0)
        self.add(message.result)
        return True

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
            elif far and message.gone and message.node not in self._dead:
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
        self._blaming.pop(oid, None)
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
    return failed_value(Loss(LossCause.RELEASED, object=oid), oid)
