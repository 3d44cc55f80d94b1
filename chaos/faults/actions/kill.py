"""``kill``: end it at once, as SIGKILL does; nothing is told to anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import none


class Kill:
    """End it at once, as SIGKILL does; nothing is told to anybody."""

    name: ClassVar[str] = "kill"
    parameters = staticmethod(none)

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.kill(cluster)
