"""The targets of fault plans, and the actions that apply to each.

A target is a frozen dataclass. Its `operations` name, by action, the operation of the cluster that
carries the action out (`cluster_operations`); an action that is not among them does not apply
to the target. A method with the name of an action calls that operation; where there is none, the
operation takes the target's numbers.

Some targets stand for several: `expand` returns the steps on single ones, each with its delay.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import permutations
from typing import Any, ClassVar, Self

from raytwin.chaos.faults.cluster_operations import PROXIED
from raytwin.chaos.faults.parameters import ENDPOINT

HEAD = "head"
"""The endpoint of links that is the head; node 0 and the replicas are on its host."""
INDEX = "[0-9]{1,9}"
Operations = Mapping[str, tuple[str, ...]]
Part = tuple[float, str, "Target", Mapping[str, Any]]
"""A delay in seconds, an action, a target and parameters: a part of a step."""


@dataclass(frozen=True)
class Target:
    """Any target; its text is its kind, a colon and its numbers."""

    kind: ClassVar[str]
    form: ClassVar[str]
    """The form of a target in a plan, for error messages."""
    pattern: ClassVar[str]
    """A regular expression of all texts, for editors."""
    never: ClassVar[tuple[str, ...]] = ()
    """Regular expressions of those texts of this pattern that are no targets."""
    separator: ClassVar[str] = "."
    operations: ClassVar[Operations]
    """By action: the operations of the cluster that it uses."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the target with the numbers in `text`, None if they do not make one."""
        parts = text.split(cls.separator) if text else []
        if len(parts) != len(fields(cls)) or not all(map(_is_index, parts)):
            return None
        return cls(*map(int, parts))

    @property
    def words(self) -> str:
        """The target in a sentence."""
        return " ".join([self.kind, *map(str, astuple(self))])

    @property
    def nodes(self) -> set[int]:
        """The numbers of the nodes that the target names."""
        return set()

    def apply(self, cluster: Any, action: str, parameters: Mapping[str, Any]) -> None:
        """Carry an action out on a cluster."""
        call = getattr(self, action, None)
        if call is not None:
            call(cluster, **parameters)
        else:
            (operation,) = self.operations[action]
            getattr(cluster, operation)(*astuple(self))

    def expand(
        self, action: str, parameters: Mapping[str, Any], broken: Iterable[Link]
    ) -> list[Part]:
        """Return the parts of a step; `broken` are the links that steps have changed so far."""
        return [(0.0, action, self, parameters)]

    def refusal(self, backend: str, action: str, parameters: Mapping[str, Any]) -> str:
        """Return why a backend whose clusters have the operations refuses this target, or these
        parameters; mostly it does not, and the reason is empty."""
        return ""

    def needs_proxies(self, backend: str, action: str, parameters: Mapping[str, Any]) -> bool:
        """Whether a cluster of a backend in `PROXIED` needs proxies on its links for an action."""
        return not PROXIED[backend].isdisjoint(self.operations[action])

    def __str__(self) -> str:
        numbers = self.separator.join(map(str, astuple(self)))
        return f"{self.kind}:{numbers}" if numbers else self.kind


@dataclass(frozen=True)
class Node(Target):
    """A node: its scheduler and its workers."""

    kind = "node"
    form = "node:3"
    pattern = rf"node:{INDEX}"
    operations: ClassVar[Operations] = {
        "kill": ("kill_node",),
        "restart": ("restart_node",),
        "pause": ("pause_node",),
        "resume": ("resume_node",),
        "remove_node": ("remove_node",),
        "disk_full": ("fill_disk",),
        "disk_slow": ("slow_disk",),
        "memory_pressure": ("press_memory",),
        "slow_cores": ("slow_cores",),
        "clock_skew": ("skew_clock",),
        "heal": ("heal_node",),
    }
    number: int

    @property
    def nodes(self) -> set[int]:
        return {self.number}

    def refusal(self, backend: str, action: str, parameters: Mapping[str, Any]) -> str:
        """Node 0 is the driver's, and on `docker` in no container."""
        limited = action in ("disk_full", "memory_pressure", "heal")
        if backend == "docker" and self.number == 0 and limited:
            return "node 0 is in no container"
        return ""

    def disk_slow(self, cluster: Any, bytes_per_s: float) -> None:
        """Have the node's disk move at most so many bytes a second."""
        cluster.slow_disk(self.number, bytes_per_s)

    def memory_pressure(self, cluster: Any, nbytes: int) -> None:
        """Occupy memory of the node."""
        cluster.press_memory(self.number, nbytes)

    def slow_cores(self, cluster: Any, factor: float) -> None:
        """Have what the node computes take `factor` times as long."""
        cluster.slow_cores(self.number, factor)

    def clock_skew(self, cluster: Any, skew_ms: float) -> None:
        """Set the node's clock ahead, or back."""
        cluster.skew_clock(self.number, skew_ms / 1000)


