"""The state that the parts of the task and object tables share, without any decisions.

`ArrayStore` has the rows, the tombstones of dropped rows, the lineage and the liveness of owners;
`ReleasedArrays` remembers a bounded number of dropped rows; `ObjectWaiters` has the nodes that wait
for each object.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_of
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.lineage import Lineage
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import FreeObjects, Location, NodeInfo, ObjectLocations
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal

LOST_S = 1.0
"""How long the GCS waits before it checks a lost object again: its owner's task, or an actor that
is being rebuilt, may make it in the meantime."""
ORPHANED_S = 60.0
"""How long the GCS keeps a row without an owner: the owner's task may run again elsewhere."""
OWNER_DIED = Loss(LossCause.OWNER_DIED)
RELEASED = Loss(LossCause.RELEASED)
RELEASED_MAX = 65_536
"""How many released arrays the GCS remembers, at most."""


@lru_cache(maxsize=1024)
def _dropped(owner: str, node: int, why: Loss) -> tuple[str, int, Loss]:
    """Return the record of a dropped row: the same tuple for all equal ones, to save memory."""
    return owner, node, why


class ReleasedArrays:
    """The last released arrays, with the error that a `get` of each raises.

    A message about an array may arrive after its owner has released it: the log entry of a
    range, the result of an actor's call, a request for its location. This record distinguishes
    such a message from one about a new array.
    """

    def __init__(self) -> None:
        self._dropped: BoundedMap[bytes, tuple[str, int, Loss]] = BoundedMap(RELEASED_MAX)
        """Arrays without a row, or with other owners: the last owner that released each, if known,
        its node, and the reason."""
        self._early: BoundedMap[bytes, int] = BoundedMap(RELEASED_MAX)
        """Arrays released before the GCS heard of them: the node that released each."""
        self._owner_died: BoundedMap[bytes, None] = BoundedMap(RELEASED_MAX)
        """Released arrays whose owner has died."""

    def __contains__(self, array: bytes) -> bool:
        return array in self._dropped or array in self._early

    def drop(self, array: bytes, owner: str, node: int, why: Loss) -> None:
        """Note that the array's row was dropped, or that this owner has left it to others."""
        self._dropped.pop(array, None)
        self._dropped[array] = _dropped(owner, node, why)

    def release_early(self, array: bytes, node: int) -> None:
        """Note that a node has released an array of which the GCS has no row."""
        self._early[array] = node

    def placed(self, array: bytes, owner: str) -> None:
        """Note that a range was placed; its owner's release may have come before it."""
        node = node_of(owner)
        if self._early.get(array, -1) == node:
            del self._early[array]
            self._dropped[array] = _dropped(owner, node, self.why(array))

    def note_owner_died(self, array: bytes) -> None:
        """Note that the owner has died: a `get` of the array raises this from now on."""
        self._owner_died[array] = None

    def note_gone(self, array: bytes, why: Loss) -> None:
        """Note the loss of an array that never had a row, unless its reason is known already."""
        self._dropped.setdefault(array, ("", -1, why))

    def owned_again(self, array: bytes) -> None:
        """A client owns the array again, whose row was kept."""
        self._owner_died.pop(array, None)

    def claimed(self, array: bytes, owner: str) -> None:
        """A client has taken the array over; what it, or its node, released before is past."""
        if self.was_released_early_by(array, owner):
            del self._early[array]
        if self.was_released_by(array, owner):
            del self._dropped[array]
        self._owner_died.pop(array, None)

    def end_job(self, job: bytes) -> None:
        """Forget a job's arrays."""
        for table in (self._dropped, self._early):
            for array in [array for array in table if job_of(array) == job]:
                del table[array]

    def was_released_by(self, array: bytes, client: str) -> bool:
        """Whether the client, or its node if the owner is unknown, released the array."""
        found = self._dropped.get(array)
        if found is None:
            return False
        owner, node, _ = found
        return owner == client or (not owner and node == node_of(client))

    def was_released_early_by(self, array: bytes, client: str) -> bool:
        """Whether the client's node released the array before the GCS heard of it."""
        return self._early.get(array, -1) == node_of(client)

    def by_owner(self, array: bytes) -> bool:
        """Whether the array's owner has released it."""
        return array in self._early or self._dropped.get(array, ("", -1))[1] >= 0

    def was_put(self, array: bytes) -> bool:
        """Whether a dropped row was of a value that was put: no task makes it again."""
        return array in self._dropped and self._dropped[array][2].refusal is Refusal.PUT

    def why(self, array: bytes) -> Loss:
        """Return why a released array has no values."""
        return OWNER_DIED if array in self._owner_died else RELEASED

    def loss_of(self, array: bytes) -> Loss:
        """Return the loss that a `get` of an array without a row raises."""
        found = self._dropped.get(array)
        return self.why(array) if found is None else found[2]


