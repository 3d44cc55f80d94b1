"""``cluster``: the cluster as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from raytwin.chaos.faults.cluster_operations import Cluster


@dataclass(frozen=True)
class WholeCluster:
    """There is one."""

    kind: ClassVar[str] = "cluster"
    form: ClassVar[str] = "cluster"
    backends: ClassVar[tuple[str, ...]] = ("sim", "local")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Nothing may follow."""
        return None if text else cls()

    def __str__(self) -> str:
        return "cluster"

    def add_node(self, cluster: Cluster, resources: Mapping[str, float]) -> None:
        """Start one more node."""
        cluster.add_node(resources)
