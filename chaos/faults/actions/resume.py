"""``resume``: let it go on where it was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raytwin.chaos.faults.actions.parameters import none


class Resume:
    """Let it go on where it was stopped."""

    name: ClassVar[str] = "resume"
    parameters = staticmethod(none)

    @staticmethod
    def apply(target: Any, cluster: Any, parameters: Mapping[str, Any]) -> None:
        """Do it."""
        target.resume(cluster)
