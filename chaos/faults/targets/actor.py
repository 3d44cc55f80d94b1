"""``actor:1``: the process of an actor, counted from the oldest of those that live then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class Actor:
    """The `which`-th actor's process, by node and its age, counted round and round from 0.

    A killed one starts again as often as the actor may restart.
    """

    kind: ClassVar[str] = "actor"
    form: ClassVar[str] = "actor:1"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")
    which: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the actor that `text`, a number, names."""
        return cls(int(text)) if text.isascii() and text.isdigit() else None

    def __str__(self) -> str:
        return f"actor:{self.which}"

    def kill(self, cluster: Cluster) -> None:
        """End its process."""
        cluster.kill_actor(self.which)
