"""Subscriptions to objects' locations: which nodes wait for which objects.

A node that asks where an object is (`LocateObjects`) waits here until the object table knows
a location, or knows that there will be none. Each subscription gets exactly one answer.
"""

from __future__ import annotations

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import Location, ObjectLocations
from raytwin.runtime.control.messages.errors import Loss


class ObjectWaiters:
    """The objects that nodes wait for, by array."""

    def __init__(self, ctx: Context, pubsub: PubSub) -> None:
        self._ctx = ctx
        self._pubsub = pubsub
        self.arrays: dict[bytes, dict[bytes, None]] = {}
        """Array -> its objects that a node waits for."""

    def of(self, array: bytes) -> list[bytes]:
        """Return the objects of an array that a node waits for."""
        return list(self.arrays.get(array, ()))

    def has(self, oid: bytes) -> bool:
        """Whether a node waits for the object."""
        return oid in self.arrays.get(oid[:ARRAY_BYTES], ())

    def add(self, oid: bytes, address: str) -> None:
        """Subscribe a node to the object's location."""
        self._pubsub.subscribe(oid, address)
        self.arrays.setdefault(oid[:ARRAY_BYTES], {})[oid] = None

    def notify(self, location: Location) -> None:
        """Send the location to every node that waits for its object, and end their wait."""
        self._remove(location.object)
        for address in self._pubsub.close(location.object):
            self._ctx.send(address, ObjectLocations([location]))

    def notify_lost(self, array: bytes, why: Loss) -> None:
        """Answer every wait for the array: its objects are lost."""
        for oid in self.of(array):
            self.notify(Location(oid, (), 0, lost=why))

    def drop_deserted(self) -> None:
        """Forget the objects for which only a dead node waited."""
        for oid in [oid for oids in self.arrays.values() for oid in oids]:
            if not self._pubsub.has(oid):
                self._remove(oid)

    def _remove(self, oid: bytes) -> None:
        array = oid[:ARRAY_BYTES]
        del self.arrays[array][oid]
        if not self.arrays[array]:
            del self.arrays[array]
