"""What a node has of objects: results by range, places of large values, who looks at them.

An object is one element of a `RangeResult`. Small values live in that result's payload,
large ones in the node's arena, where ``stored`` says.

Pins: a client that was given a large object's place holds a pin until it sends
`Unpin` or dies; memory is freed when the array is released and no pin is left.
What has no pin may leave for the disk when the arena is full, see `eviction`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import STREAM_BASE, split_object_id
from raytwin.runtime.control.messages import (
    DROPPED,
    NOWHERE,
    OK,
    SYSTEM_ERROR,
    Free,
    GiveBack,
    ObjectValue,
    RangeResult,
)
from raytwin.runtime.control.objects.eviction import Eviction
from raytwin.runtime.control.ownership.owner_table import NOBODY, Owners

start_of = attrgetter("start")


class Holdings(Owners):
    """The objects that are on one node, and who needs them there."""

    def __init__(
        self, ctx: Context, node: int, copied: Callable[[bytes, bytes, int], None]
    ) -> None:
        super().__init__()
        self._ctx = ctx
        self._node = node
        self._store = f"store:{node}"
        self._copied = copied
        self._results: dict[bytes, list[RangeResult]] = {}
        """By start."""
        self._runs: dict[bytes, RangeResult] = {}
        """Of calls that ended together: see `call_batches`. What is in here is not in there."""
        self._failed: set[bytes] = set()
        """Arrays with errors of the system among the results."""
        self._overlapping: set[bytes] = set()
        """Arrays of which some elements ran twice, so that results overlap."""
        self._ended_again: dict[bytes, RangeResult] = {}
        self._stored: dict[bytes, tuple[int, int]] = {}
        self._stored_of: dict[bytes, set[bytes]] = {}
        self._pins: dict[bytes, dict[str, int]] = {}
        self._doomed: set[bytes] = set()
        self._primary: dict[bytes, int] = {}
        """Of copies: the living node that has the primary."""
        self._dropped: set[bytes] = set()
        """Copies that had to make room; they can be fetched again."""
        self._dead: set[int] = set()
        self.eviction = Eviction(
            ctx,
            node,
            lambda oid: self._stored[oid][0],
            self._leave,
            self._primary.__contains__,
            self._pins.__contains__,
            self._ask_back,
        )

    def lookup(self, oid: bytes) -> ObjectValue | None:
        """Return the object as it is here, or None."""
        place = self._stored.get(oid)
        if place is not None:
            return ObjectValue(oid, OK, b"", 0, place[0], place[1])
        array, index, ret = split_object_id(oid)
        result = self._result(array, index)
        if result is None:
            return None
        if result.status != OK:
            return ObjectValue(oid, result.status, result.payload)
        if result.sizes and result.sizes[ret] > 0:
            return None
        position = result.position + (index - result.start) * result.returns + ret
        return ObjectValue(oid, OK, result.payload, position)

    def outdoes(self, result: RangeResult) -> bool:
        """Whether a result is an error instead of values that are there.

        A range may run twice, when its node dies after it has sent the result, or when its
        parent runs twice: then what it needs may be gone the second time.
        """
        if result.status == OK or self._results_of(result.array) is None:
            return False
        for index in range(result.start, end_of(result)):
            made = self._result(result.array, index)
            if made is None or made.status == SYSTEM_ERROR:
                return False
            if any(made.sizes) and self._is_gone(made):
                return False
        return True

    def has_small(self, result: RangeResult) -> bool:
        """Whether small values of all of a result's elements are here, which nobody can lose."""
        ends = (self._result(result.array, i) for i in range(result.start, end_of(result)))
        return all(end is not None and end.status == OK and not any(end.sizes) for end in ends)

    def has_failed(self, result: RangeResult) -> bool:
        """Whether errors of the system stand for all of a result: what was told first, stays."""
        if result.array not in self._failed:
            return False
        ends = (self._result(result.array, i) for i in range(result.start, end_of(result)))
        return all(end is not None and end.status == SYSTEM_ERROR for end in ends)

    def drop_failed(self, failed: RangeResult) -> None:
        """Forget an error of the system: what it is of is made again."""
        results = self._results.get(failed.array, [])
        if failed in results:
            results.remove(failed)
            if not results:
                del self._results[failed.array]
        self._failed.discard(failed.array)

    @staticmethod
    def _outdate(results: list[RangeResult], newer: RangeResult) -> int:
        """Forget where the large values were that came again; return the newer one's place.

        They were lost, or came twice: what is here of them stays.
        """
        low = bisect_left(results, newer.start, key=start_of)
        high = bisect_left(results, end_of(newer), key=start_of)
        # A result with large values is of one element, so each of these is covered.
        results[low:high] = [r for r in results[low:high] if not any(r.sizes)]
        return bisect_right(results, newer.start, key=start_of)

    def usage(self) -> tuple[int, int]:
        """Return how many large objects are in memory here, and their bytes together."""
        return len(self._stored), self.eviction.stored_bytes

    def have_left(self, oids: Sequence[bytes]) -> list[bytes]:
        """Return which objects were here, had to make room and can be brought back."""
        return [
            oid
            for oid in oids
            if (oid in self.eviction.on_disk or oid in self._dropped) and self.lookup(oid) is None
        ]

    def has_array(self, array: bytes) -> bool:
        """Whether anything of the array is here."""
        return array in self._results or array in self._runs or array in self._stored_of

    def has_end(self, array: bytes) -> bool:
        """Whether a call's own result is here; the items of its stream do not count."""
        return self._result(array, 0) is not None

    def result_of(self, oid: bytes) -> RangeResult | None:
        """Return the range that a small object is part of, if it is here."""
        array, index, ret = split_object_id(oid)
        result = self._result(array, index)
        if result is None or (result.status == OK and result.sizes and result.sizes[ret] > 0):
            return None
        return result

    def has_item(self, item: RangeResult) -> bool:
        """Whether this item of a stream is here already, or known."""
        return self._result(item.array, item.start) is not None

    def _result(self, array: bytes, index: int) -> RangeResult | None:
        results = self._results_of(array)
        if results is None:
            return None
        at = bisect_right(results, index, key=start_of)
        for result in reversed(results[0 if array in self._overlapping else max(at - 1, 0) : at]):
            if index < end_of(result):
                return result
        return None

    def results_of(self, array: bytes) -> list[RangeResult]:
        """Return all that is known to be made of an array."""
        return list(self._results_of(array) or ())

    def _results_of(self, array: bytes) -> list[RangeResult] | None:
        results = self._results.get(array)
        if results is None and array in self._runs:
            # Few are asked for here: its owner has it.
            run = self._runs.pop(array)
            result = result_of(run, split(run.calls).index(array), array)
            results = self._results[array] = [result]
        return results

    def ended_again(self, result: RangeResult) -> None:
        """A task whose value is known has run again, and ended with this error."""
        self._ended_again[result.array] = result

    def end_instead_of(self, oid: bytes) -> RangeResult | None:
        """Return the error that a stream's task has ended with here, if an item is lost by it."""
        array, index, _ = split_object_id(oid)
        if index < STREAM_BASE:
            return None
        ends = [self._ended_again[array]] if array in self._ended_again else self.results_of(array)
        for end in reversed(ends):
            # An error of the system is the task's end, one of its own its last item.
            if end.status != OK and (end.start == 0 or end.start < index):
                return RangeResult(array, index, 1, end.status, end.payload, self._node)
        return None

    def _is_gone(self, result: RangeResult) -> bool:
        """Whether the node has died that made large values, and another may have them."""
        return result.node == NOWHERE or result.node in self._dead

    def will_tell(self, array: bytes) -> bool:
        """Whether results of an array are still to come, or are where somebody can find them.

        Of large values the node tells that has them.
        """
        ends = self._results.get(array, ())
        return array in self.owners and not any(
            self._is_gone(end) or (end.node != self._node and any(end.sizes)) for end in ends
        )

    def has_died(self, array: bytes) -> bool:
        """Whether an array of a client here was made, as its owner knows, on a dead node."""
        ends = self._results.get(array, ())
        return array in self.owners and any(any(e.sizes) and self._is_gone(e) for e in ends)

    def kept_of(self, array: bytes) -> tuple[int, ...]:
        """Return the sizes of a call's values if some are large and gone, and small ones here.

        Else nothing.
        """
        end = self._result(array, 0)
        if end is None or not any(end.sizes) or all(end.sizes) or not self._is_gone(end):
            return ()
        return end.sizes

    def bytes_here(self, oid: bytes) -> int:
        """Return the size of an object in this node's arena, 0 if it is not there."""
        return self._stored.get(oid, (0, 0))[1]

    def _keep(self, array: bytes, oid: bytes, offset: int, size: int) -> None:
        if oid in self._doomed:
            # Released, still pinned, and made again: what is here will do.
            self._doomed.discard(oid)
            self._stored_of.setdefault(array, set()).add(oid)
        if oid in self._stored:
            # The same object came twice (a task ran again): one copy is enough.
            if self._stored[oid][0] != offset:
                self._ctx.send(self._store, Free(oid, offset))
            return
        self._stored[oid] = (offset, size)
        self._stored_of.setdefault(array, set()).add(oid)
        self._dropped.discard(oid)
        self.eviction.kept(oid, size)

    # -- pins, and what leaves ----------------------------------------------------

    def pin(self, oid: bytes, client: str) -> None:
        """A client was given the place of a large object."""
        pins = self._pins.setdefault(oid, {})
        pins[client] = pins.get(client, 0) + 1
        self.eviction.busy(oid)

    def unpin(self, oid: bytes, client: str) -> None:
        """The client has no view of it any more."""
        pins = self._pins.get(oid)
        if pins is None or client not in pins:
            return
        pins[client] -= 1
        if pins[client] == 0:
            del pins[client]
        if not pins:
            del self._pins[oid]
            if oid in self._doomed:
                self._free(oid)
            else:
                self.eviction.idle(oid)

    def drop_client(self, client: str) -> list[bytes]:
        """Forget a client's pins; return the arrays it owned."""
        for oid in [o for o, pins in self._pins.items() if client in pins]:
            self._pins[oid][client] = 1
            self.unpin(oid, client)
        if client not in self._owned:
            return []  # as of most: no need to look through all arrays
        owned = [array for array, owner in self.owners.items() if owner == client]
        return owned + [array for array, others in self.others.items() if client in others]

    def _forget(self, array: bytes) -> None:
        """Nobody owns an array any more, and its results are not asked for."""
        owner = self.owners.pop(array, None)
        if owner is not None:
            self._disown(owner)
        if self.others:
            for other in self.others.pop(array, ()):
                self._disown(other)
        if self._results.pop(array, None) is None:
            self._runs.pop(array, None)
        if self._failed:
            self._failed.discard(array)
        if self._ended_again:
            self._ended_again.pop(array, None)
        if self._overlapping:
            self._overlapping.discard(array)

    def disown(self, array: bytes) -> None:
        """Nobody here owns an array any more; its values stay for who does."""
        self._disown(self.owners.pop(array))

    def _free_array(self, array: bytes) -> None:
        """Free every object of an array, pinned ones when their pins are gone."""
        for oid in self._stored_of.pop(array, ()):
            self._primary.pop(oid, None)
            self._dropped.discard(oid)
            self.eviction.release(oid)
            if oid in self._pins:
                self._doomed.add(oid)
            elif oid in self._stored:
                self._free(oid)

    def _free(self, oid: bytes) -> None:
        self._doomed.discard(oid)
        offset, _ = self._stored.pop(oid)
        self.eviction.gone(oid)
        self._ctx.send(self._store, Free(oid, offset))

    def _leave(self, oid: bytes) -> None:
        """Give up an object's memory: it is on disk, or its primary elsewhere."""
        if oid not in self.eviction.on_disk:
            del self._primary[oid]
            self._dropped.add(oid)
            self._copied(split_object_id(oid)[0], oid, DROPPED)
        self._free(oid)

    def _ask_back(self) -> None:
        clients = {client for pins in self._pins.values() for client in pins}
        for client in sorted(clients | (self._owned.keys() - {NOBODY})):
            self._ctx.send(client, GiveBack())


def end_of(result: RangeResult) -> int:
    """Return the element behind the last one of a range."""
    return result.start + result.count
