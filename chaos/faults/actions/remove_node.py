"""``remove_node``: end a node for good: nothing is drained, and its number is not used again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import none


class RemoveNode:
    """End a node for good: nothing is drained, and its number is not used again."""

    name: ClassVar[str] = "remove_node"
    parameters = staticmethod(none)

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.remove_node(cluster)
