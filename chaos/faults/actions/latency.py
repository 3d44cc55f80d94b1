"""``latency``: what goes over a link takes longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import is_amount, only


class Latency:
    """A frame takes ``latency_ms`` from one end to the other; 0 is the link's own again."""

    name: ClassVar[str] = "latency"

    @staticmethod
    def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``latency_ms``. Raises ValueError without it."""
        only(given, ("latency_ms",))
        if not is_amount(given.get("latency_ms")):
            raise ValueError("give latency_ms, a number of at least 0")
        return {"latency_ms": float(given["latency_ms"])}

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.latency(cluster, parameters["latency_ms"])
