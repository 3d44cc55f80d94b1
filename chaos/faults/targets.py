"""The targets of fault plans, and the actions that apply to each.

A target is a frozen dataclass of numbers. A method with the name of an action carries the action
out on a cluster; an action without such a method does not apply to the target. The operations of a
cluster have the same names on `sim` and `local` (`simulator/cluster/simulated_cluster.py`,
`runtime/processes/spawn/local_cluster.py`). They do not wait until the cluster has noticed the
fault. They raise ValueError for a target that does not exist or was removed, and for one whose end
would end the driver's node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Target:
    """Any target; its text is its kind, a colon and its numbers."""

    kind: ClassVar[str]
    form: ClassVar[str]
    """The form of a target in a plan, for error messages."""
    separator: ClassVar[str] = "."
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the target with the numbers in `text`, None if they do not make one."""
        parts = text.split(cls.separator) if text else []
        if len(parts) != len(fields(cls)) or not all(p.isascii() and p.isdigit() for p in parts):
            return None
        return cls(*map(int, parts))

    def __str__(self) -> str:
        numbers = self.separator.join(map(str, astuple(self)))
        return f"{self.kind}:{numbers}" if numbers else self.kind


@dataclass(frozen=True)
class Node(Target):
    """A node: its scheduler and its workers."""

    kind = "node"
    form = "node:3"
    number: int

    def kill(self, cluster: Any) -> None:
        """End the node and its workers at once, as SIGKILL does."""
        cluster.kill_node(self.number)

    def restart(self, cluster: Any) -> None:
        """Start the node again, empty, with the next incarnation; kill it first if it lives."""
        cluster.restart_node(self.number)

    def pause(self, cluster: Any) -> None:
        """Suspend the node and its workers, as SIGSTOP does."""
        cluster.pause_node(self.number)

    def resume(self, cluster: Any) -> None:
        """Resume the node and its workers."""
        cluster.resume_node(self.number)

    def remove_node(self, cluster: Any) -> None:
        """End the node for good, without draining it; its number is not used again."""
        cluster.remove_node(self.number)


@dataclass(frozen=True)
class Worker(Target):
    """The `which`-th oldest worker of a node at that time, from 0, modulo their number."""

    kind = "worker"
    form = "worker:3.1"
    node: int
    which: int

    def kill(self, cluster: Any) -> None:
        """End the worker's process; its node starts another."""
        cluster.kill_worker(self.node, self.which)

    def pause(self, cluster: Any) -> None:
        """Suspend the worker."""
        cluster.pause_worker(self.node, self.which)

    def resume(self, cluster: Any) -> None:
        """Resume all paused workers of the node."""
        cluster.resume_workers(self.node)


@dataclass(frozen=True)
class Actor(Target):
    """The process of the `which`-th living actor, by node and age, modulo their number."""

    kind = "actor"
    form = "actor:1"
    which: int

    def kill(self, cluster: Any) -> None:
        """End the actor's process; the actor restarts if it has restarts left."""
        cluster.kill_actor(self.which)


@dataclass(frozen=True)
class Link(Target):
    """One direction between two nodes."""

    kind = "link"
    form = "link:1>2"
    separator = ">"
    backends = ("sim",)
    source: int
    destination: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the link between the two different numbers in `text`."""
        link = super().parse(text)
        return link if link is not None and link.source != link.destination else None

    def latency(self, cluster: Any, latency_ms: float) -> None:
        """Set the latency of each frame; 0 restores the link's own latency."""
        cluster.set_latency(self.source, self.destination, latency_ms / 1000 or None)


@dataclass(frozen=True)
class WholeCluster(Target):
    """The cluster as a whole."""

    kind = "cluster"
    form = "cluster"

    def add_node(self, cluster: Any, resources: Mapping[str, float] | None = None) -> None:
        """Start one more node, with the resources of node 0 if none are given."""
        cluster.add_node(resources or cluster.resources[0])


@dataclass(frozen=True)
class Replica(Target):
    """The `which`-th member of a chain of the GCS, from the chain's head, modulo their number.

    Chain 0 is the GCS without its shards, chain k is shard k. The last member cannot be killed,
    unless it has the state on disk.
    """

    kind = "replica"
    form = "replica:0.1"
    chain: int
    which: int

    def kill(self, cluster: Any) -> None:
        """End the replica's process; a new replica takes its place."""
        cluster.kill_member(self.chain, self.which)


@dataclass(frozen=True)
class Head(Target):
    """The process of the GCS and the global scheduler.

    It cannot be killed without storage, as the cluster would end with it.
    """

    kind = "head"
    form = "head"

    def kill(self, cluster: Any) -> None:
        """End the head's process; a new one starts."""
        cluster.kill_head()


TARGETS: dict[str, type[Target]] = {
    target.kind: target for target in (Node, Worker, Actor, Link, WholeCluster, Replica, Head)
}


# -- the parameters of actions -------------------------------------------------------


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


def _none(given: Mapping[str, Any]) -> dict[str, Any]:
    _only(given)
    return {}


def _resources(given: Mapping[str, Any]) -> dict[str, Any]:
    _only(given, "resources")
    resources = given.get("resources", {})
    if not isinstance(resources, dict) or not all(map(is_amount, resources.values())):
        raise ValueError('give resources as amounts by name, such as {"CPU": 2}')
    return {"resources": {str(k): float(v) for k, v in resources.items()}} if resources else {}


def _latency(given: Mapping[str, Any]) -> dict[str, Any]:
    _only(given, "latency_ms")
    if not is_amount(given.get("latency_ms")):
        raise ValueError("give latency_ms, a number of at least 0")
    return {"latency_ms": float(given["latency_ms"])}


def _only(given: Mapping[str, Any], *known: str) -> None:
    for name in given:
        if name not in known:
            right = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"no parameter {name!r}: {right}")


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "kill": _none,
    "restart": _none,
    "pause": _none,
    "resume": _none,
    "remove_node": _none,
    "add_node": _resources,
    "latency": _latency,
}
"""{action: a function that checks a step's parameters, and raises ValueError for wrong ones}."""
