"""What the bodies of programs cost in virtual time: what they declare, or what they take here.

A body is what a task, a call or a driver does between its API calls. What the API calls cost is in
the profile.

declared   nothing, but for `raytwin.compute`, `raytwin.sleep` and, where the clock is virtual,
           `time.sleep` and its like: one seed is one execution
measured   besides these the CPU time of the simulation's thread in the body, times the profile's
           `body_scale`: no two runs are quite the same
"""

from __future__ import annotations

from enum import Enum
from time import thread_time
from typing import TYPE_CHECKING

from raytwin.runtime.session.world import BodyWatcher

if TYPE_CHECKING:
    from raytwin.simulator.programs.virtual_world import SimWorld


class BodyCost(Enum):
    """How the cost of a body is known."""

    DECLARED = "declared"
    MEASURED = "measured"


class DeclaredCosts:
    """Bodies cost what they declare."""

    cost = BodyCost.DECLARED

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        return None


class MeasuredCosts:
    """Bodies cost the CPU time that they take here, times `scale`."""

    cost = BodyCost.MEASURED

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.measured_s = 0.0
        """CPU time of all bodies so far, as it was here."""

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        return _Stopwatch(self, world)


class _Stopwatch:
    """Charges one program the CPU time that its own code takes; see `BodyWatcher`.

    Whenever the program waits its own code does not run, so one thread's clock serves all of its
    greenlets.
    """

    def __init__(self, costs: MeasuredCosts, world: SimWorld) -> None:
        self._costs = costs
        self._world = world
        self._since_s: float | None = None
        """The thread's CPU time when own code began or went on; None while it does not run."""

    def begin(self) -> None:
        self._since_s = thread_time()

    def end(self) -> None:
        self.leave("")
        self._world.pay()

    def leave(self, call: str) -> bool:
        since_s, self._since_s = self._since_s, None
        if since_s is None:
            return False
        used_s = thread_time() - since_s
        self._costs.measured_s += used_s
        self._world.process.debt_s += used_s * self._costs.scale
        return True

    def back(self) -> None:
        self._since_s = thread_time()
