"""The part that lives in every driver and worker: submit, wait, count references.

A client **owns** the arrays that its tasks and puts make: results come to it
unasked, small values with them. The life of an owned array::

    submit/put ──> PENDING ──TaskResults──> DONE ──no reference left──> RELEASED
                                             │
                                             └─ large values: WantObjects,
                                                ObjectsReady: LOCAL and pinned,
                                                until released, or the node asks
                                                for it back and nobody looks

Of an object that it does not own (a **borrowed** one, whose reference came in a
value) it asks its node, as for a large value. An array is released when no
`ObjectRef` to it is alive, no unfinished task has it as input or inside of one,
and nobody else has borrowed it: `borrowing` says who that may be.

The world serializes calls: each method is called in a turn of its own or from
``handle``. Waiting is the world's affair too: a `Waiter` says what is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Entry, by_start
from raytwin.runtime.control.client.submitter import ClientSubmits
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE
from raytwin.runtime.control.core.oversized_messages import results_of
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import (
    OK,
    ActorFound,
    BorrowersGone,
    DirectClosed,
    DirectOpen,
    GiveBack,
    GroupCreated,
    KvReply,
    ObjectAllocated,
    ObjectsReady,
    ObjectValue,
    QueryReply,
    RangeResult,
    RefUpdates,
    TaskFound,
    TaskResults,
    TooLong,
    WantObjects,
)


class Client(ClientSubmits):
    """Submits, waits and counts for one driver or worker."""

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, TaskResults):
            self._answered = True
            wants: list[bytes] = []
            for result in message.results:
                if result.calls:
                    self._on_run(result, wants)
                else:
                    self._on_result(result, wants)
            if wants:
                self.ctx.send(self.node, WantObjects(wants))
        elif isinstance(message, ObjectsReady):
            for value in message.values:
                self._on_ready(value)
        elif isinstance(message, ObjectAllocated):
            self.allocations[message.object] = message.offset
            if message.full is not None:
                self.full[message.object] = message.full
            self._wake(message.object)
        elif isinstance(message, KvReply | TaskFound):
            found = message.value if isinstance(message, KvReply) else message.row
            self.replies[message.request] = found
            self._wake(message.request.to_bytes(8, "big"))
        elif isinstance(message, QueryReply):
            self.replies[message.key] = message.value
            self._wake(message.key.to_bytes(8, "big"))
        elif isinstance(message, ActorFound):
            self.replies[message.key] = message
            self._wake(message.key.to_bytes(8, "big"))
        elif isinstance(message, GroupCreated):
            self.replies[message.request] = message.group
            self._wake(message.request.to_bytes(8, "big"))
        elif isinstance(message, RefUpdates):
            self.borrowing.on_updates(message)
        elif isinstance(message, BorrowersGone):
            self.borrowing.on_gone(message)
        elif isinstance(message, DirectOpen):
            self.direct.opened(message.actor, source)
        elif isinstance(message, DirectClosed):
            self.direct.closed(message.worker)
        elif isinstance(message, GiveBack):
            self._give_back()
        elif isinstance(message, TooLong):
            results = results_of(message, node_of(self.address))
            self.handle(self.node, TaskResults(self.address, results))
        else:
            raise TypeError(f"a client was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _on_run(self, run: RangeResult, wants: list[bytes]) -> None:
        """Calls or tasks have ended; their values are one after another in the payload."""
        entries = self.entries
        held: Entry | None = None
        ended = 0
        for position, array in enumerate(split(run.calls)):
            entry = entries.get(array)
            if entry is None or entry.result is not None:
                continue
            if entry.count != 1:
                # The first element of several, which came alone.
                self._on_result(result_of(run, position, array), wants)
                continue
            entry.result = run
            entry.position = position
            entry.missing = 0
            if entry.waiters is not None:
                self._wake_elements(entry, run, wants)
            deps = entry.deps
            if len(deps) != 1 or entry.keeper or entry.all_waiters is not None:
                self._complete(entry)
                continue
            # It holds its actor alone: let go of once for all calls.
            of = entries.get(deps[0][:ARRAY_BYTES])
            if of is None or (held is not None and of is not held):
                self._complete(entry)
                continue
            held = of
            ended += 1
            entry.deps = ()
            if not entry.refs:
                self.release_if_free(entry)
        if held is not None:
            held.holds -= ended
            if not held.holds:
                self.release_if_free(held)

    def _on_result(self, result: RangeResult, wants: list[bytes]) -> None:
        entry = self.entries.get(result.array)
        if result.refs is not None:
            for array in self.borrowing.on_result(result.refs):
                if entry is not None and array not in (entry.array, *(entry.kept or ())):
                    entry.kept = {**(entry.kept or {}), array: None}
                    self.hold(array)
        if entry is None:
            return  # released: it was made twice, and this is the second
        if result.sizes:
            self.large_results += 1
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
            self._fail_elements(entry, result)
        if entry.waiters is not None:
            self._wake_elements(entry, result, wants)
        if not entry.missing:
            self._complete(entry)

    def _on_item(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        if entry.items is None:
            return
        if result.status != OK and entry.result is None:
            # It ran again and failed before it came as far as before: what came stays,
            # and the error is what comes next.
            known = entry.items.get(result.start)
            if known is not None and known.status == OK:
                while result.start in entry.items:
                    result = replace(result, start=result.start + 1)
        if result.start not in entry.items:
            entry.items[result.start] = result
            if result.status != OK:
                self._fail_elements(entry, result)
            if entry.waiters is not None:
                self._wake_elements(entry, result, wants)

    def _wake_elements(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
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
                self._watch(oid, waiter, wants)
                if waiter.arrived is not None and waiter.missing < missing:
                    waiter.arrived.append(oid)
        if not entry.waiters:
            entry.waiters = None

    def _complete(self, entry: Entry) -> None:
        if entry.all_waiters is not None:
            for waiter in entry.all_waiters:
                waiter.missing -= 1
            entry.all_waiters = None
        if entry.deps:
            deps, entry.deps = entry.deps, ()
            for oid in deps:
                array = oid[:ARRAY_BYTES]
                held = self.entries.get(array)
                if (
                    entry.keeper
                    and array != entry.keeper
                    and (len(oid) == ARRAY_BYTES or (held is not None and held.is_large()))
                ):
                    self._keep(entry.keeper, oid)  # the actor is rebuilt with it
                elif held is not None:
                    self._let_go(held)
                else:
                    self.borrowing.drop(array)
        self.release_if_free(entry)

    def _on_ready(self, value: ObjectValue) -> None:
        oid = value.object
        if value.size and oid in self._unpin_later:
            # Still in view from before; one pin is enough.
            self._unpin_later.discard(oid)
            self._unpinned.append(oid)
            self._flush_soon()
        self.local[oid] = value
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            if entry.local is None:
                entry.local = []
            entry.local.append(oid)
        if value.status != OK:
            self._fail_object(oid)
        self._wake(oid)
        if entry is None and oid not in self.borrowed:
            self._drop_local(oid)
