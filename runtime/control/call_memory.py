"""The last results of a node's actors, for callers that lost the answer or run again.

A call that comes a second time is answered with the result that it had, instead of
taking effect twice. Nobody says when he will not ask again, so this is bounded: by
`REMEMBERED_BYTES` for all actors of the node together, oldest first.

What an actor did in an earlier incarnation here does not count: whether it took
effect is for the GCS to say.
"""

from __future__ import annotations

from collections import OrderedDict

from runtime.control.messages import RangeResult
from runtime.control.pieces import ITEM_BYTES

REMEMBERED_BYTES = 32 << 20
"""Some 30,000 small results, or 300 of 100 KB."""


class CallMemory:
    """Results by call; an entry is the incarnation's and goes when it is the oldest."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES) -> None:
        # A plain dictionary would look at all that it has forgotten to find the oldest.
        self._results: OrderedDict[bytes, tuple[bytes, int, RangeResult]] = OrderedDict()
        self._bytes_max = bytes_max
        self.nbytes = 0

    def keep(self, actor: bytes, incarnation: int, result: RangeResult) -> None:
        """Remember what became of a call."""
        self._drop(self._results.pop(result.array, None))
        self._results[result.array] = (actor, incarnation, result)
        self.nbytes += ITEM_BYTES + len(result.payload)
        while self.nbytes > self._bytes_max:
            self._drop(self._results.popitem(last=False)[1])

    def find(self, actor: bytes, incarnation: int, call: bytes) -> RangeResult | None:
        """Return what became of a call that this incarnation has run, if it is known."""
        found = self._results.get(call)
        if found is None or found[:2] != (actor, incarnation):
            return None
        return found[2]

    def _drop(self, entry: tuple[bytes, int, RangeResult] | None) -> None:
        if entry is not None:
            self.nbytes -= ITEM_BYTES + len(entry[2].payload)
