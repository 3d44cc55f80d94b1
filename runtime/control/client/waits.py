"""The values of a client: how they arrive, and how it finds them and waits for them.

::

    TaskResults ──> the entry's result, a result among several, or a stream's item
         │               └─ wakes waiters; a large value that one awaits: WantObjects
         └─ the last of an array: the client releases its inputs, and the array if unused
    ObjectsReady ─> `Pins`, waiters

A `Waiter` counts the missing objects; each arrival counts it down. The world makes the thread, or
the simulated process, sleep until the count is zero.

A `get` of several values ends at the first error among them. An error that arrives marks its
waiters (`Waiter.failed`). A `get` that has to wait looks for errors among the values that have
arrived, and only if any error has ever come (`Waits.errors`), so that values without errors cost
nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Entry, Waiter, by_start
from raytwin.runtime.control.client.references import Pins, References
from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, split_object_id
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import (
    OK,
    ObjectsReady,
    ObjectValue,
    RangeResult,
    TaskResults,
    WantObjects,
)


class Waits:
    """The values of one client, and the waiters for those that are missing."""

    def __init__(
        self,
        ctx: Context,
        node: str,
        entries: dict[bytes, Entry],
        references: References,
        pins: Pins,
    ) -> None:
        """`entries` are the arrays that the client owns."""
        self._ctx = ctx
        self._node = node
        self._entries = entries
        self._references = references
        self._pins = pins
        self._local = pins.objects
        self._waiters: dict[bytes, list[Waiter]] = {}
        """Waiters for objects that the node will deliver, and for replies, by key."""
        self.large = 0
        """The number of results with large values so far."""
        self.errors = 0
        """The number of errors in place of results or objects so far."""

    # -- results that arrive -----------------------------------------------------

    def on_results(self, message: TaskResults) -> None:
        """Tasks or calls of this client have ended."""
        wants: list[bytes] = []
        for result in message.results:
            if result.calls:
                self._on_batch(result, wants)
            else:
                self._on_result(result, wants)
        if wants:
            self._ctx.send(self._node, WantObjects(wants))

    def on_ready(self, message: ObjectsReady) -> None:
        """The node delivers objects that this client has asked for."""
        for value in message.values:
            self._on_ready(value)

    def _on_batch(self, batch: RangeResult, wants: list[bytes]) -> None:
        """Take the results of a batch of calls or tasks, whose payload is a list of values."""
        entries = self._entries
        held: Entry | None = None
        ended = 0
        for position, array in enumerate(split(batch.calls)):
            entry = entries.get(array)
            if entry is None or entry.result is not None:
                continue
            if entry.count != 1:
                # Only the first element of an array.
                self._on_result(result_of(batch, position, array), wants)
                continue
            entry.result = batch
            entry.position = position
            entry.missing = 0
            if entry.waiters is not None:
                self.wake_elements(entry, batch, wants)
            deps = entry.deps
            if len(deps) != 1 or entry.keeper or entry.all_waiters is not None:
                self._complete(entry)
                continue
            # The calls hold only their actor: one release at the end serves the whole batch.
            of = entries.get(deps[0][:ARRAY_BYTES])
            if of is None or (held is not None and of is not held):
                self._complete(entry)
                continue
            held = of
            ended += 1
            entry.deps = ()
            if not entry.refs:
                self._references.release_if_free(entry)
        if held is not None:
            held.holds -= ended
            if not held.holds:
                self._references.release_if_free(held)

    def _on_result(self, result: RangeResult, wants: list[bytes]) -> None:
        entry = self._entries.get(result.array)
        if result.refs is not None:
            for array in self._references.counter.on_result(result.refs):
                if entry is not None and array not in (entry.array, *(entry.kept or ())):
                    entry.kept = {**(entry.kept or {}), array: None}
                    self._references.hold(array)
        if entry is None:
            return  # a duplicate: the array is released
        if result.sizes:
            self.large += 1
        if result.start >= STREAM_BASE:
            self._on_item(entry, result, wants)
            return
        if entry.count == 1:
            if entry.result is not None:
                return
            entry.result = result
            entry.position = result.position
            entry.missing = 0
        else:
            if entry.covered is None:
                entry.covered = Ranges()
            new = entry.covered.add(result.start, result.count)
            if not new:
                return
            entry.missing -= new
            if entry.results is None:
                entry.results = [result]
            elif entry.results[-1].start > result.start:
                at = bisect_right(entry.results, result.start, key=by_start)
                entry.results.insert(at, result)
            else:
                entry.results.append(result)
        if result.status != OK:
            self.fail_elements(entry, result)
        if entry.waiters is not None:
            self.wake_elements(entry, result, wants)
        if not entry.missing:
            self._complete(entry)

    def _on_item(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        if entry.items is None:
            return
        if result.status != OK and entry.result is None:
            # The task ran again and failed before it had yielded as many items: the items of the
            # first run stay, and the error follows them.
            known = entry.items.get(result.start)
            if known is not None and known.status == OK:
                while result.start in entry.items:
                    result = replace(result, start=result.start + 1)
        if result.start not in entry.items:
            entry.items[result.start] = result
            if result.status != OK:
                self.fail_elements(entry, result)
            if entry.waiters is not None:
                self.wake_elements(entry, result, wants)

    def _complete(self, entry: Entry) -> None:
        """All results of an array are here."""
        if entry.all_waiters is not None:
            for waiter in entry.all_waiters:
                waiter.missing -= 1
            entry.all_waiters = None
        if entry.deps:
            self._references.end_inputs(entry)
        if not entry.refs:
            self._references.release_if_free(entry)

    def _on_ready(self, value: ObjectValue) -> None:
        oid = value.object
        self._pins.add(value)
        entry = self._entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            if entry.local is None:
                entry.local = []
            entry.local.append(oid)
        if value.status != OK:
            self.fail_object(oid)
        self.wake(oid)
        if entry is None and oid not in self._references.borrowed:
            self._pins.drop(oid)

    # -- waiting -----------------------------------------------------------------

    def watch(
        self, oids: Iterable[bytes], fetch: bool = True, waiter: Waiter | None = None
    ) -> Waiter:
        """Return a waiter for these objects' values, and request those that are not here.

        Without `fetch`, an own object only has to exist, on any node.
        """
        waiter = Waiter(fetch) if waiter is None else waiter
        wants: list[bytes] = []
        entries, local = self._entries, self._local
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.items is not None or oid in local:
                self._add(oid, waiter, wants)
            elif entry.result is None:
                waiter.missing += 1
                if entry.waiters is None:
                    entry.waiters = {0: [(oid, waiter)]}
                else:
                    entry.waiters.setdefault(0, []).append((oid, waiter))
            elif not entry.is_small():
                self._add(oid, waiter, wants)
        if wants:
            self._ctx.send(self._node, WantObjects(wants))
        return waiter

    def fail_early(self, oids: Iterable[bytes], waiter: Waiter) -> None:
        """Mark a waiter for these objects as failed if one of them is an error already."""
        if self.errors and self.first_error(oids) is not None:
            waiter.failed = True

    def first_error(self, oids: Iterable[bytes]) -> ObjectValue | None:
        """Return the first known error among these objects, None if there is none."""
        for oid in oids:
            value = self.value(oid)
            if value is not None and value.status != OK:
                return value
        return None

    def watch_more(self, oids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Let a waiter wait for these objects too; return those that are ready already."""
        wants: list[bytes] = []
        ready = []
        for oid in oids:
            missing = waiter.missing
            self._add(oid, waiter, wants)
            if waiter.missing == missing:
                ready.append(oid)
        if wants:
            self._ctx.send(self._node, WantObjects(wants))
        return ready

    def unwatch(self, oids: Iterable[bytes], waiter: Waiter) -> None:
        """Remove a waiter, whose wait has timed out."""
        for oid in oids:
            array, index, _ = split_object_id(oid)
            entry = self._entries.get(array)
            if entry is not None and entry.waiters is not None and index in entry.waiters:
                left = [pair for pair in entry.waiters[index] if pair[1] is not waiter]
                if left:
                    entry.waiters[index] = left
                else:
                    del entry.waiters[index]
            waiting = self._waiters.get(oid)
            if waiting is not None:
                # The node has the request: keep the key, so that the client does not repeat it.
                self._waiters[oid] = [w for w in waiting if w is not waiter]

    def forget_waiters(self) -> None:
        """Drop every waiter, because the process has ended.

        A waiter may refer to the client, which refers to the entries. Python's garbage
        collector does not look into entries, so it would never find this cycle.
        """
        for entry in list(self._entries.values()):
            entry.waiters = entry.all_waiters = None
        self._waiters.clear()

    def pending_entries(self, oids: Iterable[bytes]) -> list[Entry] | None:
        """Return the entries of own objects that are single values, small or not made yet.

        Return None if any object is not of this kind.
        """
        entries, local = self._entries, self._local
        found = []
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.returns != 1 or entry.items is not None:
                return None
            result = entry.result
            if result is not None and (result.sizes or result.status != OK):
                return None
            found.append(entry)
        return found if not local or local.keys().isdisjoint(oids) else None

    def unwatch_array(self, entry: Entry, waiter: Waiter) -> None:
        """Remove a waiter for a whole array, whose wait has timed out."""
        if entry.all_waiters is not None:
            entry.all_waiters = [w for w in entry.all_waiters if w is not waiter]

    def watch_array(self, entry: Entry) -> Waiter:
        """Return a waiter for every result of an array (large values are not fetched)."""
        waiter = Waiter()
        if entry.missing:
            waiter.missing = 1
            waiter.failed = self.first_failed(entry) is not None
            if entry.all_waiters is None:
                entry.all_waiters = []
            entry.all_waiters.append(waiter)
        return waiter

    def first_failed(self, entry: Entry) -> RangeResult | None:
        """Return the first result of an array that is an error, None if none has come."""
        if not self.errors:
            return None
        results = [entry.result] if entry.count == 1 else entry.results or ()
        return next((r for r in results if r is not None and r.status != OK), None)

    def value(self, oid: bytes) -> ObjectValue | None:
        """Return the object if its value is here, else None."""
        value = self._local.get(oid)
        if value is not None:
            return value
        entry = self._entries.get(oid[:ARRAY_BYTES])
        if entry is None:
            return None
        if entry.count == entry.returns == 1 and entry.items is None:
            # The common case: no search is necessary.
            result = entry.result
            if result is None or (result.status == OK and result.sizes and result.sizes[0] > 0):
                return None
            return ObjectValue(oid, result.status, result.payload, entry.position)
        _, index, ret = split_object_id(oid)
        result = entry.find(index)
        if result is None:
            return None
        if result.status != OK:
            return ObjectValue(oid, result.status, result.payload)
        if result.sizes and result.sizes[ret] > 0:
            return None
        position = result.position + (index - result.start) * entry.returns + ret
        return ObjectValue(oid, OK, result.payload, position)

    def values(self, oids: Iterable[bytes]) -> list[ObjectValue | None]:
        """Return `value` of each of these objects."""
        entries, local = self._entries, self._local
        found: list[ObjectValue | None] = []
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is not None and entry.count == entry.returns == 1 and entry.items is None:
                result = entry.result
                if result is not None and oid not in local and entry.is_small():
                    found.append(ObjectValue(oid, result.status, result.payload, entry.position))
                    continue
            found.append(self.value(oid))
        return found

    def made(self, oid: bytes) -> bool:
        """Whether the object exists, here or on another node, as far as known."""
        if oid in self._local:
            return True
        array, index, _ = split_object_id(oid)
        entry = self._entries.get(array)
        return entry is not None and entry.find(index) is not None

    def _add(self, oid: bytes, waiter: Waiter, wants: list[bytes]) -> None:
        entry = self._entries.get(oid[:ARRAY_BYTES])
        if entry is not None and entry.count == 1 and entry.result is None and entry.items is None:
            if oid in self._local:
                return
            waiter.missing += 1
            if entry.waiters is None:
                entry.waiters = {0: [(oid, waiter)]}
            else:
                entry.waiters.setdefault(0, []).append((oid, waiter))
            return
        if self.value(oid) is not None or (not waiter.fetch and self.made(oid)):
            return
        waiter.missing += 1
        array, index, _ = split_object_id(oid)
        entry = self._entries.get(array)
        if entry is not None and entry.find(index) is None:
            if entry.waiters is None:
                entry.waiters = {}
            entry.waiters.setdefault(index, []).append((oid, waiter))
            return
        waiting = self._waiters.get(oid)
        if waiting is None:
            self._waiters[oid] = [waiter]
            wants.append(oid)
        else:
            waiting.append(waiter)

    def fail_elements(self, entry: Entry, result: RangeResult) -> None:
        """Mark the waiters for results of an array that are errors."""
        self.errors += 1
        for waiter in entry.all_waiters or ():
            waiter.failed = True
        if entry.waiters:
            for index in range(result.start, result.start + result.count):
                for _, waiter in entry.waiters.get(index, ()):
                    waiter.failed = True

    def fail_object(self, oid: bytes) -> None:
        """Mark the waiters for an object in whose place the node delivers an error."""
        self.errors += 1
        for waiter in self._waiters.get(oid, ()):
            waiter.failed = True

    def await_key(self, key: bytes) -> Waiter:
        """Return a waiter for the answer to a request."""
        waiter = Waiter()
        waiter.missing = 1
        self._waiters.setdefault(key, []).append(waiter)
        return waiter

    def wake(self, key: bytes) -> None:
        """Wake the waiters for an object or an answer that has arrived."""
        for waiter in self._waiters.pop(key, ()):
            waiter.missing -= 1
            if waiter.arrived is not None:
                waiter.arrived.append(key)

    def wake_elements(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        """Wake the waiters for results of an array that have arrived.

        Appends to `wants` the large values that these still need from the node.
        """
        assert entry.waiters is not None
        if entry.count == 1 and entry.items is None and entry.is_small():
            for oid, waiter in entry.waiters.pop(0, ()):
                waiter.missing -= 1
                if waiter.arrived is not None:
                    waiter.arrived.append(oid)
            entry.waiters = None
            return
        for index in range(result.start, result.start + result.count):
            for oid, waiter in entry.waiters.pop(index, ()):
                missing = waiter.missing
                waiter.missing -= 1
                self._add(oid, waiter, wants)
                if waiter.arrived is not None and waiter.missing < missing:
                    waiter.arrived.append(oid)
        if not entry.waiters:
            entry.waiters = None

    def is_idle(self) -> bool:
        """Whether no waiter waits for the node to deliver or answer."""
        return not self._waiters
