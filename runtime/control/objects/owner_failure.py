"""Objects share the fate of their owner.

When the worker that owns objects dies, its node tells the GCS that they are lost, all nodes
free their values, and `get` of one raises OwnerDiedError. If the worker's task or actor runs
again, it submits the same arrays, and the node keeps them until that run claims them, or for
`ORPHANED_S`::

    the owner dies ──its task or actor does not run again───────────> LOST
          │
          └─it runs again─> KEPT ──not claimed in time──────────────> LOST
                              │
                              └─submitted or put by the new run─────> owned by it

The new run becomes the owner, but it knows only its own references. Once it releases the
array, borrowers that had it from the dead worker learn that their owner died.

A run on another node claims an array through the GCS. In place of losing such an array, the
node hands it over: its values stay here until the GCS frees them.

Actors end with their owner, as other objects do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_store import ORPHANED_S
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.owned_objects import OwnedObjects
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.ownership.owner_table import NOBODY


class OwnerFailure:
    """Arrays of one node whose owners have died."""

    def __init__(
        self,
        ctx: Context,
        objects: ObjectDirectory,
        owned: OwnedObjects,
        results: ResultManager,
        forget_calls: Callable[[Sequence[bytes]], None],
        log: GcsWriteLog,
        release_all: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`forget_calls` takes those of some arrays that are actor calls off those under way;
        `release_all` forgets arrays, and tells the GCS whose owners have died."""
        self._ctx = ctx
        self._objects = objects
        self._owned = owned
        self._results = results
        self._forget_calls = forget_calls
        self._log = log
        self._release_all = release_all

    def on_died(self, worker: str, arrays: list[bytes], runs_again: bool) -> None:
        """A worker has died that owned these arrays; its task or actor may run again."""
        for array in arrays:
            self._objects.owners.await_claim(array)
            self._owned.died[array] = worker
        if not runs_again:
            self._lose(arrays)
            return
        for array in arrays:
            self._log.expose(array)
        self._ctx.after(ORPHANED_S, partial(self._end_wait, worker, arrays))

    def _end_wait(self, worker: str, arrays: list[bytes]) -> None:
        owners, died = self._objects.owners, self._owned.died
        self._lose([a for a in arrays if owners.get(a) == NOBODY and died[a] == worker])

    def _lose(self, arrays: list[bytes]) -> None:
        """Release arrays, or hand them over to those on other nodes who have claimed them."""
        lost = []
        for array in arrays:
            if not self._results.is_claimed_elsewhere(array):
                lost.append(array)
                continue
            self._log.hand_over(array)
            self._objects.owners.forget(array)
            self._results.keep_for_others(array)
            self._forget_calls((array,))
            self._owned.ends.pop(array, None)
            del self._owned.died[array]
        self._release_all(lost)
