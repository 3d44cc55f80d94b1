"""How results and delivered objects reach a client's entries and waiters.

::

    TaskResults ──> the entry's result, a result among several, or a stream's item
         │               └─ wakes waiters; a large value that one awaits: WantObjects
         └─ the last of an array: its inputs are let go of, and it is released if free
    ObjectsReady ─> `Pins`, waiters
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Entry, by_start
from raytwin.runtime.control.client.pins import Pins
from raytwin.runtime.control.client.references import References
from raytwin.runtime.control.client.waits import Waits
from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import (
    OK,
    ObjectsReady,
    ObjectValue,
    RangeResult,
    TaskResults,
    WantObjects,
)


class Results:
    """Takes what one client's tasks and node deliver."""

    def __init__(
        self,
        ctx: Context,
        node: str,
        entries: dict[bytes, Entry],
        references: References,
        waits: Waits,
        pins: Pins,
    ) -> None:
        """`entries` are the arrays that the client owns."""
        self._ctx = ctx
        self._node = node
        self._entries = entries
        self._references = references
        self._waits = waits
        self._pins = pins
        self.large = 0
        """How many results with large values have come."""

    def on_results(self, message: TaskResults) -> None:
        """Tasks or calls of this client have ended."""
        wants: list[bytes] = []
        for result in message.results:
            if result.calls:
                self._on_run(result, wants)
            else:
                self._on_result(result, wants)
        if wants:
            self._ctx.send(self._node, WantObjects(wants))

    def on_ready(self, message: ObjectsReady) -> None:
        """The node delivers objects that this client has asked for."""
        for value in message.values:
            self._on_ready(value)

    def _on_run(self, run: RangeResult, wants: list[bytes]) -> None:
        """Calls or tasks have ended together; the payload has their values one after another."""
        entries = self._entries
        held: Entry | None = None
        ended = 0
        for position, array in enumerate(split(run.calls)):
            entry = entries.get(array)
            if entry is None or entry.result is not None:
                continue
            if entry.count != 1:
                # The first element of an array came alone.
                self._on_result(result_of(run, position, array), wants)
                continue
            entry.result = run
            entry.position = position
            entry.missing = 0
            if entry.waiters is not None:
                self._waits.wake_elements(entry, run, wants)
            deps = entry.deps
            if len(deps) != 1 or entry.keeper or entry.all_waiters is not None:
                self._complete(entry)
                continue
            # The call holds its actor alone: one release at the end serves all calls of the run.
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
            return  # the array is released, and this result came a second time
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
            self._waits.fail_elements(entry, result)
        if entry.waiters is not None:
            self._waits.wake_elements(entry, result, wants)
        if not entry.missing:
            self._complete(entry)

    def _on_item(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        if entry.items is None:
            return
        if result.status != OK and entry.result is None:
            # The task ran again and failed before it had yielded as much as before: the items
            # of the first run stay, and the error follows them.
            known = entry.items.get(result.start)
            if known is not None and known.status == OK:
                while result.start in entry.items:
                    result = replace(result, start=result.start + 1)
        if result.start not in entry.items:
            entry.items[result.start] = result
            if result.status != OK:
                self._waits.fail_elements(entry, result)
            if entry.waiters is not None:
                self._waits.wake_elements(entry, result, wants)

    def _complete(self, entry: Entry) -> None:
        """All results of an array are here."""
        if entry.all_waiters is not None:
            for waiter in entry.all_waiters:
                waiter.missing -= 1
            entry.all_waiters = None
        if entry.deps:
            self._references.end_inputs(entry)
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
            self._waits.fail_object(oid)
        self._waits.wake(oid)
        if entry is None and oid not in self._references.borrowed:
            self._pins.drop(oid)
