"""``head``: the process of the GCS and the global scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from chaos.cluster import RealCluster


@dataclass(frozen=True)
class Head:
    """There is one.

    A killed one starts again from what is on disk. Without `gcs_storage` the step
    is not possible: nobody else has the state, unless there are replicas, which are
    targets of their own.
    """

    kind: ClassVar[str] = "head"
    form: ClassVar[str] = "head"
    backends: ClassVar[tuple[str, ...]] = ("local",)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Nothing may follow."""
        return None if text else cls()

    def __str__(self) -> str:
        return "head"

    def kill(self, cluster: RealCluster) -> None:
        """End it."""
        cluster.kill_head()
