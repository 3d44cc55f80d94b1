"""Where the bundles of a placement group go, as far as is known of what nodes have free.

============= ====================================================================
PACK          on few nodes
SPREAD        on many
STRICT_PACK   all on one node
STRICT_SPREAD each on a node of its own
============= ====================================================================

The first two are wishes, the others conditions. That a node has the room which it said it
had is for its answer to `PrepareBundle` to tell.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytwin.runtime.control.core.resources import UNIT

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Free = dict[str, float]
"""What is free on a node: an amount of each resource."""


def place(
    bundles: Mapping[int, Mapping[str, float]],
    free: Mapping[int, Free],
    strategy: str,
    used: set[int],
) -> dict[int, int] | None:
    """Return {bundle: node} for all bundles, None if there is no room now.

    ``used`` are the nodes that other bundles of the group are on. Greedy, by
    descending size for the packing strategies; PACK and SPREAD are wishes.
    """
    left = {node: dict(amounts) for node, amounts in free.items()}
    used = set(used)
    if strategy == "STRICT_PACK":
        whole: Free = {}
        for bundle in bundles.values():
            for name, amount in bundle.items():
                whole[name] = whole.get(name, 0.0) + amount
        candidates = [n for n in sorted(left) if (not used or n in used) and _fits(whole, left[n])]
        return dict.fromkeys(bundles, candidates[0]) if candidates else None
    chosen: dict[int, int] = {}
    order = sorted(bundles, key=lambda i: (-sum(bundles[i].values()), i))
    for index in order:
        bundle = bundles[index]
        fitting = [node for node in sorted(left) if _fits(bundle, left[node])]
        if strategy == "STRICT_SPREAD":
            fitting = [node for node in fitting if node not in used]
        if not fitting:
            return None
        spread = strategy in ("SPREAD", "STRICT_SPREAD")
        # Then where most is left, the first among equals.
        node = min(fitting, key=lambda n: ((n in used) is spread, -sum(left[n].values()), n))
        chosen[index] = node
        used.add(node)
        for name, amount in bundle.items():
            left[node][name] -= amount
    return chosen


def _fits(bundle: Mapping[str, float], free: Free) -> bool:
    return all(free.get(name, 0.0) + 0.5 / UNIT >= amount for name, amount in bundle.items())
