"""``worker:3.1``: a worker process, counted from the oldest that its node has then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class Worker:
    """The `which`-th oldest worker of a node, counted round and round from 0.

    A killed worker needs no restart: its node starts another. ``resume`` lets
    every paused worker of the node go on.
    """

    kind: ClassVar[str] = "worker"
    form: ClassVar[str] = "worker:3.1"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")
    node: int
    which: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the worker that `text`, node and count, names."""
        node, _, which = text.partition(".")
        if not all(part.isascii() and part.isdigit() for part in (node, which)):
            return None
        return cls(int(node), int(which))

    def __str__(self) -> str:
        return f"worker:{self.node}.{self.which}"

    def kill(self, cluster: Cluster) -> None:
        """End it."""
        cluster.kill_worker(self.node, self.which)

    def pause(self, cluster: Cluster) -> None:
        """Stop it where it is."""
        cluster.pause_worker(self.node, self.which)

    def resume(self, cluster: Cluster) -> None:
        """Let all paused workers of the node go on."""
        cluster.resume_workers(self.node)
