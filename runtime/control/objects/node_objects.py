"""The objects that a node has, owns or wants, in four parts.

============ ==================================================================
`owners`     the client that owns each array
`results`    the results that the node knows: small values, places of large ones
`memory`     the large objects in the arena and on disk, their pins, and eviction
`pulls`      the objects that are wanted here, and their sources
============ ==================================================================

Callers use each part directly. `NodeObjects` has the operations on several parts: add a result,
release an array, drop a client's or a job's objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.ids import (
    ARRAY_BYTES,
    STREAM_BASE,
    job_of,
    object_id,
    split_object_id,
)
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import GiveBack, ObjectPayload, RangeResult
from raytwin.runtime.control.objects.object_memory import ObjectMemory
from raytwin.runtime.control.objects.pull_manager import PullManager
from raytwin.runtime.control.objects.result_table import ResultTable
from raytwin.runtime.control.ownership.owner_table import OwnerTable


class NodeObjects:
    """The objects that one node has, owns or wants."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        config: Config,
        copied: Callable[[bytes, bytes, int], None],
        lives: Callable[[str], bool],
    ) -> None:
        """`copied` notifies the GCS that a copy came (array, object, size); `lives` returns
        whether a client of this node lives."""
        self._ctx = ctx
        self._node = node
        self._dead: set[int] = set()
        self.owners = OwnerTable()
        self.results = ResultTable(node, self._dead)
        self.memory = ObjectMemory(ctx, node, config, self.results, lives, self._ask_back)
        self.pulls = PullManager(
            ctx,
            node,
            self.owners,
            self.results,
            self.memory,
            self._dead,
            copied,
            config,
        )

    def add(self, result: RangeResult) -> None:
        """Add a result of a task, a call or a put, made on this node or another one."""
        array = result.array
        self.results.add(result)
        if result.sizes and result.node == self._node:
            for ret, size in enumerate(result.sizes):
                if size > 0 and result.offsets[ret] >= 0:  # else it is on disk
                    oid = object_id(array, result.start, ret)
                    self.memory.keep(oid, result.offsets[ret], size)
        if array in self.pulls.wanted_of:
            self.pulls.resolve(array)

    def may_add_batch(self, arrays: Sequence[bytes], owner: str | None) -> bool:
        """Whether `owner` alone waits for all of these, and none has a result here.

        None: no client of this node waits for any.
        """
        if self.owners.others or self.pulls.wants_any(arrays):
            return False
        if set(map(self.owners.get, arrays)) != {owner}:
            return False
        return not (self.results.has_any(arrays) or self.memory.has_any(arrays))

    def on_payload(self, message: ObjectPayload) -> bool:
        """Take a small object from another node; return whether it is kept."""
        if not self.pulls.on_payload(message):
            return False
        assert message.result is not None
        self.add(message.result)
        return True

    def has_array(self, array: bytes) -> bool:
        """Whether any result or object of the array is here."""
        return array in self.results or array in self.memory

    def is_expected(self, oid: bytes) -> bool:
        """Whether an owner here waits for an object whose result has not come."""
        array, index, _ = split_object_id(oid)
        return array in self.owners and self.results.find(array, index) is None

    def will_report(self, array: bytes) -> bool:
        """Whether a client here owns an array, and its results are still to come or small.

        The node that has a large value reports it.
        """
        return array in self.owners and not self.results.is_elsewhere(array)

    def has_lost(self, array: bytes) -> bool:
        """Whether a client here owns an array whose large values were on a node that died."""
        return array in self.owners and self.results.has_lost(array)

    def received(self, array: bytes) -> list[RangeResult]:
        """Return the results here but for copies that cannot replace the owner's result."""
        return [each for each in self.results.of(array) if not self._is_foreign(each)]

    def missing(self, array: bytes) -> list[tuple[int, int]]:
        """Return (start, count) of submitted elements that have no result here."""
        made = Ranges()
        for result in self.received(array):
            made.add(result.start, result.count)
        return made.missing(0, self.owners.ends.get(array, 1))

    def copies(self, array: bytes, start: int, count: int) -> list[RangeResult]:
        """Return the copies of results in a range that a new owner gets from this node.

        A task that runs again, for the first time on this node, may submit an array of which
        another task of this node has fetched a copy as an input. The node that made the array may
        die before it forwards the result to the new owner. (The GCS has this node forward results
        that were made here.) Errors of lost inputs are omitted: the new owner makes the inputs, and
        then these results, again.
        """
        found: list[RangeResult] = []
        for result in self.results.of(array):
            within = result.start < start + count and start < result.start + result.count
            if result.node == self._node or not (within or result.start >= STREAM_BASE):
                continue
            if is_lost(result):
                self.results.drop_failed(result)
            elif not self._is_foreign(result):
                found.append(result)
        return found

    def _is_foreign(self, result: RangeResult) -> bool:
        """Whether it has references whose owners do not know this node as a borrower.

        Such a copy cannot replace the owner's result, which is still to come.
        """
        if result.refs is None:
            return False
        keeper = result.refs.keeper
        return (node_of(keeper) if keeper else result.node) != self._node

    # -- release -----------------------------------------------------------------

    def release(self, arrays: Sequence[bytes]) -> None:
        """Free every object of the arrays, pinned ones when their pins end."""
        self.owners.forget(arrays)
        self.results.forget(arrays)
        if self.pulls.wanted_of:
            for array in arrays:
                self.pulls.released(array)
        if self.memory.has_any(arrays):
            for array in arrays:
                self.memory.free(array)

    def drop_client(self, client: str) -> list[bytes]:
        """End the pins of a client that has died; return the arrays that it owned."""
        self.memory.drop_client(client)
        return self.owners.arrays_of(client)

    def of_job(self, job: bytes) -> list[bytes]:
        """Return the arrays of a job that are here or owned here."""
        parts = (self.owners, self.results.arrays(), self.memory.objects())
        return list({key[:ARRAY_BYTES]: None for t in parts for key in t if job_of(key) == job})

    def on_node_changed(self, node: int, alive: bool) -> None:
        """A node died, or joined again without the objects that it had."""
        if alive:
            self._dead.discard(node)
            return
        self._dead.add(node)
        self.results.node_died(node)
        self.pulls.node_died(node)

    def _ask_back(self) -> None:
        for client in sorted(self.memory.clients().union(self.owners.clients())):
            self._ctx.send(client, GiveBack())
