"""The items of the streams that this process owns: waited for, and taken once each."""

from __future__ import annotations

from raytwin.runtime.api.exceptions import GetTimeoutError
from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.api.streams import Place
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.core.stream_ids import item_id
from raytwin.runtime.control.messages import OK
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.waiting import Waits


class StreamItems:
    """Hands out the references of items; see `api.streams`."""

    def __init__(self, references: SessionReferences, waits: Waits) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._waits = waits

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        """Wait for item `index` and return its reference; None: the stream has ended before it.

        Raises GetTimeoutError.
        """
        self._references.check_open()
        client = self.client
        oid = item_id(array, index)
        with self.world:
            self._references.collect()
            client.buffer.flush()
            entry = client.entries[array]
        assert entry.items is not None

        def ready() -> bool:
            return entry.result is not None or client.waits.made(oid)

        if not ready() and not self._waits.until(ready, timeout_s):
            raise GetTimeoutError(f"item {index} was not there after {timeout_s} s")
        ref = self.item_of(entry, index)
        if ref is not None and ref.binary() == oid and not client.waits.made(oid):
            self._waits.until(lambda: client.waits.made(oid), timeout_s)
        return ref

    def take_item(self, array: bytes, place: Place) -> ObjectRef | None:
        """Wait for the next item and take it from the threads that wait, too; None: the end."""
        self._references.check_open()
        client = self.client
        with self.world:
            self._references.collect()
            client.buffer.flush()
            entry = client.entries[array]
        taken = -1

        def take() -> bool:
            nonlocal taken
            # The condition is asked several times, and by any thread that waits.
            if taken < 0:
                index = place.index
                ready = entry.result is not None or client.waits.made(item_id(array, index))
                if ready and place.take(index):
                    taken = index
            return taken >= 0

        try:
            with self.world:
                take()
            if taken < 0:
                self._waits.until(take, None)
            return self.next_item(array, taken, None)
        except BaseException:
            if taken >= 0:
                place.give_back(taken)
                self.world.nudge()
            raise

    def item_of(self, entry: Entry, index: int) -> ObjectRef | None:
        """Return item `index` of a stream that has yielded it, or has ended; None: the end."""
        oid = item_id(entry.array, index)
        if self.client.waits.made(oid):
            return ObjectRef(oid, self._references)
        assert entry.result is not None and entry.items is not None
        if entry.result.status != OK:
            # The system failed: the end of the stream says so, once.
            if index != len(entry.items):
                return None
            return ObjectRef(object_id(entry.array, 0, 0), self._references)
        if index >= self.world.deserialize(entry.result.payload)[0]:
            return None
        # It ran again, and the item is on its way from the first run.
        return ObjectRef(oid, self._references)
