"""The global scheduler's view of the living nodes, and the part that a policy sees.

Between two heartbeats of a node the scheduler adds its own assignments: the queue's length is the
last reported one plus all elements sent since, and the reserved resources are those reported plus
those of actors sent since.

For each demand, `NodeIndex` keeps the nodes that could run it. A node that has changed is looked at
again when the next range with this demand is placed; the others are not. So a placement looks at
the node of the placement before and at those whose heartbeats have come since.

A node that has timed no task yet is assumed to be like the others: its tasks take the mean of
theirs, to 3 %. It is rounded so that not each heartbeat changes what is assumed of all such nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import frexp, ldexp

from raytwin.runtime.control.core.resources import ResourcePool, times_in
from raytwin.runtime.control.messages import Load, Location
from raytwin.runtime.control.scheduling.candidates import Candidates, NodeView
from raytwin.runtime.control.scheduling.strategies import SPREAD, is_hard, target_of

MOVED_MAX = 256
"""The most elements that the global scheduler asks one node to give away at once."""
DEMANDS_MAX = 32
"""The bound on the demands in `NodeIndex`: 0.5 KB a node each."""
TIMES_PER_S = 1 << 80
"""A float of a nanosecond or more is a whole number of 2**-82 s, so times of 4 ns are exact."""


class Node:
    """A living node."""

    __slots__ = (
        "_sent_actors", "actors", "incarnation", "load", "own", "pool", "position", "sent",
    )  # fmt: skip

    def __init__(self, resources: dict[str, float], incarnation: int, position: int) -> None:
        self.incarnation = incarnation
        self.own = resources
        """The node's total resources, those reserved by placement groups included."""
        self.pool = ResourcePool(resources)
        self.load = Load(0, 0.0, 0.0, 0, {})
        self.sent = 0
        """Elements assigned to it so far."""
        self._sent_actors: deque[tuple[int, str]] = deque()
        """Actors that its heartbeats do not count yet: the value of `sent` and the demand."""
        self.actors = 0
        """Actors that live there, or are on their way."""
        self.position = position
        """Its place in the order in which nodes have joined."""

    @property
    def queue(self) -> int:
        """Elements that wait or run there, or are on their way."""
        return self.load.queue + self.sent - self.load.assigned

    def owns(self, demand: str) -> bool:
        """Whether it could meet a demand if placement groups had none of its resources."""
        return times_in(self.own, demand, 1) > 0

    def has(self, demand: str) -> bool:
        """Whether its total resources meet a demand, whoever has them."""
        return self.pool.feasible(demand) or self.owns(demand)

    def heard(self, load: Load) -> None:
        """The node has reported its load."""
        self.load = load
        coming = self._sent_actors
        while coming and coming[0][0] <= load.assigned:
            coming.popleft()
        self.pool.set_reserved(load.reserved)
        for _, demand in coming:
            self.pool.reserve(demand)

    def give_actor(self, demand: str) -> None:
        """An actor is on its way there."""
        self.sent += 1
        self.actors += 1
        self._sent_actors.append((self.sent, demand))
        self.pool.reserve(demand)

    def busy_s(self, demand: str) -> float:
        """Return the estimated seconds until a task ends there; 0 if there is room now."""
        if not self.load.busy_s or times_in(self.load.available, demand, 1):
            return 0.0
        return self.load.busy_s

    def room(self, demand: str, most: int) -> int:
        """Return how many such demands it could start now; 0 if its load is out of date."""
        if self.sent > self.load.assigned:
            return 0
        return times_in(self.load.available, demand, most)


