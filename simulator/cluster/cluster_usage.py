"""How much of a simulated cluster a program has used, and what was used most.

`UsageMeter` observes a cluster from its making to its end. A share is the part of that time in
which a resource was busy. The resources are those that can hold a program back:

=========== ==========================================================================
cpus        the nodes' CPUs that tasks, actors and placement groups have reserved
cores       the hosts' cores, of the busiest host
network     the busiest direction of a network card
uplink      the busiest direction of a rack's uplink, if there are racks
driver,     the one thread of the head's process, and of the busiest driver's and
head, node  node's
=========== ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raytwin.runtime.control.core.resources import UNIT
from raytwin.runtime.control.scheduling.near_threshold import ThresholdTally
from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.machine.network import Racks
from raytwin.simulator.machine.simulated_process import role_of

SERVERS = ("driver", "head", "node")


@dataclass(frozen=True)
class Usage:
    """What a program has used; times in virtual seconds."""

    makespan_s: float
    nodes: int
    """At the end, those that have died included."""
    cpus: float
    """Of all nodes together, on average over time."""
    tasks: int
    """Tasks and calls that have run, repetitions included."""
    bytes_between_hosts: int
    bytes_within_hosts: int
    shares: dict[str, float]
    """By resource: the share of the time in which it was busy; see the module."""
    threshold: ThresholdTally = field(default_factory=ThresholdTally)
    """Of the cluster since it began."""
    bodies_s: float = 0.0
    """CPU seconds and sleeps of the bodies of all tasks and calls together, without their waits for
    other tasks, and without the sleeps of event loops."""


class UsageMeter:
    """Measures what is used of a cluster from now on."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._began_s = cluster.env.now
        self._tasks = cluster.tasks
        self._bodies_s = cluster.bodies_s
        self._sent = cluster.network.bytes_sent
        self._hosts = [host.busy_s for host in cluster.hosts]
        self._busy = {process: process.busy_s for process in cluster.processes.values()}
        self._used: dict[int, tuple[float, float]] = {}
        """By living node: since when so many of its CPUs have been reserved."""
        self._reserved_cpu_s = 0.0
        self._there_cpu_s = 0.0
        for node in cluster.node_managers:
            self._look(node)
        cluster.after_node_turn.append(self._look)
        cluster.on_end.append(self._ended)

    def _look(self, node: int) -> None:
        """Account for a node's CPUs up to now."""
        now_s = self._cluster.env.now
        if node in self._used:
            since_s, used = self._used[node]
            if now_s > since_s:
                self._reserved_cpu_s += used * (now_s - since_s)
                self._there_cpu_s += self._cpus(node) * (now_s - since_s)
        free = self._cluster.node_managers[node].pool.free.get("CPU", 0) / UNIT
        # A task that goes on after it was blocked may oversubscribe its node for a moment.
        self._used[node] = now_s, self._cpus(node) - max(0.0, free)

    def _cpus(self, node: int) -> float:
        return self._cluster.resources[node].get("CPU", 0.0)

    def _ended(self, node: int) -> None:
        if node in self._used:
            self._look(node)
            del self._used[node]

    def usage(self) -> Usage:
        """Return what was used up to now."""
        cluster = self._cluster
        elapsed_s = cluster.env.now - self._began_s
        for node in list(self._used):
            self._look(node)
        sent = cluster.network.bytes_sent
        moved = {ends: count - self._sent.get(ends, 0) for ends, count in sent.items()}
        shares = {}
        if elapsed_s > 0:
            if self._there_cpu_s:
                shares["cpus"] = self._reserved_cpu_s / self._there_cpu_s
            before = self._hosts + [0.0] * (len(cluster.hosts) - len(self._hosts))
            shares["cores"] = max(
                (host.busy_s - busy_s) / (host.cores * elapsed_s)
                for host, busy_s in zip(cluster.hosts, before, strict=True)
            )
            shares["network"] = self._network(moved) / elapsed_s
            if cluster.network.racks is not None:
                shares["uplink"] = self._uplinks(moved, cluster.network.racks) / elapsed_s
            shares |= {role: self._busiest(role) / elapsed_s for role in SERVERS}
        return Usage(
            elapsed_s,
            len(cluster.resources),
            self._there_cpu_s / elapsed_s if elapsed_s > 0 else 0.0,
            cluster.tasks - self._tasks,
            sum(count for (source, to), count in moved.items() if source != to),
            sum(count for (source, to), count in moved.items() if source == to),
            shares,
            cluster.threshold.tally,
            cluster.bodies_s - self._bodies_s,
        )

    def _network(self, moved: dict[tuple[int, int], int]) -> float:
        """Return how long the busiest direction of a network card takes for what it has moved."""
        sums: dict[tuple[str, int], int] = {}
        for (source, to), count in moved.items():
            if source != to:
                for card in ("out", source), ("in", to):
                    sums[card] = sums.get(card, 0) + count
        return max(sums.values(), default=0) / self._cluster.profile.bandwidth

    def _uplinks(self, moved: dict[tuple[int, int], int], racks: Racks) -> float:
        """Return the same of the busiest direction of a rack's uplink."""
        sums: dict[tuple[str, int], int] = {}
        for hosts, count in moved.items():
            between = racks.between(hosts)
            if between is not None:
                for way in ("up", between[0]), ("down", between[1]):
                    sums[way] = sums.get(way, 0) + count
        uplink = racks.uplink_bandwidth(self._cluster.profile.bandwidth)
        return max(sums.values(), default=0) / uplink

    def _busiest(self, role: str) -> float:
        """Return the CPU time of the process of a role that has used most, of those that live."""
        return max(
            (
                process.busy_s - self._busy.get(process, 0.0)
                for process in set(self._cluster.processes.values())
                if role_of(process.name) == role
            ),
            default=0.0,
        )