class ObjectWaiters:
    """The objects that nodes wait for, by array.

    A node that asks where an object is (`LocateObjects`) waits here until the object table knows
    a location, or knows that there will be none. Each subscription gets exactly one answer.
    """

    def __init__(self, ctx: Context, pubsub: PubSub) -> None:
        self._ctx = ctx
        self._pubsub = pubsub
        self.arrays: dict[bytes, dict[bytes, None]] = {}
        """By array: its objects that a node waits for."""

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

    def drop_unsubscribed(self) -> None:
        """Forget the objects for which only a dead node waited."""
        for oid in [oid for oids in self.arrays.values() for oid in oids]:
            if not self._pubsub.has(oid):
                self._remove(oid)

    def _remove(self, oid: bytes) -> None:
        array = oid[:ARRAY_BYTES]
        del self.arrays[array][oid]
        if not self.arrays[array]:
            del self.arrays[array]


class ArrayStore:
    """The rows of all arrays that the GCS has heard of."""

    def __init__(
        self, ctx: Context, nodes: Mapping[int, NodeInfo], alive: set[int], lineage: Lineage
    ) -> None:
        """`nodes` and `alive` are the node table's: every node, and the numbers of living ones."""
        self._ctx = ctx
        self._nodes = nodes
        self.alive = alive
        self.lineage = lineage
        self.rows: dict[bytes, ArrayRow] = {}
        self.released = ReleasedArrays()
        self.tombstones: dict[bytes, dict[int, int]] = {}
        """By dropped array: {node: elements} that still run; the GCS frees their values at the
        end."""

    def row(self, array: bytes) -> ArrayRow:
        """Return the array's row, a new one if it has none."""
        row = self.rows.get(array)
        if row is None:
            row = self.rows[array] = ArrayRow()
        return row

    def is_dead(self, client: str) -> bool:
        """Whether a client, or a node, belongs to an incarnation that is dead."""
        info = self._nodes.get(node_of(client))
        if info is None or not info.alive:
            return info is not None
        return not client.startswith("node:") and incarnation_of(client) < info.incarnation

    def death_of(self, node: int) -> str:
        """Return why a node is dead."""
        return self._nodes[node].reason if node in self._nodes else "it never joined"

    def incarnation(self, node: int) -> int:
        """Return the incarnation of a known node."""
        return self._nodes[node].incarnation

    def owner_of(self, row: ArrayRow) -> str:
        """Return the row's last owner that is not known to be dead; empty if there is none.

        Its node may be unknown: a row may reach the GCS before its node has joined.
        """
        for owner in reversed(row.owners.values()):
            if not self.is_dead(owner):
                return owner
        return ""

    def was_released_by(self, array: bytes, owner: str) -> bool:
        """Whether the owner of a call's large result has released it already."""
        row = self.rows.get(array)
        if row is not None:
            return row.released and row.former == owner
        return self.released.was_released_early_by(array, owner) or self.released.was_released_by(
            array, owner
        )

    def is_void(self, array: bytes, row: ArrayRow) -> bool:
        """Whether the row is kept as lineage only: its values are not needed."""
        return row.released and array not in self.lineage.needed

    def free_values(self, array: bytes, row: ArrayRow, owner_node: int) -> None:
        """Free all values of an array; the node of its owner has freed its own already."""
        holders = row.holders() - {owner_node}
        row.forget_values(self.alive, owner_node)
        for holder in sorted(holders & self.alive):
            self.free_at(array, holder)

    def free_at(self, array: bytes, node: int) -> None:
        """Ask one node to free its values of an array."""
        self._ctx.send(f"node:{node}", FreeObjects([array]))

    def end_tombstone(self, array: bytes, node: int, count: int) -> None:
        """A tombstone's elements have ended on a node: free their values there."""
        left = self.tombstones[array]
        left[node] = left.get(node, 0) - count
        if left[node] <= 0:
            del left[node]
            if node in self.alive and array not in self.rows:
                self.free_at(array, node)
        if not left:
            del self.tombstones[array]
