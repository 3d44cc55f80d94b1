"""What a node knows of the arrays that its clients own, besides whose they are (`owners`).

From an array's submission or put until its owner releases it (`letting_go`), or it is lost
with its owner (`owner_failure`)::

    SubmitTasks ──> so far it was submitted, in order (`ends`)
                ──> it is an actor that ends with its owner (`actors`)
    WorkerDied ───> its owner has died, and it waits to be claimed, or was claimed (`died`)

Of most arrays there is nothing here: one task is submitted at once, and its owner lives.

A task that runs again, here for the first time, may submit what another task of this node
has had as an input: a **copy** is here, of which the new owner has not heard, and the node
that made it may die before it passes the result on. So the owner is told of the copy, but for
those with references: what this node is not in the books for its clients cannot answer for.
Such a copy is not the owner's result, which is missing until it comes.
"""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.ids import STREAM_BASE, job_of
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import RangeResult
from raytwin.runtime.control.objects.gcs_write_log import TaskLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory


class Owned:
    """Arrays that clients of one node own."""

    def __init__(self, node: int, objects: ObjectDirectory, log: TaskLog) -> None:
        self._node = node
        self._objects = objects
        self._log = log
        self.actors: set[bytes] = set()
        """Actors that are not detached."""
        self.died: dict[bytes, str] = {}
        """Arrays whose owner has died, and which worker that was; see `owner_failure`."""
        self.ends: dict[bytes, int] = {}
        """Of arrays of several elements: the end of what was submitted, in order."""

    def end_job(self, job: bytes) -> None:
        """Forget a job's arrays: nobody asks why they are lost."""
        for array in [array for array in self.died if job_of(array) == job]:
            del self.died[array]

    def missing(self, array: bytes) -> list[tuple[int, int]]:
        """Return (start, count) of what was submitted of it and has not ended, as far as is
        known here."""
        made = Ranges()
        for result in self._objects.results.of(array):
            if not self._is_foreign(result):
                made.add(result.start, result.count)
        return made.missing(0, self.ends.get(array, 1))

    def copies(self, array: bytes, start: int, count: int) -> list[RangeResult]:
        """Return what its new owner is to hear of a range that others here had brought.

        What was made here the GCS has this node pass on. The error of an input that was
        lost is forgotten: with its new owner that is there again, and what needed it is
        made again.
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
        """Whether it came with references for which this node is not in their owners' books."""
        if result.refs is None:
            return False
        keeper = result.refs.keeper
        return (node_of(keeper) if keeper else result.node) != self._node

    def lend(self, array: bytes) -> None:
        """A reference of it is somewhere else: the GCS has to know of it."""
        if array in self._objects.owners:
            self._log.expose(array)