@dataclass(frozen=True)
class Nodes(Target):
    """Several nodes: a step on them is a step on each of them, in this order."""

    kind = "nodes"
    form = "nodes:1,2,3"
    pattern = rf"nodes:{INDEX}(,{INDEX})*"
    never = (r"^nodes:(.*,)?0*([0-9]+),(.*,)?0*\2(,|$)",)
    operations: ClassVar[Operations] = {**Node.operations, "swizzle": ("cut", "heal")}
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        parts = text.split(",")
        if not all(map(_is_index, parts)) or len(set(map(int, parts))) < len(parts):
            return None
        return cls(tuple(map(int, parts)))

    @property
    def words(self) -> str:
        numbers = list(map(str, self.numbers))
        if len(numbers) == 1:
            return f"node {numbers[0]}"
        return f"nodes {', '.join(numbers[:-1])} and {numbers[-1]}"

    @property
    def nodes(self) -> set[int]:
        return set(self.numbers)

    def expand(
        self, action: str, parameters: Mapping[str, Any], broken: Iterable[Link]
    ) -> list[Part]:
        if action == "swizzle":
            return self._swizzle(**parameters)
        return [(0.0, action, Node(number), parameters) for number in self.numbers]

    def _swizzle(self, over_s: float, seed: int = 0) -> list[Part]:
        """Return the cuts of all links among the nodes in one order, and the heals in another."""
        rng = random.Random(f"swizzle/{seed}")
        links = [Link(f"node:{a}", f"node:{b}") for a, b in permutations(self.numbers, 2)]
        parts: list[Part] = []
        for begin_s, action in ((0.0, "cut"), (over_s, "heal")):
            rng.shuffle(links)
            times = sorted(begin_s + rng.random() * over_s for _ in links)
            parts += [
                (delay_s, action, link, {}) for delay_s, link in zip(times, links, strict=True)
            ]
        return parts

    def __str__(self) -> str:
        return f"nodes:{','.join(map(str, self.numbers))}"


@dataclass(frozen=True)
class Worker(Target):
    """The `which`-th oldest worker of a node at that time, from 0, modulo their number."""

    kind = "worker"
    form = "worker:3.1"
    pattern = rf"worker:{INDEX}\.{INDEX}"
    operations: ClassVar[Operations] = {
        "kill": ("kill_worker",),
        "pause": ("pause_worker",),
        "resume": ("resume_workers",),
    }
    node: int
    which: int

    @property
    def words(self) -> str:
        return f"worker {self.which} of node {self.node}"

    @property
    def nodes(self) -> set[int]:
        return {self.node}

    def resume(self, cluster: Any) -> None:
        """Resume all paused workers of the node."""
        cluster.resume_workers(self.node)


@dataclass(frozen=True)
class Actor(Target):
    """The process of the `which`-th living actor, by node and age, modulo their number."""

    kind = "actor"
    form = "actor:1"
    pattern = rf"actor:{INDEX}"
    operations: ClassVar[Operations] = {
        "kill": ("kill_actor",),
        "pause": ("pause_actor",),
        "resume": ("resume_actors",),
    }
    which: int

    def resume(self, cluster: Any) -> None:
        """Resume the processes of all actors: which one it was may count anew by now."""
        cluster.resume_actors()


