"""Migration: a range that starves on one node moves to a node with room for it.

::

    a node (`Starvation`)                    the global scheduler (`Migration`)
    ranges that do not fit, until
    they starve ──Heartbeat (`Load.starving`)──────> does another node have room,
                                                     by its last heartbeat?
    its oldest ranges and actors <──MoveTasks──────── yes
         └───────────TasksMoved───────────────────> each goes to the node with the most
                                                    room; where none has room any more, to
                                                    the node with the shortest wait

    ranges that the node cannot run
    while its actors and placement
    groups live ──Heartbeat────────────────────────> another node can: as above

The node's side is in `local_scheduler.starvation`. One message (`TaskUpdates.left`) changes in
the GCS which node has accepted a range, so the death of either node has the range placed again
exactly once. An actor is placed as it was at first. The global scheduler drops `TasksMoved` of
a dead incarnation, since the GCS has placed those ranges again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.task_ranges import part_of
from raytwin.runtime.control.messages import MoveTasks, TasksMoved, TaskSpec
from raytwin.runtime.control.scheduling.node_views import Node, usual_s
from raytwin.runtime.control.scheduling.policies import UNTIMED_TASK_S

MOVED_MAX = 256
"""Elements that the global scheduler asks of a node at once."""


class Migration:
    """Finds other nodes for the ranges and actors that starve on one."""

    def __init__(
        self,
        ctx: Context,
        nodes: Mapping[int, Node],
        assign: Callable[[int, TaskSpec, int], None],
        assign_rest: Callable[[TaskSpec, int], None],
        assign_actor: Callable[[TaskSpec, list[int]], int],
    ) -> None:
        """`assign` takes (node, range, the node it leaves); `assign_rest` takes (range that no
        node has room for, the node it leaves); `assign_actor` takes (actor, candidate nodes)
        and returns the node."""
        self._ctx = ctx
        self._nodes = nodes
        self._assign = assign
        self._assign_rest = assign_rest
        self._assign_actor = assign_actor

    def on_starving(self, node: int, starving: Mapping[str, int]) -> None:
        """Ask a node for as much of what starves there as other nodes have room for."""
        rooms = self._rooms(node)
        for demand, count in starving.items():
            most = min(count, MOVED_MAX)
            room = most if self._usable_elsewhere(node, demand) else 0
            for pool in rooms.values():
                room += _take(pool, demand, most - room)
            # So many tasks may run on a free slot one after another while one waits here.
            runs = int(self._nodes[node].load.busy_s / (usual_s(self._nodes) or UNTIMED_TASK_S))
            if room:
                asked = min(most, room * max(1, runs))
                self._ctx.send(f"node:{node}", MoveTasks(demand, asked))

    def on_moved(self, message: TasksMoved) -> None:
        """Place the ranges and actors that a node has passed on."""
        node = self._nodes.get(message.node)
        if node is None or node.incarnation != message.incarnation:
            return  # the GCS has placed them again
        rooms = self._rooms(message.node)
        gone = sum(spec.count for spec in message.tasks)
        node.load.queue = max(0, node.load.queue - gone)
        for spec in message.tasks:
            if spec.extra is not None and spec.extra.actor is not None:
                able = [number for number, pool in rooms.items() if pool.fits(spec.demand)]
                able = able or self._usable_elsewhere(message.node, spec.demand)
                chosen = self._assign_actor(spec, able or [message.node])
                if chosen in rooms:
                    # Otherwise the actor waits there, too.
                    _take(rooms[chosen], spec.demand, 1)
            else:
                self._place(spec, rooms, message.node)

    def _place(self, spec: TaskSpec, rooms: dict[int, ResourcePool], left: int) -> None:
        """Place a range on the node with the most room, its rest on the next; `assign_rest`
        takes what no node has room for."""
        at, end = spec.start, spec.start + spec.count
        # A placement group may have taken what the node's last heartbeat called free.
        able = [node for node in rooms if self._nodes[node].pool.feasible(spec.demand)]
        for node in sorted(able, key=lambda n: (-rooms[n].room(spec.demand, MOVED_MAX), n)):
            count = _take(rooms[node], spec.demand, end - at)
            if count:
                self._assign(node, part_of(spec, at, count), left)
                at += count
        if at < end:
            self._assign_rest(part_of(spec, at, end - at), left)

    def _usable_elsewhere(self, node: int, demand: str) -> list[int]:
        """Return the nodes that can run a demand which `node` cannot while its actors live."""
        if self._nodes[node].pool.usable(demand):
            return []
        return [number for number, other in self._nodes.items() if other.pool.usable(demand)]

    def _rooms(self, but: int) -> dict[int, ResourcePool]:
        """Return the free resources of the other nodes whose load includes all they were sent."""
        return {
            number: ResourcePool(node.load.available)
            for number, node in self._nodes.items()
            if number != but and node.sent <= node.load.assigned
        }


def _take(pool: ResourcePool, demand: str, most: int) -> int:
    """Take room for up to `most` elements; return for how many there was room."""
    room = max(0, pool.room(demand, most))
    for _ in range(room):
        pool.take(demand)
    return room
