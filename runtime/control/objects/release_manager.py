"""The release of arrays, by their owners or because their owners have died.

::

    Release from an owner ──another client owns it──> the array stays
              │
              ↓
          released: an actor ends; the node deregisters as borrower of references inside the
              ↑     values, and frees the values as soon as no client here pins them
              │
    FreeObjects from the GCS: releases values that were kept for other nodes, unless a client
    of this node owns the array

Most arrays have one owner and a small result: releasing many of them at once costs a few dictionary
operations each.

An object is lost with its owner. When the worker that owns objects dies, its node notifies the
GCS that they are lost, all nodes free their values, and `get` of one raises OwnerDiedError. If the
worker's task or actor runs again, it submits the same arrays: the node keeps them until that run
takes them over, or for `ORPHANED_S`::

    the owner dies ──its task or actor does not run again───────────> LOST
          │
          └─it runs again─> KEPT ──not taken over in time───────────> LOST
                              │
                              └─submitted or put by the new run─────> owned by it

The new run becomes the owner, but it knows only its own references. Once it releases the
array, borrowers that got it from the dead worker learn that their owner died.

A run on another node takes an array over through the GCS and gets the small values. When the node
loses the array, the GCS has the new owner's missing values reconstructed. Actors end with their
owner, as other objects do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.gcs.array_store import ORPHANED_S
from raytwin.runtime.control.messages import FreeObjects, KillActor, Release
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.ownership.owner_table import NOBODY


class ReleaseManager:
    """Releases the arrays of one node."""

    def __init__(
        self,
        ctx: Context,
        objects: NodeObjects,
        results: ResultManager,
        forget_calls: Callable[[Sequence[bytes]], None],
        log: GcsWriteLog,
        contained_references: ContainedReferences,
        end_tasks: Callable[[str, list[bytes]], None],
    ) -> None:
        """`forget_calls` forgets each of some arrays that is an actor's call under way;
        `end_tasks` ends a dead worker's tasks that no client has taken over."""
        self._ctx = ctx
        self._objects = objects
        self._results = results
        self._forget_calls = forget_calls
        self._log = log
        self._contained_references = contained_references
        self._end_tasks = end_tasks

    def handlers(self) -> Handlers:
        return {
            Release: self.on_release,
            FreeObjects: self.on_free,
        }

    def on_release(self, source: str, message: Release) -> None:
        """A client of this node has returned all references of arrays that it owns."""
        arrays: Sequence[bytes] = message.arrays
        if self._objects.owners.others:
            arrays = [array for array in arrays if self._objects.owners.release(array, source)]
        self.release_all(arrays, graceful=True)

    def release_all(self, arrays: Sequence[bytes], graceful: bool = False) -> None:
        """Release arrays.

        `graceful`: the owners released them, so actors among them end after their calls; else
        the owners died.
        """
        owned = self._objects.owners
        if owned.ends:
            for array in arrays:
                owned.ends.pop(array, None)
        self._results.released(arrays)
        self._forget_calls(arrays)
        if not owned.actors.isdisjoint(arrays):
            for actor in [array for array in arrays if array in owned.actors]:
                owned.actors.discard(actor)
                owner = owned.get(actor) or owned.died.get(actor, "")
                reason = ActorDeath(DeathCause.NO_OWNER)
                self._ctx.send("gcs", KillActor(actor, reason, owner=owner, graceful=graceful))
        if owned.died:
            for array in arrays:
                if owned.died.pop(array, None) is not None:
                    # Borrowers that got it from the dead owner ask the GCS.
                    self._log.owner_died(array)
        self._log.release(arrays)
        self._objects.release(arrays)
        if self._contained_references.contained:
            for array in arrays:
                if array in self._contained_references.contained:
                    self._contained_references.release(array)

    def on_free(self, source: str, message: FreeObjects) -> None:
        """The GCS notifies this node that no node needs these arrays."""
        for array in message.arrays:
            self._results.freed(array)
            if array in self._objects.owners:
                continue  # a client of this node owns it again, and will release it
            self._results.released((array,))
            self._log.forget(array)
            self._objects.release((array,))
            if array in self._contained_references.contained:
                self._contained_references.release(array)

    # -- owners that died ----------------------------------------------------------

    def owner_died(self, worker: str, arrays: list[bytes], runs_again: bool) -> None:
        """A worker has died that owned these arrays; its task or actor may run again."""
        for array in arrays:
            self._objects.owners.await_claim(array)
            self._objects.owners.died[array] = worker
        if not runs_again:
            self.release_all(arrays)
            return
        for array in arrays:
            self._log.expose(array)
        self._ctx.after(ORPHANED_S, partial(self._end_wait, worker, arrays))

    def _end_wait(self, worker: str, arrays: list[bytes]) -> None:
        owners = self._objects.owners
        unclaimed = [
            array
            for array in arrays
            if owners.get(array) == NOBODY and owners.died[array] == worker
        ]
        self._end_tasks(worker, unclaimed)
        self.release_all(unclaimed)
