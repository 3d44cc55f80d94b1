"""The actor of figure 11b.

It has a module to itself, which each new worker imports before the actor begins: what only the
driver needs is in the figure's.
"""

from __future__ import annotations

import raytwin as ray
from raytwin.scenarios.core.execution_record import begin


class Stepper:
    """Counts its own calls; each takes a while, and writes down that it has begun."""

    def __init__(self, record: str) -> None:
        self.count = 0
        self.record = record

    def step(self, busy_s: float) -> tuple[int, float]:
        """Return how many calls have taken effect, and when this one ended."""
        begin(self.record)
        ray.sleep(busy_s)
        self.count += 1
        return self.count, ray.now()

    def __ray_save__(self) -> int:
        return self.count

    def __ray_restore__(self, state: int) -> None:
        self.count = state
