"""The operations of a cluster that fault plans use, and the backends that have each.

The cluster of every backend has the operations that it can carry out, under these names and with
these parameters. They do not wait until the cluster has noticed the fault. They raise ValueError
for a target that does not exist or was removed, and for one whose end would end the driver's node.

*Endpoints* of links are texts: ``node:1``, ``head``, and ``replica:0.1``, the second member of the
GCS's first chain, counted as in `ClusterOperations.kill_member`. An operation on a link affects one
direction, what `source` sends to `destination`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Protocol


class ClusterOperations(Protocol):
    """All operations; a cluster class may lack some.

    A cluster has besides the `resources` that its nodes were started with, by number, and the
    `config` that all of its processes have.
    """

    # -- nodes -----------------------------------------------------------------

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node; return its number."""

    def remove_node(self, node: int) -> None:
        """End a node for good, without draining it; its number is not used again."""

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once, as SIGKILL does."""

    def restart_node(self, node: int) -> None:
        """Start a node again, empty; kill it first if it lives."""

    def pause_node(self, node: int) -> None:
        """Suspend a node and its workers, as SIGSTOP does."""

    def resume_node(self, node: int) -> None:
        """Resume a node and its workers."""

    def fill_disk(self, node: int) -> None:
        """Have every further write to the node's disk fail, as on a full disk."""

    def slow_disk(self, node: int, bytes_per_s: float) -> None:
        """Have the node's disk move at most `bytes_per_s`."""

    def press_memory(self, node: int, nbytes: int) -> None:
        """Occupy `nbytes` of the node's memory: beyond what it has, the kernel kills the largest of
        its processes. Where a node has no memory of its own its largest worker is killed if its
        workers leave less of the resource `memory`, and nothing is occupied afterwards."""

    def slow_cores(self, node: int, factor: float) -> None:
        """Have what the node's host computes from now on take `factor` times as long."""

    def skew_clock(self, node: int, skew_s: float) -> None:
        """Set the clock of the node and its workers ahead by `skew_s`, or back."""

    def heal_node(self, node: int) -> None:
        """End a full or slow disk, pressure on memory, slow cores and a skewed clock."""

    # -- workers and actors ------------------------------------------------------

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End the `which`-th oldest worker of a node, modulo their number."""

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Suspend a worker; `which` as in `kill_worker`."""

    def resume_workers(self, node: int) -> None:
        """Resume all paused workers of a node."""

    def kill_actor(self, which: int = 0) -> None:
        """End the process of the `which`-th actor, by node and age, modulo their number."""

    def pause_actor(self, which: int = 0) -> None:
        """Suspend an actor's process; `which` as in `kill_actor`."""

    def resume_actors(self) -> None:
        """Resume the paused processes of all actors on nodes that are not paused."""

    # -- head, global scheduler, replicas of the GCS -------------------------------

    def kill_head(self) -> None:
        """End the head's process; a new one starts. Raises ValueError if none would."""

    def pause_head(self) -> None:
        """Suspend the head's process."""

    def resume_head(self) -> None:
        """Resume the head's process."""

    def kill_member(self, chain: int, which: int = 0) -> None:
        """End a member of a chain; `which` counts from the chain's head, modulo the size."""

    def pause_member(self, chain: int, which: int = 0) -> None:
        """Suspend a member of a chain; `which` as in `kill_member`."""

    def resume_members(self, chain: int) -> None:
        """Resume all paused members of a chain."""

    # -- links ---------------------------------------------------------------------

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float = 0.0
    ) -> None:
        """Have frames take `latency_s` ± up to `jitter_s`; 0 restores the link's own latency."""

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth of a link."""

    def lose_packets(self, source: str, destination: str, share: float) -> None:
        """Lose a share of the packets of a link, which TCP sends again, until `heal`."""

    def reset_links(self, source: str, destination: str, rst: bool) -> None:
        """Close the connections that carry a link, by RST, where the world can, or by FIN; new ones
        may open."""

    def stall_link(self, source: str, destination: str) -> None:
        """Hold everything that is sent back until `heal`, and deliver it then."""

    def cut(self, source: str, destination: str) -> None:
        """Lose everything that is sent, silently, until `heal`."""

    def heal(self, source: str, destination: str) -> None:
        """End a cut, a stall and loss; restore the link's own latency and bandwidth."""

    # -- frames by the kind of message -----------------------------------------------

    def lose_frames(self, kind: str, probability: float) -> None:
        """Lose frames that carry a message of a class with a probability; 0 ends that."""

    def double_frames(self, kind: str, probability: float) -> None:
        """Deliver frames twice, as `lose_frames` loses them."""

    def delay_frames(self, kind: str, probability: float, delay_s: float) -> None:
        """Deliver frames later, as `lose_frames` loses them."""


SLOW_LINKS = frozenset({"set_latency", "set_bandwidth", "stall_link"})
BROKEN_LINKS = SLOW_LINKS | {"reset_links", "cut"}
PROXIED = {"local": BROKEN_LINKS, "docker": SLOW_LINKS, "ray": BROKEN_LINKS}
"""By backend: the operations for which a cluster needs proxies on its links from its start; in
containers packet filters do what they can of the rest (see `targets.Link`)."""

CLUSTERS = {
    "sim": "raytwin.simulator.cluster.simulated_cluster:SimCluster",
    "local": "raytwin.runtime.processes.spawn.local_cluster:LocalCluster",
    "docker": "raytwin.runtime.containers.container_cluster:ContainerCluster",
    "ray": "raytwin.runtime.on_ray.ray_cluster:RayCluster",
}
"""By backend: the import path of its cluster class."""


@functools.cache
def cluster_class(backend: str) -> type:
    """Return the cluster class of a backend. Raises KeyError if the backend has no faults."""
    module, _, name = CLUSTERS[backend].partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def backends_with(operations: tuple[str, ...]) -> list[str]:
    """Return the backends whose clusters have all of the operations."""
    return [
        backend
        for backend in CLUSTERS
        if all(hasattr(cluster_class(backend), name) for name in operations)
    ]