@dataclass(frozen=True)
class Link(Target):
    """One direction between two endpoints; the number of a node stands for that node."""

    kind = "link"
    form = "link:1>2, link:head>2 or link:1>replica:0.1"
    pattern = "link:{0}>{0}".format(rf"(head|(node:)?{INDEX}|replica:{INDEX}\.{INDEX})")
    never = (
        r"^link:(node:)?0*([0-9]+)>(node:)?0*\2$",
        r"^link:head>head$",
        r"^link:replica:0*([0-9]+)\.0*([0-9]+)>replica:0*\1\.0*\2$",
    )
    operations: ClassVar[Operations] = {
        "latency": ("set_latency",),
        "bandwidth": ("set_bandwidth",),
        "loss": ("lose_packets",),
        "reset": ("reset_links",),
        "stall": ("stall_link",),
        "cut": ("cut",),
        "heal": ("heal",),
    }
    source: str
    destination: str

    def __init__(self, source: str | int, destination: str | int) -> None:
        object.__setattr__(self, "source", _endpoint(source))
        object.__setattr__(self, "destination", _endpoint(destination))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the link between the two different endpoints in `text`."""
        ends = [f"node:{end}" if _is_index(end) else end for end in text.split(">")]
        if len(ends) != 2 or not all(re.fullmatch(ENDPOINT, end) for end in ends):
            return None
        link = cls(*(re.sub(r"[0-9]+", lambda found: str(int(found[0])), end) for end in ends))
        return link if link.source != link.destination else None

    @property
    def words(self) -> str:
        source, destination = (end.replace("node:", "node ") for end in astuple(self))
        return f"what {source} sends to {destination}"

    @property
    def nodes(self) -> set[int]:
        return {int(end[5:]) for end in astuple(self) if end.startswith("node:")}

    def needs_proxies(self, backend: str, action: str, parameters: Mapping[str, Any]) -> bool:
        """In containers packet filters close connections by RST, and act where an end of the link
        is a container and the other one has an address of its own, as replicas have not."""
        if super().needs_proxies(backend, action, parameters):
            return True
        ends = {self.source, self.destination}
        filtered = ends - {HEAD, "node:0"} and not any(map(is_replica_end, ends))
        return backend == "docker" and (not filtered or parameters.get("kind") == "fin")

    def refusal(self, backend: str, action: str, parameters: Mapping[str, Any]) -> str:
        """The GCS of Ray is one process, on node 0, and has its address. Toxiproxy delays by whole
        milliseconds."""
        others = [end for end in astuple(self) if not end.startswith("node:")]
        if backend == "ray" and others:
            return f"the GCS of Ray is on node 0: name a node in place of {others[0]}"
        for name in ("latency_ms", "jitter_ms"):
            given = parameters.get(name, 0)
            if backend in PROXIED and given and not round(given):
                return f"Toxiproxy rounds {name} of {given:g} to 0: give 0, or more than 0.5"
        return ""

    def latency(self, cluster: Any, latency_ms: float, jitter_ms: float = 0.0) -> None:
        """Set the latency of each frame; 0 restores the link's own latency."""
        cluster.set_latency(self.source, self.destination, latency_ms / 1000, jitter_ms / 1000)

    def bandwidth(self, cluster: Any, bytes_per_s: float) -> None:
        """Limit the bandwidth."""
        cluster.set_bandwidth(self.source, self.destination, bytes_per_s)

    def loss(self, cluster: Any, probability: float) -> None:
        """Lose packets."""
        cluster.lose_packets(self.source, self.destination, probability)

    def reset(self, cluster: Any, kind: str = "rst") -> None:
        """Close the connections."""
        cluster.reset_links(self.source, self.destination, kind == "rst")

    def __str__(self) -> str:
        return f"link:{self.source.removeprefix('node:')}>{self.destination.removeprefix('node:')}"


@dataclass(frozen=True)
class WholeCluster(Target):
    """The cluster as a whole."""

    kind = "cluster"
    form = "cluster"
    pattern = "cluster"
    operations: ClassVar[Operations] = {
        "add_node": ("add_node",),
        "partition": ("cut",),
        "heal": ("heal",),
        "lose": ("lose_frames",),
        "double": ("double_frames",),
        "delay": ("delay_frames",),
    }

    @property
    def words(self) -> str:
        return "the cluster"

    def expand(
        self, action: str, parameters: Mapping[str, Any], broken: Iterable[Link]
    ) -> list[Part]:
        if action == "heal":
            return [(0.0, "heal", link, {}) for link in broken]
        if action == "partition":
            return [(0.0, "cut", link, {}) for link in links_between(**parameters)]
        return super().expand(action, parameters, broken)

    def add_node(self, cluster: Any, resources: Mapping[str, float] | None = None) -> None:
        """Start one more node, with the resources of node 0 if none are given."""
        cluster.add_node(resources or cluster.resources[0])

    def lose(self, cluster: Any, kind: str, probability: float) -> None:
        """Lose frames."""
        cluster.lose_frames(kind, probability)

    def double(self, cluster: Any, kind: str, probability: float) -> None:
        """Deliver frames twice."""
        cluster.double_frames(kind, probability)

    def delay(self, cluster: Any, kind: str, probability: float, delay_ms: float) -> None:
        """Deliver frames later."""
        cluster.delay_frames(kind, probability, delay_ms / 1000)


