"""The last results of a node's actors, for callers that lost the answer or run again.

A call that comes a second time is answered with the result that it had, instead of
taking effect twice. Nobody says when he will not ask again, so this is bounded: by
`REMEMBERED_BYTES` for all actors of the node together, oldest first.

What an actor did in an earlier incarnation here does not count: whether it took
effect is for the GCS to say.

A driver's calls are not remembered (`comes_once`): its program does not run again, and
its node sends a call once to each incarnation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from runtime.control.call_runs import result_of, split
from runtime.control.messages import RangeResult
from runtime.control.pieces import ITEM_BYTES

REMEMBERED_BYTES = 32 << 20
"""Some 30,000 small results, or 300 of 100 KB."""


def comes_once(owner: str) -> bool:
    """Whether a call of this client comes no second time to an incarnation of its actor.

    >>> comes_once("driver:0.0"), comes_once("worker:0.1")
    (True, False)
    """
    return owner.startswith("driver:")


_Entry = tuple[bytes, int, RangeResult]
"""Actor, incarnation, and what became of the call, or of the calls."""


class CallMemory:
    """Results by call; an entry is the incarnation's and goes when it is the oldest."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES) -> None:
        self._found: dict[bytes, _Entry] = {}
        # A plain dictionary would look at all that it has forgotten to find the oldest.
        self._order: OrderedDict[bytes, tuple[_Entry, Sequence[bytes], int]] = OrderedDict()
        """What was kept together, oldest first, by its first call: all its calls, and bytes."""
        self._bytes_max = bytes_max
        self.nbytes = 0

    def keep(
        self, actor: bytes, incarnation: int, result: RangeResult, calls: Sequence[bytes] = ()
    ) -> None:
        """Remember what became of a call, or of the `calls` that a run of results is of."""
        calls = calls or (result.array,)
        if result.array in self._order:
            self._drop(*self._order.pop(result.array))
        entry = (actor, incarnation, result)
        nbytes = ITEM_BYTES * len(calls) + len(result.payload)
        self._found.update(dict.fromkeys(calls, entry))
        self._order[result.array] = (entry, calls, nbytes)
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max:
            self._drop(*self._order.popitem(last=False)[1])

    def knows_any(self, calls: Sequence[bytes]) -> bool:
        """Whether any of these calls may have run here."""
        return not self._found.keys().isdisjoint(calls)

    def find(self, actor: bytes, incarnation: int, call: bytes) -> RangeResult | None:
        """Return what became of a call that this incarnation has run, if it is known."""
        found = self._found.get(call)
        if found is None or found[:2] != (actor, incarnation):
            return None
        result = found[2]
        if result.calls:
            return result_of(result, split(result.calls).index(call), call)
        return result

    def _drop(self, entry: _Entry, calls: Sequence[bytes], nbytes: int) -> None:
        self.nbytes -= nbytes
        for call in calls:
            if self._found.get(call) is entry:  # else another incarnation has run it too
                del self._found[call]