class AbleNodes:
    """The nodes that could run a demand, kept as a policy sees them."""

    def __init__(self, demand: str, nodes: Mapping[int, Node]) -> None:
        self._demand = demand
        self._ready = Candidates()
        """Nodes where a range need not wait for an actor to end: all, if it demands nothing."""
        self._held = Candidates()
        """Nodes where actors have all that it needs."""
        self._rooms: dict[int, int] = {}
        """By node: how many it could start now, up to `MOVED_MAX`."""
        self._room = 0
        """The sum of them."""
        self._untimed: set[int] = set()
        """Nodes that have timed no task yet."""
        self._assumed_s = 0.0
        """The time of a task that is assumed there."""
        self.changed = set(nodes)
        """Nodes that have changed since the last look."""

    def refresh(self, nodes: Mapping[int, Node], assumed_s: float) -> None:
        """Look again at the nodes that have changed."""
        if assumed_s != self._assumed_s:
            self._assumed_s = assumed_s
            self.changed |= self._untimed
        for number in self.changed:
            self._look(number, nodes.get(number))
        self.changed.clear()

    def _look(self, number: int, node: Node | None) -> None:
        if node is None or not node.pool.feasible(self._demand):
            self._ready.drop(number)
            self._held.drop(number)
            self._untimed.discard(number)
            self._room -= self._rooms.pop(number, 0)
            return
        demand, load = self._demand, node.load
        slots = node.pool.slots(demand)
        if load.mean_task_s:
            self._untimed.discard(number)
        else:
            self._untimed.add(number)
        mean_s = load.mean_task_s or self._assumed_s
        busy_s = node.busy_s(demand)
        view = NodeView(number, node.queue, slots, mean_s, 0, load.bandwidth, busy_s)
        is_ready = bool(slots or not demand)
        (self._held if is_ready else self._ready).drop(number)
        (self._ready if is_ready else self._held).put(view, node.position)
        room = node.room(demand, MOVED_MAX)
        self._room += room - self._rooms.get(number, 0)
        self._rooms[number] = room

    def locate(self, inputs: Collection[Location]) -> None:
        """Take the inputs of the range that is placed next."""
        self._ready.locate(inputs)
        self._held.locate(inputs)

    def allowed(self, strategy: str, home: int, left: int, thief: int = -1) -> Sequence[NodeView]:
        """Return the nodes among which the policy chooses, if any node could run the range.

        With affinity it is that one node. Else it is those where the range need not wait for an
        actor to end, else its owner's node, `home`. A range that has left a node, `left`, goes back
        only if it could run nowhere else; -1: it has left none. It goes to the node that has asked
        for it, `thief`, if it need not wait for an actor there; -1: none has.
        """
        if strategy and strategy != SPREAD:
            target = target_of(strategy)
            view = self._ready.at(target) or self._held.at(target)
            if view is not None or is_hard(strategy):
                return [view] if view is not None else []
        nodes = self._ready
        if not nodes:
            nodes = self._held
            at_home = nodes.at(home)
            if at_home is not None:
                return [at_home]
        if left >= 0 and len(nodes) > 1:
            nodes.drop(left)
            self.changed.add(left)
        stolen = nodes.at(thief) if thief >= 0 else None
        return nodes if stolen is None else [stolen]

    def room_beside(self, node: int) -> int:
        """Return how many such demands the other nodes could start now, each up to `MOVED_MAX`."""
        return self._room - self._rooms.get(node, 0)

    def all_held(self) -> bool:
        """Whether actors have what it needs on every node."""
        return not self._ready


class NodeIndex:
    """The nodes that could run each demand: those looked up last, `DEMANDS_MAX` of them.

    It has nothing that the nodes do not say, and begins anew when a replica takes over.
    """

    def __init__(self) -> None:
        self._able: dict[str, AbleNodes] = {}
        """By demand, the one that was looked up last at the end."""
        self._means_s: dict[int, float] = {}
        """By node: the mean time of a task; without nodes that have timed none."""
        self._sum = 0
        """The sum of these, exactly, in 1 / `TIMES_PER_S` s."""
        self._unread: set[int] | None = None
        """Nodes whose mean may have changed; None: all."""

    def changed(self, number: int) -> None:
        """A node has changed, or has come or gone."""
        if self._unread is not None:
            self._unread.add(number)
        for able in self._able.values():
            able.changed.add(number)

    def able(self, nodes: Mapping[int, Node], demand: str) -> AbleNodes:
        """Return the nodes that could run a demand."""
        found = self._able.pop(demand, None)
        if found is None:
            found = AbleNodes(demand, nodes)
            if len(self._able) == DEMANDS_MAX:
                del self._able[next(iter(self._able))]
        self._able[demand] = found
        found.refresh(nodes, about(self.usual_s(nodes)))
        return found

    def usual_s(self, nodes: Mapping[int, Node]) -> float:
        """Return the mean time of a task over all nodes that have timed one; 0 if none has."""
        means_s = self._means_s
        for number in nodes if self._unread is None else self._unread:
            node = nodes.get(number)
            mean_s = 0.0 if node is None else node.load.mean_task_s
            old_s = means_s.get(number, 0.0)
            if mean_s == old_s:
                continue
            self._sum += int(mean_s * TIMES_PER_S) - int(old_s * TIMES_PER_S)
            if mean_s:
                means_s[number] = mean_s
            else:
                del means_s[number]
        self._unread = set()
        return self._sum / (len(means_s) * TIMES_PER_S) if means_s else 0.0


def about(time_s: float) -> float:
    """Return a time, rounded to 3 %."""
    mantissa, exponent = frexp(time_s)
    return ldexp(round(mantissa * 32), exponent - 5)
