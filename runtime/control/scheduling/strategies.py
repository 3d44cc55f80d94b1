"""Scheduling strategies: the nodes that a task requests (`TaskExtra.strategy`).

============= ==============================================================
``""``        as the cluster's policy decides
``SPREAD``    through the global scheduler, to the shortest queue; among
              equal ones in turn
``node:3``    on node 3 or nowhere
``soft:3``    on node 3; if that is dead, as the policy decides
============= ==============================================================

A strategy takes precedence over the policy, at both schedulers. Placement groups need
none: a group's resources exist on its nodes only (see `placement_groups`).
"""

from __future__ import annotations

from collections.abc import Sequence

from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.control.scheduling.candidates import Candidates, NodeView

SPREAD = "SPREAD"


def affinity(node: int, soft: bool) -> str:
    """Return the strategy for one node."""
    return f"{'soft' if soft else 'node'}:{node}"


def strategy_of(spec: TaskSpec) -> str:
    """Return a range's strategy; the empty string for most."""
    return "" if spec.extra is None else spec.extra.strategy


def kept(strategy: str, node: int, count: int, feasible: bool, alone: bool) -> int:
    """Return how many elements of a range with a strategy stay on its node."""
    if not feasible:
        return 0
    if strategy == SPREAD:
        return count if alone else 0
    return count if target_of(strategy) == node else 0


def target_of(strategy: str) -> int:
    return int(strategy.partition(":")[2])


def is_hard(strategy: str) -> bool:
    """Whether the task fails if its node cannot run it."""
    return strategy.startswith("node:")


class Spreading:
    """Chooses nodes for ranges that are to be spread."""

    def __init__(self) -> None:
        self._last = -1

    def spread(self, nodes: Sequence[NodeView], pieces: Sequence[int]) -> list[NodeView]:
        """Return the node for each piece: the shortest queue, equal ones in turn."""
        candidates = nodes if isinstance(nodes, Candidates) else Candidates(nodes)
        chosen = []
        for count in pieces:
            view = candidates.next_in_turn(self._last)
            self._last = view.node
            view.queue += count
            chosen.append(view)
        return chosen
