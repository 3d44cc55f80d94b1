"""Makes a loop of `wait` fast that takes one ready reference after the other from a list.

    left = [f.remote(x) for x in many]
    while left:
        ready, left = ray.wait(left)

Each of these calls gets the list that the call before has returned. To check the
list and to look each value up would cost a pass over it in Python every time. A
`WaitGroup` remembers the list instead:

    made ──> KEPT by its session ──the same list──> in use
              │   ↑                                   │
              │   └────── the references left ───────┘
              └─ dissolved: another list is waited for, or the program has dropped this one

The client notes each completion once (`Waiter.arrived`). A heap has the positions that are ready,
so the first of them in order costs O(log n). Two passes in C remain O(n): comparing the list and
copying it.

The group has references of its own, which must not outlive the program's: the session
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
"""The shortest list of a group; to look through a shorter one costs less than to remember it."""
_ABANDONED_REFCOUNT = 2
"""Python's reference count of a list that only its group has: the group's, and the query's."""


class WaitGroup:
    """The references of a `wait`, in order, and which of them are ready."""

    __slots__ = ("_client", "_index", "_order", "_ready", "_refs", "_returned", "waiter")

    def __init__(self, client: Client, refs: Sequence[ObjectRef], fetch: bool) -> None:
        """Watch `refs`, which differ; in a turn, as every method here."""
        self._client = client
        self._refs = list(refs)
        self._order = list(range(len(refs)))
        """A number for each reference, ascending."""
        self._index = {ref.binary(): number for number, ref in enumerate(refs)}
        """The numbers by ID."""
        self._returned: list[ObjectRef] | None = None
        self.waiter = Waiter(fetch)
        self.waiter.arrived = []
        self._ready = [
            self._index[oid] for oid in client.waits.watch_more(self._index, self.waiter)
        ]
        """A heap of the numbers of the references that are ready."""

    def __len__(self) -> int:
        return len(self._refs)

    def accepts(self, refs: list[ObjectRef], fetch: bool) -> bool:
        """Whether `refs` are the references that the group returned last."""
        return fetch is self.waiter.fetch and self._refs == refs

    def ready(self) -> int:
        """Return the number of references that are ready."""
        arrived = self.waiter.arrived
        if arrived:
            for oid in arrived:
                heappush(self._ready, self._index[oid])
            arrived.clear()
        return len(self._ready)

    def take(self, count: int) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Return (the first `count` ready references, all others), in order; keep the others."""
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
        """Whether the program has dropped the list that `take` returned last."""
        returned = self._returned
        # The local name is one more reference.
        return returned is None or sys.getrefcount(returned) <= _ABANDONED_REFCOUNT + 1

    def dissolve(self) -> None:
        """Stop watching the references that are not ready."""
        self.ready()
        numbers = set(self._ready)
        left = [oid for oid, number in self._index.items() if number not in numbers]
        self._client.waits.unwatch(left, self.waiter)
