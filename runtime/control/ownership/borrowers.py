"""The borrowers of one array, as its owner knows them, and their names.

A **client** is entered under a number, the *epoch*: each time that it begins to borrow an array
it takes a new, higher one. An addition names (client, epoch) and may come twice, late, or from
several processes; a return says "all up to this epoch" and is remembered, so that it may
overtake the addition that it belongs to.

A **node** that keeps values with references inside is entered once per value. Its count may be
below zero for a moment, when a removal has overtaken an addition: not being zero, it still keeps
the array. So does a value **on its way** from one node to another.

Names of nodes contain the incarnation, as clients' addresses do: the owner strikes off a former
incarnation without touching the next one.
"""

from __future__ import annotations

from functools import lru_cache

from raytwin.runtime.control.core.addresses import WORKERS_PER_LIFE, incarnation_of, node_of

PINNED = ""
"""The borrower of an array whose reference was pickled: the bytes may be anywhere."""
_WAY = ">"

Update = tuple[bytes, str, int, int]
"""(array, borrower, epoch or 0 for a node, what to do: `ENTER` or another)."""
ENTER = 1
STRIKE = -1
ENTER_AND_SAY_SO = 2
"""Only for clients: the owner answers with `ENTERED`."""
ENTERED = 0
GONE = 3
"""Of a client and no array: it has died, and has returned everything."""


@lru_cache(maxsize=4096)
def keeper_of(client: str) -> str:
    """Return the name under which a client's node borrows, in its incarnation.

    >>> keeper_of("worker:3.7"), keeper_of("worker:3.1000007")
    ('node:3.0', 'node:3.1000000')
    """
    return f"node:{node_of(client)}.{(incarnation_of(client) - 1) * WORKERS_PER_LIFE}"


def on_its_way(giver: str, receiver: str) -> str:
    """Return the name of a value that one node sends to another.

    >>> ends_of(on_its_way("node:3.0", "node:0.0"))
    ['node:3.0', 'node:0.0']
    """
    return giver + _WAY + receiver


def ends_of(borrower: str) -> list[str]:
    """Return the processes of a borrower: itself, or giver and receiver; none for `PINNED`."""
    return borrower.split(_WAY) if borrower else []


class Borrowers:
    """The borrowers of one array; false if there are none."""

    __slots__ = ("has", "returned")

    def __init__(self) -> None:
        self.has: dict[str, int] = {}
        """Clients by their epoch, nodes by how many of their values contain a reference."""
        self.returned: dict[str, int] = {}
        """Clients by the epoch up to which they have returned the array."""

    def __bool__(self) -> bool:
        return bool(self.has)

    def enter(self, borrower: str, epoch: int, delta: int) -> None:
        """Add or strike off a borrower."""
        has = self.has
        if not epoch:
            count = has.get(borrower, 0) + delta
            if count:
                has[borrower] = count
            else:
                del has[borrower]
        elif delta > 0:
            if epoch > self.returned.get(borrower, 0):
                has[borrower] = max(epoch, has.get(borrower, 0))
        else:
            self.returned[borrower] = max(epoch, self.returned.get(borrower, 0))
            if has.get(borrower, epoch + 1) <= epoch:
                del has[borrower]
