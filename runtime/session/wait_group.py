"""The list that a program waits for again and again, one ready reference after the other.

    left = [f.remote(x) for x in many]
    while left:
        ready, left = ray.wait(left)

Each of these calls is given the list that the one before has returned. To check
it, to ask for each of its values and to look through them would cost a pass over
the list in Python every time. A `WaitGroup` remembers it instead:

    made ──> KEPT by its session ──the same list, maybe with more at its end──> in use
              │   ↑                                                               │
              │   └──────────────────── the references left ─────────────────────┘
              └─ dissolved: another list is waited for, or the program has let go

It is told of each completion once (`Waiter.arrived`), and keeps the positions that
are ready in a heap, so the first of them in order costs O(log n). What is O(n) is
two passes in C: comparing the list and copying it.

The group has references of its own, which must not outlive the program's: a
session lets go of a group whose returned list nobody else has.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush

from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.owned_arrays import Waiter

KEPT_MIN = 16
"""Shorter lists are cheaper to look through than to remember."""
_OURS_ALONE = 2
"""References to a list that only its group has: the group's, and the call's that counts."""


class WaitGroup:
    """References that are waited for, in order, and which of them are ready."""

    __slots__ = ("_client", "_index", "_next", "_order", "_ready", "_refs", "_returned", "waiter")

    def __init__(self, client: Client, refs: Sequence[ObjectRef], fetch: bool) -> None:
        """Watch `refs`, which differ. Call it in a turn, as every method here."""
        self._client = client
        self._refs: list[ObjectRef] = []
        self._order: list[int] = []
        """A number for each of them, ascending."""
        self._index: dict[bytes, int] = {}
        """Those numbers by ID."""
        self._ready: list[int] = []
        """A heap of the numbers of those that are ready."""
        self._next = 0
        self._returned: list[ObjectRef] | None = None
        self.waiter = Waiter(fetch)
        self.waiter.arrived = []
        self._add(refs)

    def __len__(self) -> int:
        return len(self._refs)

    def _add(self, refs: Sequence[ObjectRef]) -> None:
        oids = [ref.binary() for ref in refs]
        numbers = range(self._next, self._next + len(refs))
        self._next += len(refs)
        self._refs += refs
        self._order += numbers
        self._index.update(zip(oids, numbers, strict=True))
        for oid in self._client.waits.watch_more(oids, self.waiter):
            heappush(self._ready, self._index[oid])

    def accepts(self, refs: list[ObjectRef], fetch: bool) -> bool:
        """Whether `refs` are these, with more behind them perhaps; takes those in.

        Anything else than a list of references that differ is not accepted.
        """
        mine = self._refs
        if len(refs) < len(mine) or (fetch and not self.waiter.fetch):
            return False
        if len(refs) == len(mine):
            if mine != refs:
                return False
            if not fetch and self.waiter.fetch:
                self._stop_fetching()
            return True
        if fetch is not self.waiter.fetch:
            return False
        more = refs[len(mine) :]
        if len(more) > len(mine) or mine != refs[: len(mine)]:
            return False
        if any(type(ref) is not ObjectRef or ref.closed for ref in more):
            return False
        oids = {ref.binary() for ref in more}
        if len(oids) < len(more) or not oids.isdisjoint(self._index):
            return False
        self._add(more)
        return True

    def _stop_fetching(self) -> None:
        """From now on values need not be brought here: what exists is ready."""
        self.waiter.fetch = False
        self.ready()
        for oid in self._client.waits.unfetched(self._index, self.waiter):
            heappush(self._ready, self._index[oid])

    def ready(self) -> int:
        """Return how many are ready."""
        arrived = self.waiter.arrived
        if arrived:
            for oid in arrived:
                heappush(self._ready, self._index[oid])
            arrived.clear()
        return len(self._ready)

    def take(self, count: int) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Return (the first `count` that are ready, all others), in order; keep the others."""
        refs, order = self._refs, self._order
        taken: list[ObjectRef] = []
        for _ in range(min(count, len(self._ready))):
            at = bisect_left(order, heappop(self._ready))
            ref = refs.pop(at)
            del order[at], self._index[ref.binary()]
            taken.append(ref)
        self._returned = refs.copy()
        return taken, self._returned

    def abandoned(self) -> bool:
        """Whether the program has let go of the list that it was given last."""
        returned = self._returned
        # One more for the name above.
        return returned is None or sys.getrefcount(returned) <= _OURS_ALONE + 1

    def dissolve(self) -> None:
        """Stop watching what is not ready."""
        self.ready()
        numbers = set(self._ready)
        left = [oid for oid, number in self._index.items() if number not in numbers]
        self._client.waits.unwatch(left, self.waiter)
