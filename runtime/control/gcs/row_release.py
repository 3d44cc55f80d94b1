"""How the GCS lets go of an array: who owns it, and what is freed when nobody does.

Nodes release an array once its owner has let go. A run may still be outstanding
then: the *tombstone* of a dropped row waits for it, to free its values too. A row
that nobody owns, because its owner's node died, waits `ORPHANED_S` for the owner's
task to run again and claim it.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.gcs.array_row import ORPHANED_S, dropped
from raytwin.runtime.control.gcs.reconstruction import Remaking
from raytwin.runtime.control.gcs.task_object_table import ArrayRow
from raytwin.runtime.control.messages import ForwardResults, FreeObjects, Location, TaskSpec
from raytwin.runtime.control.messages.errors import Unmade


class Releasing(Remaking):
    """Rows, and how they end."""

    def _adopt(self, array: bytes, row: ArrayRow, owner: str) -> None:
        """A client waits for the array's results, or has put it."""
        row.barren = None  # its task puts and submits again what was lost
        if row.released:
            row.released = False
            self._bereaved.pop(array, None)
            self.lineage.unkeep(array)
        node = node_of(owner)
        if not self._is_dead(owner):
            row.owners.pop(node, None)
            row.owners[node] = owner
        elif not row.owners:
            row.former = owner
            self._ctx.after(ORPHANED_S, partial(self._drop_orphans, [array]))

    def _release(self, array: bytes, node: int, died: bool) -> None:
        """An owner on that node has let go, or has died."""
        row = self.rows.get(array)
        if row is None:
            # A large result of an actor's call: the node that has it says so late.
            self._early[array] = node
            if died:
                self._bereave(array)
        if row is None or row.released:
            return
        orphaned = row.actor is None and row.former and self._is_dead(row.former)
        if node not in row.owners and (orphaned or row.live_owner(self._alive)):
            # No owner there any more: what it has is for one who lives, or for the owner's
            # task when it has run again.
            return
        row.former = row.owners.pop(node, row.former)
        owner = row.live_owner(self._alive)
        if owner:
            # It has freed what it had, another owner has not, and may wait for it.
            for spec, gaps in row.forget_node(node):
                for index in [i for start, count in gaps for i in range(start, start + count)]:
                    made = any(not done.lost for done in row.ended(index))
                    if not made and not row.pending(index, self._alive):
                        why = "its first owner has let go of it"
                        self._run_again(array, row, spec, index, 1, owner, why)
            if node in row.asked:
                # It may have been asked for too late: the other owner's node knows.
                for done in row.done:
                    if done.lost:
                        heir = ForwardResults(array, done.start, done.count, owner)
                        self._ctx.send(f"node:{node_of(owner)}", heir)
        else:
            if died:
                self._bereave(array)
            self._let_go(array, row, node)

    def _hand_over(self, array: bytes, node: int) -> None:
        """A node keeps what it has of an array for the one who has claimed it."""
        row = self.rows.get(array)
        if row is None or row.released or node not in row.owners:
            return
        row.former = row.owners.pop(node)
        if not row.live_owner(self._alive):
            # That one has let go of it before.
            self._bereave(array)
            self._let_go(array, row, -1)

    def overtaken(self, spec: TaskSpec) -> None:
        """A range comes that was placed: its owner's release may have come before it."""
        node = node_of(spec.owner)
        if spec.array not in self.rows and self._early.get(spec.array, -1) == node:
            del self._early[spec.array]
            self._released[spec.array] = dropped(spec.owner, node, self._why_released(spec.array))

    def _drop_orphans(self, arrays: list[bytes]) -> None:
        for array in arrays:
            row = self.rows.get(array)
            if row is not None and not row.released and not row.live_owner(self._alive):
                if row.former and self._is_dead(row.former):
                    self._bereave(array)
                self._let_go(array, row, -1)

    def _let_go(self, array: bytes, row: ArrayRow, node: int) -> None:
        """Nobody owns the array: free its values, keep its specs if they may be needed."""
        row.owners = {}
        if self._history is not None and (row.accepted or row.lineage):
            self._history.add(array, row)
        if array not in self.lineage.uses or row.put:
            self._drop(array, node)
            return
        row.released = True
        if array not in self.lineage.needed:
            for oid in self._waited_for(array):
                self._tell(oid, Location(oid, (), 0, lost=self._why_released(array)))
            self._free_values(array, row, node)
        else:
            row.forget_node(node)
            self.lineage.hold(array, row.inner)
            self._seek(array, row, self._waited_for(array))
        self.lineage.keep(array, row)

    def drop(self, array: bytes) -> None:
        """Forget a row of which nothing is needed any more."""
        self._drop(array, -1)

    def _drop(self, array: bytes, node: int) -> None:
        """Forget a row, and every released one that was kept for it alone.

        The owner's own node has freed all it had, and says no more about it.
        """
        pending = [(array, node)]
        while pending:
            array, node = pending.pop()
            row = self.rows.pop(array, None)
            if row is None:
                continue
            self.lineage.unkeep(array)
            self._released.pop(array, None)
            why = self._why_released(array)
            if row.put:
                why = replace(why, unmade=Unmade.PUT)
            elif array in self.lineage.uses:
                why = replace(why, unmade=Unmade.NO_RECORD)
            # Who asks later is told when no actor is being rebuilt that makes it again: a
            # checkpoint contains the call that made it, or the actor is dead.
            later = why
            if row.actor is not None and not row.put:
                later = replace(why, unmade=Unmade.ACTOR_WENT_ON)
            self._released[array] = dropped(row.former, node, later)
            for oid in self._waited_for(array):
                self._tell(oid, Location(oid, (), 0, lost=why))
            holders = row.holders() - {node}
            row.forget_values(self._alive, node)
            left = row.outstanding()
            if left:
                self.tombstones[array] = left
            for holder in sorted(holders):
                if holder in self._alive and holder not in left:
                    self._ctx.send(f"node:{holder}", FreeObjects([array]))
            self._unneed(array, row)
            for dep in row.deps:
                if self.lineage.unuse(array, dep):
                    freed = self.rows.get(dep)
                    if freed is not None and freed.released:
                        pending.append((dep, -1))

    def _bury(self, array: bytes, node: int, count: int) -> None:
        """An outstanding range of a dropped row has ended: free it there."""
        left = self.tombstones[array]
        left[node] = left.get(node, 0) - count
        if left[node] <= 0:
            del left[node]
            if node in self._alive and array not in self.rows:
                self._ctx.send(f"node:{node}", FreeObjects([array]))
        if not left:
            del self.tombstones[array]
