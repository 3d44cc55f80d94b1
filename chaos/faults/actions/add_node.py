"""``add_node``: one more node joins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import is_amount, only


class AddNode:
    """Start a node with ``resources``, such as {"CPU": 2}; node 0's if none are given.

    Nodes are numbered in the order in which they were started.
    """

    name: ClassVar[str] = "add_node"

    @staticmethod
    def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``resources``, which may be missing. Raises ValueError for what is none."""
        only(given, ("resources",))
        resources = given.get("resources", {})
        if not isinstance(resources, dict) or not all(map(is_amount, resources.values())):
            raise ValueError('give resources as amounts by name, such as {"CPU": 2}')
        return {"resources": {str(k): float(v) for k, v in resources.items()}} if resources else {}

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.add_node(cluster, parameters.get("resources", cluster.resources[0]))
