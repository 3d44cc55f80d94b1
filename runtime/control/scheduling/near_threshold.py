"""This module counts the tasks that a policy keeps or spills near its threshold, ``spill_wait_s``.

A task is near the threshold if a threshold `NEAR` lower or higher would decide otherwise on it: its
estimated wait is within that part of the threshold, and small errors of the estimate, or of a
simulation's costs, turn the decision. Real nodes count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import LocalView, kept

NEAR = 0.2
"""A wait is near the threshold if they differ by no more than this part of the threshold."""
NEAR_SHARE_MIN = 0.05
"""From this share of near tasks on a run is near the threshold."""


@dataclass(frozen=True)
class ThresholdTally:
    """Counts of a run."""

    spill_wait_s: float = 0.0
    """The threshold."""
    tasks: int = 0
    """The tasks that the policy has kept or spilled by comparing a wait with it."""
    near: int = 0
    """The tasks that the policy would have kept or spilled otherwise, had its threshold been `NEAR`
    lower or higher."""

    @property
    def share(self) -> float:
        """The share of the tasks that are near."""
        return self.near / self.tasks if self.tasks else 0.0

    @property
    def is_near(self) -> bool:
        """Whether so many tasks are near that the run depends on the threshold."""
        return self.share >= NEAR_SHARE_MIN

    @property
    def sides_s(self) -> tuple[float, float]:
        """The threshold `NEAR` lower and higher."""
        return self.spill_wait_s * (1 - NEAR), self.spill_wait_s * (1 + NEAR)


class ThresholdCounter:
    """Counts the decisions of policies; each calls it as its `Policy.on_threshold`.

    Cost: the rule of `Policy.keep` once or twice more for each decision.
    """

    def __init__(self, config: Config) -> None:
        self._wait_s = config.spill_wait_s
        self._lower_s, self._higher_s = ThresholdTally(config.spill_wait_s).sides_s
        self._tasks_per_slot = config.spill_tasks_per_slot
        self._tasks = 0
        self._near = 0

    def __call__(self, view: LocalView, count: int) -> None:
        self._tasks += count
        more = kept(view, count, self._higher_s, self._tasks_per_slot)
        if more:
            self._near += more - kept(view, count, self._lower_s, self._tasks_per_slot)

    @property
    def tally(self) -> ThresholdTally:
        """The counts up to now."""
        return ThresholdTally(self._wait_s, self._tasks, self._near)
