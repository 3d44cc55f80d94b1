"""The GCS's bounded memory of arrays whose rows are gone, for messages that come late.

A message about an array may arrive after its owner has released it: the log entry of a
range, the result of an actor's call, a request for its location. This memory tells such a
message from one about an array that is new, and says why the object is lost.
"""

from __future__ import annotations

from functools import lru_cache

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.messages.errors import Loss, LossCause, Unmade

OWNER_DIED = Loss(LossCause.OWNER_DIED)
RELEASED = Loss(LossCause.RELEASED)
RELEASED_MAX = 65_536
"""How many released arrays are remembered, at most."""


@lru_cache(maxsize=1024)
def _dropped(owner: str, node: int, why: Loss) -> tuple[str, int, Loss]:
    """Return the record of a dropped row: one tuple for all that are alike.

    Few are different, and the rows are many: without it each would have a reason of its own.
    """
    return owner, node, why


class ReleasedArrays:
    """The arrays that were released last, with the reason that a `get` of one raises."""

    def __init__(self) -> None:
        self._dropped: BoundedMap[bytes, tuple[str, int, Loss]] = BoundedMap(RELEASED_MAX)
        """Dropped rows: last owner, if known, the node that released it, and the reason."""
        self._early: BoundedMap[bytes, int] = BoundedMap(RELEASED_MAX)
        """Arrays released before the GCS heard of them: the node that released each."""
        self._owner_died: BoundedMap[bytes, None] = BoundedMap(RELEASED_MAX)
        """Released arrays whose owner has died."""

    def __contains__(self, array: bytes) -> bool:
        return array in self._dropped or array in self._early

    def drop(self, array: bytes, owner: str, node: int, why: Loss) -> None:
        """Note that the array's row is gone."""
        self._dropped.pop(array, None)
        self._dropped[array] = _dropped(owner, node, why)

    def release_early(self, array: bytes, node: int) -> None:
        """Note that a node has released an array of which the GCS has no row."""
        self._early[array] = node

    def placed(self, array: bytes, owner: str) -> None:
        """Note that a range was placed; its owner's release may have come before it."""
        node = node_of(owner)
        if self._early.get(array, -1) == node:
            del self._early[array]
            self._dropped[array] = _dropped(owner, node, self.why(array))

    def note_owner_died(self, array: bytes) -> None:
        """A `get` of the array raises from now on that its owner has died."""
        self._owner_died[array] = None

    def note_gone(self, array: bytes, why: Loss) -> None:
        """Note an array that never had a row and is lost, unless a reason is known already."""
        self._dropped.setdefault(array, ("", -1, why))

    def owned_again(self, array: bytes) -> None:
        """A client owns the array again, whose row was kept."""
        self._owner_died.pop(array, None)

    def forget(self, array: bytes) -> None:
        """A new owner has claimed the array."""
        self._early.pop(array, None)
        self._dropped.pop(array, None)
        self._owner_died.pop(array, None)

    def end_job(self, job: bytes) -> None:
        """Forget a job's arrays."""
        for table in (self._dropped, self._early):
            for array in [array for array in table if job_of(array) == job]:
                del table[array]

    def was_released_by(self, array: bytes, client: str) -> bool:
        """Whether the client, or its node where the owner is unknown, released the array."""
        found = self._dropped.get(array)
        if found is None:
            return False
        owner, node, _ = found
        return owner == client or (not owner and node == node_of(client))

    def was_released_early_by(self, array: bytes, client: str) -> bool:
        """Whether the client's node released the array before the GCS heard of it."""
        return self._early.get(array, -1) == node_of(client)

    def was_put(self, array: bytes) -> bool:
        """Whether a dropped row was of a value that was put: no task makes it again."""
        return array in self._dropped and self._dropped[array][2].unmade is Unmade.PUT

    def why(self, array: bytes) -> Loss:
        """Return why a released array has no values."""
        return OWNER_DIED if array in self._owner_died else RELEASED

    def loss_of(self, array: bytes) -> Loss:
        """Return the loss that a `get` of an array without a row raises."""
        found = self._dropped.get(array)
        return self.why(array) if found is None else found[2]
