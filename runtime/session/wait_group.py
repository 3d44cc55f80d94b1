"""Makes a loop of `wait` fast that takes one ready reference after the other from a list.

    left = [f.remote(x) for x in many]
    while left:
        ready, left = ray.wait(left)

Each of these calls is given the list that the one before has returned. To check
it, to ask for each of its values and to look through them would cost a pass over
the list in Python every time. A `WaitGroup` remembers it instead:

    made ──> KEPT by its session ──the same list──> in use
              │   ↑                                   │
              │   └────── the references left ───────┘
              └─ dissolved: another list is waited for, or the program has dropped this one

Each completion is noted once (`Waiter.arrived`). A heap has the positions that are ready, so
the first of them in order costs O(log n). What is O(n) is two passes in C: comparing the list
and copying it.

The group has references of its own, which must not outlive the program's: a session
dissolves a group whose returned list the program has dropped.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.owned_arrays import Waiter

KEPT_MIN = 16
"""Shorter lists are cheaper to look through than to remember."""
_OURS_ALONE = 2
"""References to a list that only its group has: the group's, and the call's that counts."""


class WaitGroup:
    """References that are waited for, in order, and which of them are ready."""

    __slots__ = ("_client", "_index", "_order", "_ready", "_refs", "_returned", "waiter")

    def __init__(self, client: Client, refs: Sequence[ObjectRef], fetch: bool) -> None:
        """Watch `refs`, which differ. Call it in a turn, as every method here."""
        self._client = client
        self._refs = list(refs)
        self._order = list(range(len(refs)))
        """A number for each of them, ascending."""
        self._index = {ref.binary(): number for number, ref in enumerate(refs)}
        """The numbers by ID."""
        self._returned: list[ObjectRef] | None = None
        self.waiter = Waiter(fetch)
        self.waiter.arrived = []
        self._ready = [
            self._index[oid] for oid in client.waits.watch_more(self._index, self.waiter)
        ]
        """A heap of the numbers of those that are ready."""

    def __len__(self) -> int:
        return len(self._refs)

    def accepts(self, refs: list[ObjectRef], fetch: bool) -> bool:
        """Whether `refs` are the references that the group returned last."""
        return fetch is self.waiter.fetch and self._refs == refs

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
        """Whether the program has dropped the list that it was given last."""
        returned = self._returned
        # One more for the name above.
        return returned is None or sys.getrefcount(returned) <= _OURS_ALONE + 1

    def dissolve(self) -> None:
        """Stop watching the references that are not ready."""
        self.ready()
        numbers = set(self._ready)
        left = [oid for oid, number in self._index.items() if number not in numbers]
        self._client.waits.unwatch(left, self.waiter)