@dataclass(frozen=True)
class Replica(Target):
    """The `which`-th member of a chain of the GCS, from the chain's head, modulo their number.

    Chain 0 is the GCS without its shards, chain k is shard k. The last member cannot be killed,
    unless it has the state on disk.
    """

    kind = "replica"
    form = "replica:0.1"
    pattern = rf"replica:{INDEX}\.{INDEX}"
    operations: ClassVar[Operations] = {
        "kill": ("kill_member",),
        "pause": ("pause_member",),
        "resume": ("resume_members",),
    }
    chain: int
    which: int

    @property
    def words(self) -> str:
        return f"replica {self.which} of chain {self.chain} of the GCS"

    def resume(self, cluster: Any) -> None:
        """Resume all paused replicas of the chain."""
        cluster.resume_members(self.chain)


@dataclass(frozen=True)
class Head(Target):
    """The process of the GCS and the global scheduler.

    It cannot be killed without storage, as the cluster would end with it.
    """

    kind = "head"
    form = "head"
    pattern = "head"
    operations: ClassVar[Operations] = {
        "kill": ("kill_head",),
        "pause": ("pause_head",),
        "resume": ("resume_head",),
    }

    @property
    def words(self) -> str:
        return "the head"


@dataclass(frozen=True)
class Scheduler(Target):
    """The global scheduler: the head, or the first member of chain 0 if the GCS has chains."""

    kind = "scheduler"
    form = "scheduler"
    pattern = "scheduler"
    operations: ClassVar[Operations] = {
        "kill": ("kill_head", "kill_member"),
        "pause": ("pause_head", "pause_member"),
        "resume": ("resume_head", "resume_members"),
    }

    @property
    def words(self) -> str:
        return "the process of the global scheduler"

    def kill(self, cluster: Any) -> None:
        """End the process that has the global scheduler."""
        if _in_replica(cluster):
            cluster.kill_member(0, 0)
        else:
            cluster.kill_head()

    def pause(self, cluster: Any) -> None:
        """Suspend the process that has the global scheduler."""
        if _in_replica(cluster):
            cluster.pause_member(0, 0)
        else:
            cluster.pause_head()

    def resume(self, cluster: Any) -> None:
        """Resume the process that has the global scheduler."""
        if _in_replica(cluster):
            cluster.resume_members(0)
        else:
            cluster.resume_head()


TARGETS: dict[str, type[Target]] = {
    target.kind: target
    for target in (
        Node, Nodes, Worker, Actor, Link, WholeCluster, Replica, Head, Scheduler
    )
}  # fmt: skip


def links_between(sets: Iterable[Iterable[str]], one_way: bool = False) -> list[Link]:
    """Return the links between endpoints of different sets; `one_way` those from the first set.

    A partition takes both directions; one way, only what the first set sends to the others.
    """
    parts = [tuple(part) for part in sets]
    pairs = [(a, b) for a in range(len(parts)) for b in range(len(parts)) if a != b]
    return [
        Link(source, destination)
        for a, b in pairs
        if not one_way or a == 0
        for source in parts[a]
        for destination in parts[b]
    ]


def _is_index(text: str) -> bool:
    """Whether a text is a number from 0 on, as people write it."""
    return text.isascii() and text.isdigit() and len(text) <= 9


def _in_replica(cluster: Any) -> bool:
    """Whether the global scheduler is in a replica that is a process of its own."""
    return cluster.config.chained and not cluster.config.gcs_durable


def is_replica_end(end: str) -> bool:
    """Whether an endpoint of links is a replica of the GCS."""
    return end.startswith("replica:")


def _endpoint(end: str | int) -> str:
    return f"node:{end}" if isinstance(end, int) else end
