"""``replica:2.0``: a replica of the GCS, by chain, counted from the chain's head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class Replica:
    """The `which`-th member of a chain, counted round and round from 0, the head.

    Chain 0 is the GCS without its shards, chain k shard k. The last member is not
    killed unless it has the state on disk, of which it starts again: nobody else would
    have it. A killed one is replaced by itself.
    """

    kind: ClassVar[str] = "replica"
    form: ClassVar[str] = "replica:0.1"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")
    chain: int
    which: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the replica that `text`, chain and count, names."""
        chain, _, which = text.partition(".")
        if not all(part.isascii() and part.isdigit() for part in (chain, which)):
            return None
        return cls(int(chain), int(which))

    def __str__(self) -> str:
        return f"replica:{self.chain}.{self.which}"

    def kill(self, cluster: Cluster) -> None:
        """End it."""
        cluster.kill_member(self.chain, self.which)
