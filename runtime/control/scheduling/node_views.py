"""The global scheduler's view of the living nodes, and the part that a policy sees.

Between two heartbeats of a node the scheduler adds its own assignments: the queue's length is the
last reported one plus all elements sent since, and the reserved resources are those reported plus
those of actors sent since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from raytwin.runtime.control.core.resources import UNIT, ResourcePool, parse_demand
from raytwin.runtime.control.messages import Load, Location
from raytwin.runtime.control.scheduling.policies import NodeView


class Node:
    """A living node."""

    __slots__ = ("_sent_actors", "actors", "incarnation", "load", "own", "pool", "sent")

    def __init__(self, resources: dict[str, float], incarnation: int) -> None:
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

    @property
    def queue(self) -> int:
        """Elements that wait or run there, or are on their way."""
        return self.load.queue + self.sent - self.load.assigned

    def owns(self, demand: str) -> bool:
        """Whether it could meet a demand if placement groups had none of its resources."""
        own = self.own
        return all(round(own.get(n, 0.0) * UNIT) >= units for n, units in parse_demand(demand))

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
        if not self.load.busy_s or ResourcePool(self.load.available).fits(demand):
            return 0.0
        return self.load.busy_s

    def room(self, demand: str, most: int) -> int:
        """Return how many such demands it could start now; 0 if its load is out of date."""
        if self.sent > self.load.assigned:
            return 0
        return max(0, ResourcePool(self.load.available).room(demand, most))


def usual_s(nodes: Mapping[int, Node]) -> float:
    """Return the mean time of a task over all nodes that have timed one; 0 if none has."""
    timed = [node.load.mean_task_s for node in nodes.values() if node.load.mean_task_s]
    return sum(timed) / len(timed) if timed else 0.0


def views_of(
    nodes: Mapping[int, Node], demand: str, inputs: Mapping[bytes, Location]
) -> list[NodeView]:
    """Return the nodes that could run a range with these inputs, as a policy sees them."""
    views = []
    # A node that has timed no task yet is assumed to be like the others.
    mean_s = usual_s(nodes)
    for number, node in nodes.items():
        if not node.pool.feasible(demand):
            continue
        remote = 0
        for location in inputs.values():
            if number not in location.nodes:
                remote += location.size
        load = node.load
        views.append(
            NodeView(
                number,
                node.queue,
                node.pool.slots(demand),
                load.mean_task_s or mean_s,
                remote,
                load.bandwidth,
                node.busy_s(demand),
            )
        )
    return views
