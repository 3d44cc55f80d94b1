"""How a client finds values, and waits for those that are not there.

A `Waiter` counts what is missing; whoever brings it wakes the waiter. How a thread
or a simulated process sleeps until then is the world's affair.

Who wants all of several values has to wait no longer once one is an error: other tasks
may wait for the one that failed. Values cost nothing for that. An error, when it comes,
tells its waiters (`Waiter.failed`); who has to wait looks once for one among what is here
already, and only if any has ever come (`errors`).
"""

from __future__ import annotations

from collections.abc import Iterable

from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.client.references import ClientCounts
from raytwin.runtime.control.core.ids import ARRAY_BYTES, split_object_id
from raytwin.runtime.control.messages import OK, ObjectValue, RangeResult, WantObjects


class ClientWaits(ClientCounts):
    """A client that looks at what there is."""

    def watch(
        self, oids: Iterable[bytes], fetch: bool = True, waiter: Waiter | None = None
    ) -> Waiter:
        """Return a waiter for these objects' values; fetches those not here.

        Without `fetch`, own objects only need to exist somewhere.
        """
        waiter = Waiter(fetch) if waiter is None else waiter
        wants: list[bytes] = []
        entries, local = self.entries, self.local
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.items is not None or oid in local:
                self._watch(oid, waiter, wants)
            elif entry.result is None:
                waiter.missing += 1
                if entry.waiters is None:
                    entry.waiters = {0: [(oid, waiter)]}
                else:
                    entry.waiters.setdefault(0, []).append((oid, waiter))
            elif not entry.is_small():
                self._watch(oid, waiter, wants)
        if wants:
            self.ctx.send(self.node, WantObjects(wants))
        return waiter

    def fail_early(self, oids: Iterable[bytes], waiter: Waiter) -> None:
        """A waiter for these, of which some are missing, is done if another is an error."""
        if self.errors and self.first_error(oids) is not None:
            waiter.failed = True

    def first_error(self, oids: Iterable[bytes]) -> ObjectValue | None:
        """Return the first of these objects that is known to be an error, None if none is."""
        for oid in oids:
            value = self.value(oid)
            if value is not None and value.status != OK:
                return value
        return None

    def watch_more(self, oids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Let a waiter wait for these too; return those that are ready already."""
        wants: list[bytes] = []
        ready = []
        for oid in oids:
            missing = waiter.missing
            self._watch(oid, waiter, wants)
            if waiter.missing == missing:
                ready.append(oid)
        if wants:
            self.ctx.send(self.node, WantObjects(wants))
        return ready

    def unfetched(self, oids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Return those that a waiter waited for because they were to be brought here."""
        found = []
        for oid in self._object_waiters.keys() & oids:
            waiting = self._object_waiters[oid]
            if waiter in waiting and self.made(oid):
                self._object_waiters[oid] = [w for w in waiting if w is not waiter]
                waiter.missing -= 1
                found.append(oid)
        return found

    def unwatch(self, oids: Iterable[bytes], waiter: Waiter) -> None:
        """Forget a waiter that gave up."""
        for oid in oids:
            array, index, _ = split_object_id(oid)
            entry = self.entries.get(array)
            if entry is not None and entry.waiters is not None and index in entry.waiters:
                left = [pair for pair in entry.waiters[index] if pair[1] is not waiter]
                if left:
                    entry.waiters[index] = left
                else:
                    del entry.waiters[index]
            waiting = self._object_waiters.get(oid)
            if waiting is not None:
                # The request is under way: its key stays, so it is not made twice.
                self._object_waiters[oid] = [w for w in waiting if w is not waiter]

    def forget_waiters(self) -> None:
        """The process has ended, and nobody waits.

        What waits may know the client, which knows the entries: Python's garbage collector
        does not look into those, and would find that ring never.
        """
        for entry in list(self.entries.values()):
            entry.waiters = entry.all_waiters = None
        self._object_waiters.clear()

    def plain_entries(self, oids: Iterable[bytes]) -> list[Entry] | None:
        """Return the entries of own objects that are single values, small or not made yet.

        None if any of them is something else.
        """
        entries, local = self.entries, self.local
        found = []
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.returns != 1 or entry.items is not None:
                return None
            result = entry.result
            if result is not None and result.sizes and result.status == OK:
                return None
            found.append(entry)
        return found if not local or local.keys().isdisjoint(oids) else None

    def unwatch_array(self, entry: Entry, waiter: Waiter) -> None:
        """Forget a waiter for a whole array that gave up."""
        if entry.all_waiters is not None:
            entry.all_waiters = [w for w in entry.all_waiters if w is not waiter]

    def watch_array(self, entry: Entry) -> Waiter:
        """Return a waiter for every result of an array (large values stay put)."""
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
        value = self.local.get(oid)
        if value is not None:
            return value
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is None:
            return None
        if entry.count == entry.returns == 1 and entry.items is None:
            # As nearly all are: nothing has to be looked for.
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
        """Return what `value` does, of many."""
        entries, local = self.entries, self.local
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
        if oid in self.local:
            return True
        array, index, _ = split_object_id(oid)
        entry = self.entries.get(array)
        return entry is not None and entry.find(index) is not None

    def _watch(self, oid: bytes, waiter: Waiter, wants: list[bytes]) -> None:
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None and entry.count == 1 and entry.result is None and entry.items is None:
            if oid in self.local:
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
        entry = self.entries.get(array)
        if entry is not None and entry.find(index) is None:
            if entry.waiters is None:
                entry.waiters = {}
            entry.waiters.setdefault(index, []).append((oid, waiter))
            return
        waiting = self._object_waiters.get(oid)
        if waiting is None:
            self._object_waiters[oid] = [waiter]
            wants.append(oid)
        else:
            waiting.append(waiter)

    def _fail_elements(self, entry: Entry, result: RangeResult) -> None:
        """Elements of an array are errors, which was not known before."""
        self.errors += 1
        for waiter in entry.all_waiters or ():
            waiter.failed = True
        if entry.waiters:
            for index in range(result.start, result.start + result.count):
                for _, waiter in entry.waiters.get(index, ()):
                    waiter.failed = True

    def _fail_object(self, oid: bytes) -> None:
        """An object that was to be brought here is an error."""
        self.errors += 1
        for waiter in self._object_waiters.get(oid, ()):
            waiter.failed = True

    def _wake(self, key: bytes) -> None:
        for waiter in self._object_waiters.pop(key, ()):
            waiter.missing -= 1
            if waiter.arrived is not None:
                waiter.arrived.append(key)
