"""The rows of the task and object tables, and what the GCS knows of their owners.

`ArrayStore` is the state that `task_object_table`, `reconstruction` and `row_release` share: the
rows, the tombstones of dropped rows, the lineage and the liveness of owners. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.lineage import Lineage
from raytwin.runtime.control.gcs.released_arrays import ReleasedArrays
from raytwin.runtime.control.messages import FreeObjects, NodeInfo

LOST_S = 1.0
"""How long the GCS waits before it looks again for a lost object: its owner's task, or an actor
that is being rebuilt, may make it again."""
ORPHANED_S = 60.0
"""How long the GCS keeps a row without an owner: the owner's task may run again elsewhere."""


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
        """Dropped array -> {node: elements} that still run: their values are freed at the end."""

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
        return next((o for o in reversed(row.owners.values()) if not self.is_dead(o)), "")

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
        """Have one node free what it has of an array."""
        self._ctx.send(f"node:{node}", FreeObjects([array]))

    def bury(self, array: bytes, node: int, count: int) -> None:
        """A tombstone's elements have ended on a node: free their values there."""
        left = self.tombstones[array]
        left[node] = left.get(node, 0) - count
        if left[node] <= 0:
            del left[node]
            if node in self.alive and array not in self.rows:
                self.free_at(array, node)
        if not left:
            del self.tombstones[array]
