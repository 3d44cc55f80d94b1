"""Who else has references to one array: the owner's book, and the names in it.

A **client** is entered under a number, the *epoch*: each time it begins to borrow an
array it takes a new, higher one. Additions say (client, epoch) and may come twice, late,
or from several who know of it; a return says "all up to this epoch" and stays in the
book, so that it may overtake the addition that it belongs to.

A **node** that keeps values with references inside is entered once per value, so its
count may be below zero for a moment, when a removal has overtaken an addition: then it
is not zero, and holds. So does a value **on its way** from one node to another.

Names of nodes have the incarnation in them, as clients' do: what a node's former life
had is struck off when that ends, and nothing of it can be mixed up with the next one's.
"""

from __future__ import annotations

from functools import lru_cache

from raytwin.runtime.control.core.addresses import WORKERS_PER_LIFE, incarnation_of, node_of

PINNED = ""
"""Stands in a book for whoever may have the bytes of a reference."""
_WAY = ">"

Update = tuple[bytes, str, int, int]
"""(array, borrower, epoch or 0 for a node, what to do: `ENTER` or another)."""
ENTER = 1
STRIKE = -1
ENTER_AND_SAY_SO = 2
"""Only for clients: the owner answers with `ENTERED`."""
ENTERED = 0
GONE = 3
"""Of a client and no array: it has died, and has nothing any more."""


@lru_cache(maxsize=4096)
def keeper_of(client: str) -> str:
    """Return by which name the node of a client, in this incarnation, borrows.

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
    """Return whose lives a name depends on: one, or giver and receiver; none for `PINNED`."""
    return borrower.split(_WAY) if borrower else []


class Book:
    """Who else has references to one array; false if nobody has."""

    __slots__ = ("has", "returned")

    def __init__(self) -> None:
        self.has: dict[str, int] = {}
        """Clients by their epoch, nodes by how many values of theirs it is in."""
        self.returned: dict[str, int] = {}
        """Clients by the epoch up to which they have returned it."""

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
