"""``node:3``: a node, its scheduler and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class Node:
    """A node by its number."""

    kind: ClassVar[str] = "node"
    form: ClassVar[str] = "node:3"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")
    number: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the node that `text`, a number, names."""
        return cls(int(text)) if text.isascii() and text.isdigit() else None

    def __str__(self) -> str:
        return f"node:{self.number}"

    def kill(self, cluster: Cluster) -> None:
        """End it."""
        cluster.kill_node(self.number)

    def restart(self, cluster: Cluster) -> None:
        """Start it again, empty."""
        cluster.restart_node(self.number)

    def pause(self, cluster: Cluster) -> None:
        """Stop it where it is."""
        cluster.pause_node(self.number)

    def resume(self, cluster: Cluster) -> None:
        """Let it go on."""
        cluster.resume_node(self.number)

    def remove_node(self, cluster: Cluster) -> None:
        """End it for good."""
        cluster.remove_node(self.number)
