"""The objects in a node's memory: small ones in results, large ones in the arena.

A client that was given the place of a large object **pins** it until it sends `Unpin` or dies.
The memory is freed when the array is released and the last pin is gone. An object without a
pin may be evicted when the arena is full, see `eviction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES, split_object_id
from raytwin.runtime.control.messages import DROPPED, OK, Free, ObjectValue
from raytwin.runtime.control.objects.eviction import Eviction
from raytwin.runtime.control.objects.result_table import ResultTable


class LocalObjects:
    """The objects in one node's memory, and the clients that pin them."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        results: ResultTable,
        copied: Callable[[bytes, bytes, int], None],
        ask_back: Callable[[], None],
    ) -> None:
        """`results` has the small values; `copied` notifies the GCS that a copy came (array,
        object, size) or went (size `DROPPED`); `ask_back` asks clients for their pins."""
        self._ctx = ctx
        self._store = f"store:{node}"
        self._results = results
        self._copied = copied
        self._stored: dict[bytes, tuple[int, int]] = {}
        """Large objects: place in the arena and size."""
        self._stored_of: dict[bytes, set[bytes]] = {}
        """By array."""
        self._pins: dict[bytes, dict[str, int]] = {}
        """By object: how many pins each client has."""
        self._doomed: set[bytes] = set()
        """Released objects that are pinned."""
        self._primary: dict[bytes, int] = {}
        """Of copies: the living node that has the primary."""
        self._dropped: set[bytes] = set()
        """Evicted copies, which can be fetched again."""
        self.eviction = Eviction(
            ctx, node, lambda oid: self._stored[oid][0], self._leave, self._primary.__contains__,
            self._pins.__contains__, ask_back,
        )  # fmt: skip

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
            if (oid in self.eviction.on_disk or oid in self._dropped) and self.lookup(oid) is None
        ]

    def bytes_here(self, oid: bytes) -> int:
        """Return the size of an object in this node's arena, 0 if it is not there."""
        return self._stored.get(oid, (0, 0))[1]

    def usage(self) -> tuple[int, int]:
        """Return the number of large objects in memory, and their bytes."""
        return len(self._stored), self.eviction.stored_bytes

    def objects(self) -> list[bytes]:
        """Return the large objects in memory and on disk."""
        return [*self._stored, *self.eviction.on_disk]

    # -- objects that come -------------------------------------------------------

    def keep(self, oid: bytes, offset: int, size: int, primary: int = -1) -> None:
        """Take a large object into the books; `primary`: the living node of which it is a copy."""
        array = oid[:ARRAY_BYTES]
        if primary >= 0:
            self._primary[oid] = primary
        else:
            self._primary.pop(oid, None)
        if oid in self._doomed:
            # Released, still pinned, and made again: the pinned memory stays.
            self._doomed.discard(oid)
            self._stored_of.setdefault(array, set()).add(oid)
        if oid in self._stored:
            # A task that ran again made the same object: one copy is enough.
            if self._stored[oid][0] != offset:
                self._ctx.send(self._store, Free(oid, offset))
            return
        self._stored[oid] = (offset, size)
        self._stored_of.setdefault(array, set()).add(oid)
        self._dropped.discard(oid)
        self.eviction.kept(oid, size)

    def disk_failed(self, oid: bytes) -> None:
        """The disk does not return an object: another node may have it, or make it again."""
        self.eviction.drop_from_disk(oid)
        self._dropped.add(oid)

    # -- pins --------------------------------------------------------------------

    def pin(self, oid: bytes, client: str) -> None:
        """A client was given the place of a large object."""
        pins = self._pins.setdefault(oid, {})
        pins[client] = pins.get(client, 0) + 1
        self.eviction.busy(oid)

    def unpin(self, oid: bytes, client: str) -> None:
        """A client has no view of the object any more."""
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

    def unpin_all(self, client: str) -> None:
        """End all pins of a client that died."""
        for oid in [o for o, pins in self._pins.items() if client in pins]:
            self._pins[oid][client] = 1
            self.unpin(oid, client)

    def clients(self) -> set[str]:
        """Return the clients that pin objects."""
        return {client for pins in self._pins.values() for client in pins}

    # -- objects that leave ------------------------------------------------------

    def free(self, array: bytes) -> None:
        """Free every object of an array, pinned ones when their pins are gone."""
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
        """Give up an evicted object's memory: it is on disk, or its primary elsewhere."""
        if oid not in self.eviction.on_disk:
            del self._primary[oid]
            self._dropped.add(oid)
            self._copied(oid[:ARRAY_BYTES], oid, DROPPED)
        self._free(oid)

    def node_died(self, node: int) -> None:
        """Copies whose primary is lost with a node are not dropped at eviction any more."""
        for oid in [oid for oid, primary in self._primary.items() if primary == node]:
            del self._primary[oid]
