"""The results that a node has made or received, by array and element.

An object is one value of one element of a `RangeResult`. The result's payload holds small
values; of a large value the result holds the size, the node and the place in its arena.
Results of an array overlap if some of its elements ran twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from operator import attrgetter

from msgspec.structs import replace

from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.core.ids import STREAM_BASE, split_object_id
from raytwin.runtime.control.messages import OK, SYSTEM_ERROR, RangeResult
from raytwin.runtime.control.messages.common import NOWHERE

start_of = attrgetter("start")


class ResultTable:
    """The results that one node has made or received."""

    def __init__(self, node: int, dead: Collection[int]) -> None:
        """`dead` are the nodes that are dead now."""
        self._node = node
        self._dead = dead
        self._results: dict[bytes, list[RangeResult]] = {}
        """By array, each list sorted by start."""
        self._batches: dict[bytes, RangeResult] = {}
        """By array, batches of which no result was needed alone; not in `_results`."""
        self._failed: set[bytes] = set()
        """Arrays that have system errors among their results."""
        self._overlapping: set[bytes] = set()
        """Arrays whose results overlap."""
        self._ended_again: dict[bytes, RangeResult] = {}
        """Errors of second runs of tasks whose values the node knows."""

    def __contains__(self, array: bytes) -> bool:
        return array in self._results or array in self._batches

    def arrays(self) -> list[bytes]:
        """Return the arrays that have results."""
        return [*self._results, *self._batches]

    def add(self, result: RangeResult) -> None:
        """Add a result of a task, a call or a put."""
        array = result.array
        if result.status == SYSTEM_ERROR:
            self._failed.add(array)
        results = self._of(array)
        if results is None:
            self._results[array] = [result]
            return
        at = bisect_right(results, result.start, key=start_of)
        after_last = at == 0 or end_of(results[at - 1]) <= result.start
        before_next = at == len(results) or end_of(result) <= results[at].start
        if not (after_last and before_next):
            self._overlapping.add(array)
            at = self._drop_large(results, result)
        results.insert(at, result)

    @staticmethod
    def _drop_large(results: list[RangeResult], newer: RangeResult) -> int:
        """Drop results with large values that a newer one covers; return the newer one's index.

        The large values were lost, or made twice: copies in this node's arena stay.
        """
        low = bisect_left(results, newer.start, key=start_of)
        high = bisect_left(results, end_of(newer), key=start_of)
        # A result with large values has one element, so the newer one covers it all.
        results[low:high] = [r for r in results[low:high] if not any(r.sizes)]
        return bisect_right(results, newer.start, key=start_of)

    def has_any(self, arrays: Sequence[bytes]) -> bool:
        """Whether any of these arrays has results."""
        return not (
            self._results.keys().isdisjoint(arrays) and self._batches.keys().isdisjoint(arrays)
        )

    def add_batch(self, batch: RangeResult, arrays: Sequence[bytes]) -> None:
        """Add the results of a batch of arrays that have none."""
        self._batches.update(dict.fromkeys(arrays, batch))

    def forget(self, arrays: Sequence[bytes]) -> None:
        """Forget the results of arrays."""
        results, batches = self._results, self._batches
        for array in arrays:
            if results.pop(array, None) is None:
                batches.pop(array, None)
        if self._failed:
            self._failed.difference_update(arrays)
        if self._ended_again:
            for array in arrays:
                self._ended_again.pop(array, None)
        if self._overlapping:
            self._overlapping.difference_update(arrays)

    def drop_failed(self, failed: RangeResult) -> None:
        """Forget a system error: its elements are reconstructed."""
        results = self._results.get(failed.array, [])
        if failed in results:
            results.remove(failed)
            if not results:
                del self._results[failed.array]
        self._failed.discard(failed.array)

    def node_died(self, node: int) -> None:
        """Large values on a dead node are lost, also if that node joins again."""
        for results in self._results.values():
            for at, result in enumerate(results):
                if result.node == node and any(result.sizes):
                    results[at] = replace(result, node=NOWHERE)

    # -- queries -----------------------------------------------------------------

    def find(self, array: bytes, index: int) -> RangeResult | None:
        """Return the newest result of an element."""
        results = self._of(array)
        if results is None:
            return None
        at = bisect_right(results, index, key=start_of)
        for result in reversed(results[0 if array in self._overlapping else max(at - 1, 0) : at]):
            if index < end_of(result):
                return result
        return None

    def of(self, array: bytes) -> list[RangeResult]:
        """Return all results of an array."""
        return list(self._of(array) or ())

    def _of(self, array: bytes) -> list[RangeResult] | None:
        results = self._results.get(array)
        if results is None and array in self._batches:
            # Rare: mostly only the owner needs the result, and it has a copy.
            batch = self._batches.pop(array)
            result = result_of(batch, split(batch.calls).index(array), array)
            results = self._results[array] = [result]
        return results

    def small(self, oid: bytes) -> RangeResult | None:
        """Return the result that contains a small object or an error."""
        array, index, ret = split_object_id(oid)
        result = self.find(array, index)
        if result is None or (result.status == OK and result.sizes and result.sizes[ret] > 0):
            return None
        return result

    def is_lost(self, result: RangeResult) -> bool:
        """Whether the node that made a result's large values is dead."""
        return result.node == NOWHERE or result.node in self._dead

    def is_obsolete_error(self, result: RangeResult) -> bool:
        """Whether a result is an error, and values of all its elements are known.

        A range runs twice if its node dies after it has sent the result, or if its parent runs
        twice. The second run may fail since the inputs of the first one are released.
        """
        if result.status == OK or result.array not in self:
            return False
        return all(
            made is not None
            and made.status != SYSTEM_ERROR
            and not (any(made.sizes) and self.is_lost(made))
            for made in self._ends(result)
        )

    def has_small(self, result: RangeResult) -> bool:
        """Whether the node has small values, which cannot be lost, of all elements of a result."""
        ends = self._ends(result)
        return all(end is not None and end.status == OK and not any(end.sizes) for end in ends)

    def has_failed(self, result: RangeResult) -> bool:
        """Whether all elements of a result have system errors already, which then stay."""
        if result.array not in self._failed:
            return False
        return all(end is not None and end.status == SYSTEM_ERROR for end in self._ends(result))

    def _ends(self, result: RangeResult) -> list[RangeResult | None]:
        """Return the newest result of each element of a result."""
        return [self.find(result.array, at) for at in range(result.start, end_of(result))]

    def ended_again(self, result: RangeResult) -> None:
        """A task whose values are known ran again and ended with this error."""
        self._ended_again[result.array] = result

    def end_instead_of(self, oid: bytes) -> RangeResult | None:
        """Return the error that ended a stream here before this item, if there is one."""
        array, index, _ = split_object_id(oid)
        if index < STREAM_BASE:
            return None
        ends = [self._ended_again[array]] if array in self._ended_again else self.of(array)
        for end in reversed(ends):
            # A system error is the stream's end, a user error its last item.
            if end.status != OK and (end.start == 0 or end.start < index):
                return RangeResult(array, index, 1, end.status, end.payload, self._node)
        return None

    def is_elsewhere(self, array: bytes) -> bool:
        """Whether large values of an array are lost, or on another node."""
        ends = self._results.get(array, ())
        return any(self.is_lost(end) or (end.node != self._node and any(end.sizes)) for end in ends)

    def has_lost(self, array: bytes) -> bool:
        """Whether large values of an array were on a node that died."""
        return any(any(end.sizes) and self.is_lost(end) for end in self._results.get(array, ()))

    def sizes_kept(self, array: bytes) -> tuple[int, ...]:
        """Return the sizes of a call's values if the large ones are lost and small ones known.

        Else return an empty tuple.
        """
        end = self.find(array, 0)
        if end is None or not any(end.sizes) or all(end.sizes) or not self.is_lost(end):
            return ()
        return end.sizes


def end_of(result: RangeResult) -> int:
    """Return the element after the last one of a result."""
    return result.start + result.count
