"""Which node gets an actor.

An actor holds its resources as long as it lives. So it goes to a node with resources that no other
actor has reserved; if possible, where they are free now; among these to the node with the fewest
actors. If the actors of all nodes have reserved what it needs, it waits on its node until one ends.

An actor that takes no CPU goes to a node with CPUs all the same, unless its program has asked for
none (`ActorInfo.placement`).

Cost: a look at all nodes for each actor.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytwin.runtime.control.core.resources import times_in
from raytwin.runtime.control.scheduling.node_views import Node
from raytwin.runtime.control.scheduling.strategies import SPREAD, is_hard, target_of


def node_for_actor(
    nodes: Mapping[int, Node], demand: str, placement: str, strategy: str
) -> int | None:
    """Return the node for an actor, None if no node that its strategy allows could ever run it.

    `placement` is a demand that the node must have in total, in use or not.
    """
    able = [
        number
        for number, node in nodes.items()
        if node.pool.feasible(demand) and node.has(placement)
    ]
    if strategy and strategy != SPREAD:
        wanted = target_of(strategy)
        able = [wanted] if wanted in able else [] if is_hard(strategy) else able
    return min(able, key=lambda number: (*_rank(nodes[number], demand), number), default=None)


def _rank(node: Node, demand: str) -> tuple[bool, bool, int]:
    free = node.load.available or node.own
    return not node.pool.usable(demand), not times_in(free, demand, 1), node.actors
