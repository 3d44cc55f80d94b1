"""The rows of the GCS's task and object tables, who waits for what, what was dropped.

What is done with them is in `remaking`, `releasing` and `arrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.gcs.lineage import Lineage
from raytwin.runtime.control.gcs.owner_lookup import Unheard
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.gcs.task_object_table import ArrayRow
from raytwin.runtime.control.messages import Location, NodeInfo, ObjectLocations
from raytwin.runtime.control.messages.errors import Loss, LossCause, Unmade

JOB_ENDED = Loss(LossCause.JOB_ENDED)
OWNER_DIED = Loss(LossCause.OWNER_DIED)
RELEASED = Loss(LossCause.RELEASED)
RELEASED_MAX = 65_536
"""How many dropped rows are remembered, at most, for messages that come late."""
LOST_S = 1.0
"""How long an array without a row is awaited: its owner's task may run again."""
UNHEARD_TIMEOUTS = 2.0
"""The same of one that was never heard of, in timeouts of heartbeats: its owner's node
may be slow to tell, or have died before it did."""
ORPHANED_S = 60.0
"""How long a row is kept that nobody owns: the same, on another node."""

Log = Callable[[str, str, str, int], None]
"""kind, subject, detail, how many"""


@lru_cache(maxsize=1024)
def dropped(owner: str, node: int, why: Loss) -> tuple[str, int, Loss]:
    """Return what is remembered of a dropped row: one tuple for all that are alike.

    They are few, and the rows are many: without it each would have a reason of its own.
    """
    return owner, node, why


class ArrayRows:
    """The rows of all arrays that the GCS has heard of."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        nodes: Mapping[int, NodeInfo],
        alive: set[int],
        pubsub: PubSub,
        log: Log,
        history: TaskHistory | None = None,
    ) -> None:
        self.rows: dict[bytes, ArrayRow] = {}
        self.lineage = Lineage(config.lineage_bytes_max)
        self.tombstones: dict[bytes, dict[int, int]] = {}
        self.waited: dict[bytes, dict[bytes, None]] = {}
        """By array, the objects that somebody waits for."""
        self._released: BoundedMap[bytes, tuple[str, int, Loss]] = BoundedMap(RELEASED_MAX)
        """The last dropped rows, oldest first: owner, if known, node that released it,
        and why it is lost for who asks."""
        self._early: BoundedMap[bytes, int] = BoundedMap(RELEASED_MAX)
        """Arrays that were released before they were heard of, oldest first: by which node."""
        self._bereaved: BoundedMap[bytes, None] = BoundedMap(RELEASED_MAX)
        """Released arrays whose owner has died, oldest first."""
        self.replays: Callable[[bytes, bytes], bool] = lambda actor, array: False
        """Whether an actor is being rebuilt, and makes that array again by it."""
        self.remakes: Callable[[bytes], bool] = lambda array: False
        """Whether any actor is being rebuilt that does."""
        self._ctx = ctx
        self._nodes = nodes
        self._alive = alive
        self._pubsub = pubsub
        self._log = log
        self._history = history
        self._ended: set[bytes] = set()
        """Jobs that are over: what still comes of them is ignored."""
        wait_s = max(LOST_S, UNHEARD_TIMEOUTS * config.heartbeat_timeout_s)
        self.unheard = Unheard(ctx, alive, wait_s, self._is_missing, self._has_no_owner)

    def _row(self, array: bytes) -> ArrayRow:
        row = self.rows.get(array)
        if row is None:
            row = self.rows[array] = ArrayRow()
        return row

    def _is_dead(self, client: str) -> bool:
        """Whether a client, or a node, was on an incarnation that is over."""
        info = self._nodes.get(node_of(client))
        if info is None or not info.alive:
            return info is not None
        return not client.startswith("node:") and incarnation_of(client) < info.incarnation

    def _owner_left(self, row: ArrayRow) -> str:
        """Return the last client that waits for a row and is not dead, if any does: news of it
        may come before that its node has joined."""
        return next((o for o in reversed(row.owners.values()) if not self._is_dead(o)), "")

    def _was_released(self, array: bytes, by: str) -> bool:
        found = self._released.get(array)
        if found is None:
            return False
        owner, node, _ = found
        return owner == by or (not owner and node == node_of(by))

    def _bereave(self, array: bytes) -> None:
        """Whoever asks for the array is told that its owner has died."""
        self._bereaved[array] = None

    def _why_released(self, array: bytes) -> Loss:
        return OWNER_DIED if array in self._bereaved else RELEASED

    def _was_put(self, array: bytes) -> bool:
        """Whether a dropped row was of a value that was put, so that no task makes it again."""
        return array in self._released and self._released[array][2].unmade is Unmade.PUT

    def _is_gone(self, array: bytes) -> bool:
        return array in self._released or array in self._early

    def _is_late(self, array: bytes, owner: str) -> bool:
        """Whether the owner of a call's large result has let go of it before."""
        row = self.rows.get(array)
        if row is not None:
            return row.released and row.former == owner
        return self._early.get(array, -1) == node_of(owner) or self._was_released(array, owner)

    def _waited_for(self, array: bytes) -> list[bytes]:
        return list(self.waited.get(array, ()))

    def _unwait(self, oid: bytes) -> None:
        array = oid[:ARRAY_BYTES]
        del self.waited[array][oid]
        if not self.waited[array]:
            del self.waited[array]

    def _tell(self, oid: bytes, location: Location) -> None:
        self._unwait(oid)
        for address in self._pubsub.close(oid):
            self._ctx.send(address, ObjectLocations([location]))

    def _give_up(self, oids: list[bytes]) -> None:
        """Arrays that have no row have not been made again: tell who waits."""
        for oid in oids:
            array = oid[:ARRAY_BYTES]
            if array not in self.rows and oid in self.waited.get(array, ()):
                if not self._was_put(array) and self.remakes(array):
                    self._ctx.after(LOST_S, partial(self._give_up, [oid]))
                    continue
                found = self._released.get(array)
                why = self._why_released(array) if found is None else found[2]
                self._tell(oid, Location(oid, (), 0, lost=why))

    def _is_missing(self, array: bytes) -> bool:
        """Whether somebody waits for an array that has no row, or for what its row lacks."""
        row = self.rows.get(array)
        if row is None:
            return array in self.waited
        return any(row.is_untold(oid, self._alive) for oid in self.waited.get(array, ()))

    def _has_no_owner(self, array: bytes) -> None:
        """No node knows an owner of an array that is awaited and has no row."""
        self._give_up(self._waited_for(array))

    def sizes(self) -> dict[str, int]:
        """Return how much is in the tables; orphans wait `ORPHANED_S` for a new owner."""
        orphans = sum(not row.released and not row.owners for row in self.rows.values())
        return {
            "arrays": len(self.rows) - orphans,
            "orphans": orphans,
            "awaited": len(self.waited),
            "unheard": len(self.unheard),
            "tombstones": len(self.tombstones),
        }
