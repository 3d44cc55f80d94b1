"""The owner of each array on a node: the client that submitted or put it.

An array has one owner, unless the task that submits it runs twice at the same time. The arrays of
a dead worker whose task or actor runs again belong to `NOBODY` until that run takes them over.
Most arrays are one task, submitted at once, whose owner lives. For the others the table has::

    SubmitTasks ──> `ends`: the element up to which the array was submitted, in order
                ──> `actors`: the array is an actor that ends with its owner
    WorkerDied ───> `died`: the owner died, and the array awaits a claim, or was claimed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raytwin.runtime.control.core.ids import job_of

NOBODY = ""
"""Owns the arrays of a dead worker that its task or actor may claim, see `release_manager`."""


class OwnerTable(dict[bytes, str]):
    """The owner of each array that a client of one node owns."""

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[bytes, list[str]] = {}
        """Further owners of some arrays."""
        self._counts: dict[str, int] = {}
        """By client: the number of arrays that it owns."""
        self.actors: set[bytes] = set()
        """Actors that are not detached."""
        self.died: dict[bytes, str] = {}
        """Arrays whose owner has died: the address of that worker."""
        self.ends: dict[bytes, int] = {}
        """By array of several elements: the element up to which it was submitted, in order."""

    def own(self, array: bytes, client: str) -> None:
        """Record that a client of this node submits or puts the array.

        The first client is the owner. A second one owns it, too, if the task that submits the
        array runs twice at once.
        """
        owner = self.get(array)
        if owner == client or (self.others and client in self.others.get(array, ())):
            return
        self._counts[client] = self._counts.get(client, 0) + 1
        if owner is None or owner == NOBODY:
            if owner is not None:
                self._count_off(owner)
            self[array] = client
        else:
            self.others.setdefault(array, []).append(client)

    def own_all(self, arrays: Sequence[bytes], client: str) -> bool:
        """Own arrays that have no owner and return True; else do nothing."""
        if not self.keys().isdisjoint(arrays):
            return False
        self.update(dict.fromkeys(arrays, client))
        self._counts[client] = self._counts.get(client, 0) + len(arrays)
        return True

    def owners_of(self, array: bytes) -> list[str]:
        """Return the clients of this node that own the array."""
        owner = self.get(array, NOBODY)
        owners = [owner] if owner != NOBODY else []
        return owners + self.others[array] if array in self.others else owners

    def release(self, array: bytes, client: str) -> bool:
        """Take a client off an array's owners; return whether it is the only one.

        The only owner stays in the table until `forget`.
        """
        others = self.others.get(array)
        if others is None:
            return True
        if client in others:
            others.remove(client)
        elif client == self[array]:
            self[array] = others.pop(0)
        else:
            return False
        if not others:
            del self.others[array]
        self._count_off(client)
        return False

    def forget(self, arrays: Sequence[bytes]) -> None:
        """Forget the owners of arrays."""
        for owner, count in Counter([self.pop(array, None) for array in arrays]).items():
            if owner is not None:
                self._count_off(owner, count)
        if self.others:
            for array in arrays:
                for other in self.others.pop(array, ()):
                    self._count_off(other)

    def end_job(self, job: bytes) -> None:
        """Forget which owners of a job that ended have died."""
        for array in [array for array in self.died if job_of(array) == job]:
            del self.died[array]

    def await_claim(self, array: bytes) -> None:
        """Leave a dead owner's array to the next client that submits or puts it."""
        self._count_off(self[array])
        self._counts[NOBODY] = self._counts.get(NOBODY, 0) + 1
        self[array] = NOBODY

    def _count_off(self, client: str, count: int = 1) -> None:
        self._counts[client] -= count
        if not self._counts[client]:
            del self._counts[client]

    def arrays_of(self, client: str) -> list[bytes]:
        """Return the arrays that a client owns, alone or with others."""
        if client not in self._counts:
            return []  # most clients: the table need not be searched
        owned = [array for array, owner in self.items() if owner == client]
        return owned + [array for array, others in self.others.items() if client in others]

    def clients(self) -> list[str]:
        """Return the clients that own anything."""
        return sorted(self._counts.keys() - {NOBODY})

    def owns(self, client: str) -> bool:
        """Whether a client owns anything."""
        return client in self._counts
