"""How a row gets an owner, loses it, and ends.

A node reports an array as released once its owner holds no reference. A run may still be
outstanding then: the *tombstone* of the dropped row waits for it, to free its values too. A
row whose owner's node has died keeps for `ORPHANED_S` without an owner: the owner's task may
run again and claim it.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.array_store import ORPHANED_S, ArrayStore
from raytwin.runtime.control.gcs.object_waiters import ObjectWaiters
from raytwin.runtime.control.gcs.reconstruction import Reconstruction
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.messages import ForwardResults, TaskSpec
from raytwin.runtime.control.messages.errors import Unmade


class RowRelease:
    """Gives rows owners and takes them away; a row that nothing needs is dropped."""

    def __init__(
        self,
        ctx: Context,
        store: ArrayStore,
        waiters: ObjectWaiters,
        reconstruction: Reconstruction,
        history: TaskHistory | None,
    ) -> None:
        """`history` gets each row that loses its last owner; None keeps no history."""
        self._ctx = ctx
        self._store = store
        self._waiters = waiters
        self._reconstruction = reconstruction
        self._history = history
        self._lineage = store.lineage

    def adopt(self, array: bytes, row: ArrayRow, owner: str) -> None:
        """Make a client an owner: it waits for the array's results, or has put it."""
        row.unreconstructable = None  # its owner's task puts and submits its inputs again
        if row.released:
            row.released = False
            self._store.released.owned_again(array)
            self._lineage.unkeep(array)
        node = node_of(owner)
        if not self._store.is_dead(owner):
            row.owners.pop(node, None)
            row.owners[node] = owner
        elif not row.owners:
            row.former = owner
            self._ctx.after(ORPHANED_S, partial(self.drop_orphans, [array]))

    def release(self, array: bytes, node: int, died: bool) -> None:
        """An owner on that node has released the array, or has died."""
        row = self._store.rows.get(array)
        if row is None:
            # A large result of an actor's call, which its node has not reported yet.
            self._store.released.release_early(array, node)
            if died:
                self._store.released.note_owner_died(array)
        if row is None or row.released:
            return
        orphaned = row.actor is None and row.former and self._store.is_dead(row.former)
        if node not in row.owners and (orphaned or row.live_owner(self._store.alive)):
            # The node has no owner any more. It keeps the values for a living owner, or for
            # the dead owner's task, which may run again.
            return
        row.former = row.owners.pop(node, row.former)
        owner = row.live_owner(self._store.alive)
        if owner:
            # The node has freed its values, and another owner may wait for them.
            for spec, gaps in row.forget_node(node):
                for index in [i for start, count in gaps for i in range(start, start + count)]:
                    made = any(not done.lost for done in row.ended(index))
                    if not made and not row.pending(index, self._store.alive):
                        why = "its first owner has released it"
                        self._reconstruction.run_again(array, row, spec, index, 1, owner, why)
            if node in row.asked:
                # The node may have freed a result before it was asked to forward it; the
                # other owner's node knows whether it has got it.
                for done in row.done:
                    if done.lost:
                        heir = ForwardResults(array, done.start, done.count, owner)
                        self._ctx.send(f"node:{node_of(owner)}", heir)
        else:
            if died:
                self._store.released.note_owner_died(array)
            self._release_last(array, row, node)

    def overtaken(self, spec: TaskSpec) -> None:
        """Note a placed range, which its owner's release may have overtaken."""
        if spec.array not in self._store.rows:
            self._store.released.placed(spec.array, spec.owner)

    def drop_orphans(self, arrays: list[bytes]) -> None:
        """Release those of the arrays that have no living owner."""
        for array in arrays:
            row = self._store.rows.get(array)
            if row is not None and not row.released and not row.live_owner(self._store.alive):
                if row.former and self._store.is_dead(row.former):
                    self._store.released.note_owner_died(array)
                self._release_last(array, row, -1)

    def _release_last(self, array: bytes, row: ArrayRow, node: int) -> None:
        """The last owner is gone: free the values, keep the specs if lineage may need them."""
        row.owners = {}
        if self._history is not None and (row.accepted or row.lineage):
            self._history.add(array, row)
        if array not in self._lineage.uses or row.put:
            self.drop(array, node)
            return
        row.released = True
        if array not in self._lineage.needed:
            self._waiters.notify_lost(array, self._store.released.why(array))
            self._store.free_values(array, row, node)
        else:
            row.forget_node(node)
            self._lineage.hold(array, row.inner)
            self._reconstruction.seek(array, row, self._waiters.of(array))
        self._lineage.keep(array, row)

    def drop(self, array: bytes, node: int) -> None:
        """Forget a row, and every released row that was kept as its lineage only.

        `node` is the last owner's, which has freed its values itself; -1 for none.
        """
        pending = [(array, node)]
        while pending:
            array, node = pending.pop()
            row = self._store.rows.pop(array, None)
            if row is None:
                continue
            self._lineage.unkeep(array)
            why = self._store.released.why(array)
            if row.put:
                why = replace(why, unmade=Unmade.PUT)
            elif array in self._lineage.uses:
                why = replace(why, unmade=Unmade.NO_RECORD)
            # A later `get` gets its answer once no actor replays the call: a checkpoint
            # contains it, or the actor is dead.
            later = why
            if row.actor is not None and not row.put:
                later = replace(why, unmade=Unmade.ACTOR_WENT_ON)
            self._store.released.drop(array, row.former, node, later)
            self._waiters.notify_lost(array, why)
            holders = row.holders() - {node}
            row.forget_values(self._store.alive, node)
            left = row.outstanding()
            if left:
                self._store.tombstones[array] = left
            for holder in sorted(holders):
                if holder in self._store.alive and holder not in left:
                    self._store.free_at(array, holder)
            self._reconstruction.unneed(array, row)
            for dep in row.deps:
                if self._lineage.unuse(array, dep):
                    freed = self._store.rows.get(dep)
                    if freed is not None and freed.released:
                        pending.append((dep, -1))
