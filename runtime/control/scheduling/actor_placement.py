"""Where an actor is started: the global scheduler's book of actors.

An actor holds its resources for life, so what counts is not the queue but what
the actors that were placed before have left: among the nodes that have room, the
one with the fewest actors; if none has, the one with the fewest that could ever
have it, where the actor waits for its resources.

Cost: O(nodes) an actor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raytwin.runtime.control.core.resources import UNIT, ResourcePool, parse_demand
from raytwin.runtime.control.messages import NodeInfo, TaskSpec
from raytwin.runtime.control.scheduling.strategies import SPREAD, is_hard, target_of


class _Room:
    """What a node's actors have left of it."""

    __slots__ = ("actors", "pool")

    def __init__(self, resources: dict[str, float]) -> None:
        self.pool = ResourcePool(resources)
        self.actors = 0

    def change(self, resources: Mapping[str, float], sign: int) -> None:
        """Have more or less; less than its actors have taken is possible for a while."""
        for name, amount in resources.items():
            units = sign * round(amount * UNIT)
            self.pool.total[name] = self.pool.total.get(name, 0) + units
            self.pool.free[name] = self.pool.free.get(name, 0) + units
        self.forget(resources)

    def forget(self, names: Iterable[str]) -> None:
        """Drop those of which there is nothing: what a removed placement group has had."""
        pool = self.pool
        for name in names:
            if not pool.total.get(name) and not pool.free.get(name):
                pool.total.pop(name, None)
                pool.free.pop(name, None)


class ActorPlacement:
    """Which actor is where, as far as it was placed from here."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Room] = {}
        self._placed: dict[bytes, tuple[int, str, bool]] = {}
        """By actor: its node, its demand, and whether that was taken."""

    def on_node(self, info: NodeInfo) -> None:
        """A node joined, or is gone with its actors."""
        self._rooms.pop(info.node, None)
        for actor in [a for a, (node, _, _) in self._placed.items() if node == info.node]:
            del self._placed[actor]
        if info.alive:
            self._rooms[info.node] = _Room(info.resources)

    def on_bundle(self, node: int, taken: Mapping[str, float], given: Mapping[str, float]) -> None:
        """Resources of a node are reserved for a placement group, or free again."""
        room = self._rooms.get(node)
        if room is not None:
            room.change(taken, -1)
            room.change(given, 1)

    def place(self, spec: TaskSpec, strategy: str = "", among: Sequence[int] | None = None) -> int:
        """Return the node for an actor, -1 if none could ever have it.

        With `among`, one of these: they have room, as they say themselves.
        """
        self.gone(spec.array)
        able = [n for n, room in self._rooms.items() if room.pool.feasible(spec.demand)]
        if among is not None:
            able = [n for n in able if n in among] or list(among)
        if strategy and strategy != SPREAD:
            wanted = target_of(strategy)
            able = [wanted] if wanted in able else [] if is_hard(strategy) else able
        if not able:
            return -1
        rooms = self._rooms
        node = min(able, key=lambda n: (not rooms[n].pool.fits(spec.demand), rooms[n].actors, n))
        room = rooms[node]
        fits = room.pool.fits(spec.demand)
        if fits:
            room.pool.take(spec.demand)
        room.actors += 1
        self._placed[spec.array] = (node, spec.demand, fits)
        return node

    def gone(self, actor: bytes) -> None:
        """It is dead, or about to be placed anew."""
        placed = self._placed.pop(actor, None)
        if placed is None:
            return
        node, demand, taken = placed
        room = self._rooms.get(node)
        if room is not None:
            room.actors -= 1
            if taken:
                room.pool.give(demand)
                room.forget(name for name, _ in parse_demand(demand))
