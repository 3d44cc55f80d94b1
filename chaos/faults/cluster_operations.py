"""What can be done to a running cluster: the same methods on every backend.

``session.cluster`` of the backends `local` and `sim` is one. Nothing waits for
the cluster to notice: a started node joins when it is up, the death of one is
known when its connection breaks or its heartbeats stay away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Cluster(Protocol):
    """Operations on nodes and workers.

    Nodes are given by number. Each raises ValueError for a node that never was
    or was removed; kill, restart and remove also for node 0, on which the driver
    lives: it ends with the driver.
    """

    resources: dict[int, dict[str, float]]
    """Of every node that was ever started, by number."""

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node with these resources; return its number."""

    def remove_node(self, node: int) -> None:
        """End a node for good, at once: nothing is drained, its number is not used again."""

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once (SIGKILL); one that is gone stays so."""

    def restart_node(self, node: int) -> None:
        """Start a node again under its number and with nothing of what it held.

        Its incarnation is one higher. One that lives is killed first.
        """

    def pause_node(self, node: int) -> None:
        """Stop a node and its workers where they are (SIGSTOP).

        Declared dead meanwhile, it finds out when it is resumed, and leaves.
        """

    def resume_node(self, node: int) -> None:
        """Let a paused node and its workers go on (SIGCONT)."""

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End one worker (SIGKILL), counted from the node's oldest, round and round.

        Raises ValueError if the node has none.
        """

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Stop one worker where it is; counted as in `kill_worker`, and raises as that."""

    def kill_actor(self, which: int = 0) -> None:
        """End an actor's process (SIGKILL), counted by node and its age, round and round.

        Raises ValueError if no actor lives; on `local` also while a node is paused,
        which does not say who its actors are.
        """

    def resume_workers(self, node: int) -> None:
        """Let every paused worker of a node that is not paused itself go on."""

    def kill_member(self, chain: int, which: int = 0) -> None:
        """End a member of a chain of the GCS (SIGKILL), counted from its head, round and round.

        Raises ValueError for a chain that is not there, or has one member only that has
        nothing on disk.
        """

    def kill_head(self) -> None:
        """End the head's process (SIGKILL); it starts again.

        In it are the GCS and the global scheduler, or the masters of their chains.
        Raises ValueError if the cluster would end with it: with neither replicas nor
        shards nor storage of the GCS.
        """


class SimulatedCluster(Cluster, Protocol):
    """What only virtual time can do as yet."""

    def set_latency(self, source: int, destination: int, latency_s: float | None) -> None:
        """Give the link from one node to another a latency; None is its own again."""
