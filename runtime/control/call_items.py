"""What calls of a node's actors have yielded, for callers that ask for it once more.

The items of a call go to its caller's node as they come, and small ones stay there alone. A
caller that runs again on another node has none of them, and its call does not run again. So
the actor's node remembers the items of calls that may come again, and hands over all there
are so far::

    given to the worker ──> items, one by one ──────> all of them, to who asks once more
                              └─ `REMEMBERED_BYTES` ─> ObjectLostError, for want of these
                                 are full: the oldest call's go, whether it has ended or not

As with results (`call_memory`) they are of one incarnation. The next one yields them anew
where it repeats the call; of a call before its checkpoint the items are lost.

A driver's calls come again after their actor has started anew, and at no other time: their
items are remembered where the call is repeated for that.
"""

from __future__ import annotations

from collections import OrderedDict

from runtime.control.call_memory import REMEMBERED_BYTES
from runtime.control.messages import RangeResult
from runtime.control.pieces import ITEM_BYTES

Key = tuple[bytes, int, bytes]
"""Actor, incarnation, call."""


class CallItems:
    """Items by call, those of the call that began first dropped first."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES) -> None:
        self._of: OrderedDict[Key, list[RangeResult]] = OrderedDict()
        self._bytes_max = bytes_max
        self.nbytes = 0

    def begin(self, key: Key) -> None:
        """A call is given to its worker, and has yielded nothing."""
        self._forget(key)
        self._of[key] = []
        self._make_room(ITEM_BYTES)

    def add(self, key: Key, item: RangeResult) -> None:
        """A call has yielded, in order; nothing if what came before is not known any more."""
        items = self._of.get(key)
        if items is not None:
            items.append(item)
            self._make_room(_item_bytes(item))

    def find(self, key: Key) -> list[RangeResult] | None:
        """Return all that a call has yielded so far; None if that is not known."""
        return self._of.get(key)

    def _make_room(self, nbytes: int) -> None:
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max:
            self._forget(next(iter(self._of)))

    def _forget(self, key: Key) -> None:
        items = self._of.pop(key, None)
        if items is not None:
            self.nbytes -= ITEM_BYTES + sum(map(_item_bytes, items))


def _item_bytes(item: RangeResult) -> int:
    return ITEM_BYTES + len(item.payload)
