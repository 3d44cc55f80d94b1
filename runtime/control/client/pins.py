"""Objects that the node has delivered to a client: large, borrowed or lost ones.

The node pins a large object for the client that it was delivered to. The client gives the pin
back when it releases the array, unless the program still has a **view**: a value that shares
the arena's memory, or a `get` under way that awaits the object. Then the last view unpins it.
"""

from __future__ import annotations

from collections.abc import Iterable

from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.messages import ObjectValue


class Pins:
    """The objects delivered to one client, and the views of them."""

    def __init__(self, buffer: SendBuffer) -> None:
        self._buffer = buffer
        self.objects: dict[bytes, ObjectValue] = {}
        self._views: dict[bytes, int] = {}
        """How many views each object has."""
        self._awaited: list[frozenset[bytes]] = []
        """What each `get` under way awaits."""
        self._unpin_later: set[bytes] = set()
        """Pinned objects that are released and still have views."""

    def add(self, value: ObjectValue) -> None:
        """The node has delivered an object, and pinned a large one."""
        oid = value.object
        if value.size and oid in self._unpin_later:
            # Its earlier pin is still held; one is enough.
            self._unpin_later.discard(oid)
            self._buffer.unpin(oid)
        self.objects[oid] = value

    def drop(self, oid: bytes) -> None:
        """Forget an object; its pin ends with its last view."""
        value = self.objects.pop(oid, None)
        if value is None or not value.size:
            return
        if self._in_view(oid):
            self._unpin_later.add(oid)
        else:
            self._buffer.unpin(oid)

    def drop_idle(self) -> list[bytes]:
        """Unpin large objects without a view: a later `get` fetches them again; return them."""
        idle = [oid for oid, value in self.objects.items() if value.size and not self._in_view(oid)]
        for oid in idle:
            self.drop(oid)
        return idle

    def add_view(self, oid: bytes) -> None:
        """A value shares the object's memory."""
        self._views[oid] = self._views.get(oid, 0) + 1

    def drop_view(self, oid: bytes) -> None:
        """Such a value is gone."""
        self._views[oid] -= 1
        if not self._views[oid]:
            del self._views[oid]
            self._unpin_if_unseen(oid)

    def begin_get(self, oids: Iterable[bytes]) -> frozenset[bytes]:
        """A `get` awaits these objects: each has a view until `end_get`."""
        awaited = frozenset(oids)
        self._awaited.append(awaited)
        return awaited

    def end_get(self, awaited: frozenset[bytes]) -> None:
        """The `get` is over; the values that it returned have views of their own."""
        self._awaited.remove(awaited)
        for oid in awaited & self._unpin_later:
            self._unpin_if_unseen(oid)

    def is_unused(self) -> bool:
        """Whether no object is pinned, in view or awaited."""
        return not (self.objects or self._views or self._awaited or self._unpin_later)

    def _in_view(self, oid: bytes) -> bool:
        return oid in self._views or any(oid in awaited for awaited in self._awaited)

    def _unpin_if_unseen(self, oid: bytes) -> None:
        if oid in self._unpin_later and not self._in_view(oid):
            self._unpin_later.discard(oid)
            self._buffer.unpin(oid)
