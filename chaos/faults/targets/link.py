"""``link:1>2``: what goes from one node to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import SimulatedCluster


@dataclass(frozen=True)
class Link:
    """One direction between two nodes."""

    kind: ClassVar[str] = "link"
    form: ClassVar[str] = "link:1>2"
    backends: ClassVar[tuple[str, ...]] = ("sim",)
    source: int
    destination: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the link that `text`, two numbers, names."""
        source, _, destination = text.partition(">")
        if not all(part.isascii() and part.isdigit() for part in (source, destination)):
            return None
        return cls(int(source), int(destination)) if source != destination else None

    def __str__(self) -> str:
        return f"link:{self.source}>{self.destination}"

    def latency(self, cluster: SimulatedCluster, latency_ms: float) -> None:
        """Give it a latency; 0 is its own again."""
        cluster.set_latency(self.source, self.destination, latency_ms / 1000 or None)
