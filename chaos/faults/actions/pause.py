"""``pause``: stop it where it is, as SIGSTOP does: connections stay open, nobody answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import none


class Pause:
    """Stop it where it is, as SIGSTOP does: connections stay open, nobody answers."""

    name: ClassVar[str] = "pause"
    parameters = staticmethod(none)

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.pause(cluster)
