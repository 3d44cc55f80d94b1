"""``restart``: start it again under its name, with nothing of what it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import none


class Restart:
    """Start it again under its name, with nothing of what it had."""

    name: ClassVar[str] = "restart"
    parameters = staticmethod(none)

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.restart(cluster)
