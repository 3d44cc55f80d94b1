"""Makes the resources of each node from the options of `init`; checks operations on nodes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from raytwin.runtime.api.options.checks import INTEGER_MAX, amount, amounts, integer
from raytwin.runtime.control.core.resources import format_demand

HEAD_NODE = "node:__internal_head__"
"""Ray's name for the resource that node 0 alone has."""

FIRST_DRIVER = "driver:0.0"
"""The driver that starts the cluster; workers of its node send to it directly."""


def node_resources(
    nodes: int | Sequence[Mapping[str, float]],
    cpus_per_node: float | None,
    cpus_default: float,
    more: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """Return {resource: amount} for each node.

    `nodes` is a number of nodes, or the resources of each; `more` is added to every node.
    Raises ValueError for no nodes and for an amount that is negative or too fine, TypeError
    for an amount that is no number.
    """
    given: Any = nodes
    if isinstance(given, str) or not isinstance(given, Sequence):
        count = integer("nodes", given, -INTEGER_MAX)
        if count < 1:
            raise ValueError(f"a cluster of {count} nodes")
        cpus = cpus_default if cpus_per_node is None else amount("num_cpus", cpus_per_node)
        each: list[dict[str, float]] = [{"CPU": float(cpus)} for _ in range(count)]
    else:
        each = [_floats(amounts(f"nodes[{at}]", node)) for at, node in enumerate(given)]
    if not each:
        raise ValueError("a cluster of no nodes")
    further = _floats(amounts("resources", more or {}))
    for node in each:
        for name, number in further.items():
            node.setdefault(name, number)
        format_demand(node)
    return each


def _floats(given: dict[str, float]) -> dict[str, float]:
    return {name: float(number) for name, number in given.items()}


def with_system_resources(
    node: int, given: Mapping[str, float], memory: int, object_store_memory: int
) -> dict[str, float]:
    """Return the resources of a node with those that every node has, in bytes and by its name.

    Programs reserve ``memory`` as they do CPUs; nothing measures what a task uses of it.
    """
    system = {"memory": float(memory), "object_store_memory": float(object_store_memory)}
    names = {f"node:{node}": 1.0, **({HEAD_NODE: 1.0} if node == 0 else {})}
    return {**system, **given, **names}


def check_node(
    node: int, known: Container[int], removed: Container[int], spare_driver: bool
) -> None:
    """Raise ValueError unless the node is in the cluster.

    With `spare_driver` also for node 0, whose end would end the driver.
    """
    if node not in known:
        raise ValueError(f"there is no node {node}")
    if node in removed:
        raise ValueError(f"node {node} was removed")
    if spare_driver and node == 0:
        raise ValueError("node 0 is the driver's own: it ends with the driver")


EXITED = "exit code 0"
"""How a process has ended in good order, as its parent reports it."""

NO_ACTOR = "no actor is alive"
"""The error of a fault that is to hit an actor's process."""

NO_HEAD_AGAIN = "without gcs_storage the head does not start again, and the cluster ends with it"
"""The error of a fault that is to kill the head."""


def no_worker(node: int) -> str:
    """Return the error of a fault that is to hit a worker of a node that has none."""
    return f"node {node} has no worker now"


def no_chain(chain: int) -> str:
    """Return the error of a fault that is to hit a replica of a chain that is not there."""
    return f"the GCS has no chain {chain} of replicas that are processes"


def member_to_kill(chain: int, members: Sequence[str], which: int) -> str:
    """Return the member of a chain that a fault ends; `which` counts modulo their number."""
    if len(members) < 2:
        raise ValueError(f"chain {chain} has one member, which alone has the state")
    return members[which % len(members)]
