"""The arrays that clients of a node own, besides the owner table.

An array has entries here from its submission or put until its owner releases it, or it is lost
with its owner (`release_manager`)::

    SubmitTasks ──> `ends`: up to which element the array was submitted, in order
                ──> `actors`: the array is an actor that ends with its owner
    WorkerDied ───> `died`: the owner died, and the array awaits a claim, or was claimed

Most arrays have no entry: one task is submitted at once, and its owner lives.

A task that runs again, for the first time on this node, may submit an array of which another
task of this node has fetched a **copy** as an input. The node that made the array may die
before it forwards the result to the new owner, so this node delivers the copy. It does not if
the value contains references for which their owners do not have this node as a borrower: such
a copy is not the owner's result, which is missing until it comes.
"""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.ids import STREAM_BASE, job_of
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import RangeResult
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory


class OwnedObjects:
    """Arrays that clients of one node own."""

    def __init__(self, node: int, objects: ObjectDirectory, log: GcsWriteLog) -> None:
        self._node = node
        self._objects = objects
        self._log = log
        self.actors: set[bytes] = set()
        """Actors that are not detached."""
        self.died: dict[bytes, str] = {}
        """Arrays whose owner has died: the address of that worker."""
        self.ends: dict[bytes, int] = {}
        """Arrays of several elements: up to which element they were submitted, in order."""

    def end_job(self, job: bytes) -> None:
        """Forget the arrays of a job that ended."""
        for array in [array for array in self.died if job_of(array) == job]:
            del self.died[array]

    def missing(self, array: bytes) -> list[tuple[int, int]]:
        """Return (start, count) of elements that were submitted and have no result here."""
        made = Ranges()
        for result in self._objects.results.of(array):
            if not self._is_foreign(result):
                made.add(result.start, result.count)
        return made.missing(0, self.ends.get(array, 1))

    def copies(self, array: bytes, start: int, count: int) -> list[RangeResult]:
        """Return the copies of results in a range that a new owner is to get.

        Results that were made here the GCS has this node forward. Errors of lost inputs are
        dropped: the new owner makes the inputs, and then these results, again.
        """
        found: list[RangeResult] = []
        for result in self._objects.results.of(array):
            within = result.start < start + count and start < result.start + result.count
            if result.node == self._node or not (within or result.start >= STREAM_BASE):
                continue
            if is_lost(result):
                self._objects.results.drop_failed(result)
            elif not self._is_foreign(result):
                found.append(result)
        return found

    def _is_foreign(self, result: RangeResult) -> bool:
        """Whether it has references whose owners do not know this node as a borrower."""
        if result.refs is None:
            return False
        keeper = result.refs.keeper
        return (node_of(keeper) if keeper else result.node) != self._node

    def lend(self, array: bytes) -> None:
        """A client lends an array to another node: the GCS has to know the array."""
        if array in self._objects.owners:
            self._log.expose(array)
