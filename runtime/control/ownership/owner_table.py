"""Which clients of a node own which arrays: who submitted or put them, and waits for them.

An array has one owner, unless the task that submits it runs twice at once. The arrays of
a dead worker whose task or actor runs again belong to `NOBODY` until that run claims them.
"""

from __future__ import annotations

from collections.abc import Sequence

NOBODY = ""
"""Owns the arrays of a dead worker that its task or actor may claim, see `owner_failure`."""


class Owners:
    """The arrays that clients of one node own."""

    def __init__(self) -> None:
        self.owners: dict[bytes, str] = {}
        """Arrays whose owner is a client of this node."""
        self.others: dict[bytes, list[str]] = {}
        """Further owners of some of them."""
        self._owned: dict[str, int] = {}
        """How many of them each client owns."""

    def own(self, array: bytes, client: str) -> None:
        """A client of this node submits or puts the array.

        It has one owner, unless the task that submits it runs twice at once.
        """
        owner = self.owners.get(array)
        if owner == client or (self.others and client in self.others.get(array, ())):
            return
        self._owned[client] = self._owned.get(client, 0) + 1
        if owner is None or owner == NOBODY:
            if owner is not None:
                self._disown(owner)
            self.owners[array] = client
        else:
            self.others.setdefault(array, []).append(client)

    def own_all(self, arrays: Sequence[bytes], client: str) -> bool:
        """Own arrays that nobody has owned; return whether that was so, else nothing is done."""
        if not self.owners.keys().isdisjoint(arrays):
            return False
        self.owners.update(dict.fromkeys(arrays, client))
        self._owned[client] = self._owned.get(client, 0) + len(arrays)
        return True

    def owners_of(self, array: bytes) -> list[str]:
        """Return the clients of this node that wait for the array's results."""
        owner = self.owners.get(array, NOBODY)
        return [*([owner] if owner != NOBODY else []), *self.others.get(array, ())]

    def let_go(self, array: bytes, client: str) -> bool:
        """An owner needs the array no more; return whether it was the only one."""
        others = self.others.get(array)
        if others is None:
            return True
        if client in others:
            others.remove(client)
        elif client == self.owners[array]:
            self.owners[array] = others.pop(0)
        else:
            return False
        if not others:
            del self.others[array]
        self._disown(client)
        return False

    def await_claim(self, array: bytes) -> None:
        """The array's owner has died: who submits or puts it again owns it."""
        self._disown(self.owners[array])
        self._owned[NOBODY] = self._owned.get(NOBODY, 0) + 1
        self.owners[array] = NOBODY

    def _disown(self, client: str, count: int = 1) -> None:
        self._owned[client] -= count
        if not self._owned[client]:
            del self._owned[client]

    def clients(self) -> list[str]:
        """Return the clients that own anything."""
        return sorted(self._owned.keys() - {NOBODY})

    def owns(self, client: str) -> bool:
        """Whether a client owns anything that is not released."""
        return client in self._owned
