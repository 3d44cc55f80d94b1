"""The last results of a node's actors, for callers that lost the answer or run again.

A call that comes a second time is answered with the result that it had, instead of
taking effect twice. Nobody says when he will not ask again, so this is bounded, for all
actors of the node together::

    result ──`REMEMBERED_BYTES` are full──> its call's ID alone ──`IDS_BYTES` are──> nothing
             oldest first, and of those above
             `LIGHT_BYTES` if they take half

A call of which only the ID is left took effect, and does not once more: who asks for its
result hears that it is lost.

What an actor did in an earlier incarnation here does not count: whether it took
effect is for the GCS to say.

A driver's calls are not remembered (`comes_once`): its program does not run again, and
its node sends a call once to each incarnation.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from runtime.control.call_runs import result_of, split
from runtime.control.messages import RangeResult
from runtime.control.pieces import ITEM_BYTES

REMEMBERED_BYTES = 32 << 20
"""Some 60,000 small results, or 300 of 100 KB."""
LIGHT_BYTES = 1000
"""Results up to this make no room for longer ones while these take half of it all."""
IDS_BYTES = 64 << 20
ID_BYTES = 200
"""Of an ID in tables, with Python's share: there is room for some 330,000."""


def comes_once(owner: str) -> bool:
    """Whether a call of this client comes no second time to an incarnation of its actor.

    >>> comes_once("driver:0.0"), comes_once("worker:0.1")
    (True, False)
    """
    return owner.startswith("driver:")


_Entry = tuple[bytes, int, RangeResult | None]
"""Actor, incarnation, and what became of the call, or of the calls; None: not known any more."""
_Kept = tuple[_Entry, Sequence[bytes], int]
"""What was kept together: all its calls, and bytes."""


class CallMemory:
    """Results by call; an entry is the incarnation's and goes when it is the oldest."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES, ids_bytes_max: int = IDS_BYTES) -> None:
        self._found: dict[bytes, _Entry] = {}
        # Plain dictionaries would look at all that they have forgotten to find the oldest.
        self._light: OrderedDict[bytes, _Kept] = OrderedDict()
        """By the first call, oldest first."""
        self._heavy: OrderedDict[bytes, _Kept] = OrderedDict()
        """The same of results that are longer than `LIGHT_BYTES` a call."""
        self._ids: deque[tuple[_Entry, Sequence[bytes]]] = deque()
        """Calls whose results had to go, oldest first."""
        self._bytes_max = bytes_max
        self._ids_bytes_max = ids_bytes_max
        self.nbytes = 0
        self._heavy_bytes = 0
        self.ids_bytes = 0

    def keep(
        self, actor: bytes, incarnation: int, result: RangeResult, calls: Sequence[bytes] = ()
    ) -> None:
        """Remember what became of a call, or of the `calls` that a run of results is of."""
        calls = calls or (result.array,)
        for order in (self._light, self._heavy):
            if result.array in order:
                self._drop(*order.pop(result.array))
        entry = (actor, incarnation, result)
        nbytes = ITEM_BYTES * len(calls) + len(result.payload)
        self._found.update(dict.fromkeys(calls, entry))
        if _is_heavy(result, calls):
            self._heavy[result.array] = (entry, calls, nbytes)
            self._heavy_bytes += nbytes
        else:
            self._light[result.array] = (entry, calls, nbytes)
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max:
            most = self._heavy_bytes > self._bytes_max // 2 or not self._light
            _, oldest = (self._heavy if most else self._light).popitem(last=False)
            self._drop(*oldest, to_id=True)

    def knows_any(self, calls: Sequence[bytes]) -> bool:
        """Whether any of these calls may have run here."""
        return not self._found.keys().isdisjoint(calls)

    def find(self, actor: bytes, incarnation: int, call: bytes) -> RangeResult | None:
        """Return what became of a call that this incarnation has run, if it is known."""
        found = self._found.get(call)
        if found is None or found[:2] != (actor, incarnation):
            return None
        result = found[2]
        if result is not None and result.calls:
            return result_of(result, split(result.calls).index(call), call)
        return result

    def has_run(self, actor: bytes, incarnation: int, call: bytes) -> bool:
        """Whether this incarnation has run a call, as far as is known, whatever became of it."""
        found = self._found.get(call)
        return found is not None and found[:2] == (actor, incarnation)

    def _drop(
        self, entry: _Entry, calls: Sequence[bytes], nbytes: int, to_id: bool = False
    ) -> None:
        actor, incarnation, result = entry
        assert result is not None
        self.nbytes -= nbytes
        if _is_heavy(result, calls):
            self._heavy_bytes -= nbytes
        # Else another incarnation has run it too.
        calls = [call for call in calls if self._found.get(call) is entry]
        if not to_id:
            for call in calls:
                del self._found[call]
            return
        effect = (actor, incarnation, None)
        self._found.update(dict.fromkeys(calls, effect))
        self._ids.append((effect, calls))
        self.ids_bytes += ID_BYTES * len(calls)
        while self.ids_bytes > self._ids_bytes_max:
            oldest, gone = self._ids.popleft()
            self.ids_bytes -= ID_BYTES * len(gone)
            for call in gone:
                if self._found.get(call) is oldest:
                    del self._found[call]


def _is_heavy(result: RangeResult, calls: Sequence[bytes]) -> bool:
    return len(result.payload) > LIGHT_BYTES * len(calls)
