"""``head``: the process of the GCS and the global scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class Head:
    """There is one.

    A killed one starts again, and goes on with the replicas or from what is on disk.
    Without `gcs_replicas`, `gcs_shards` and `gcs_storage` the step is not possible:
    nobody else has the state.
    """

    kind: ClassVar[str] = "head"
    form: ClassVar[str] = "head"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Nothing may follow."""
        return None if text else cls()

    def __str__(self) -> str:
        return "head"

    def kill(self, cluster: Cluster) -> None:
        """End it."""
        cluster.kill_head()
