"""Virtual time: SimPy's environment, made quick where it is used most.

`now` is read a dozen times per event and events are processed by the million:
here it is an attribute, not a property, and `step` leaves out what this package
has no use for (failed events, and `run`, which stops by an exception).
"""

from __future__ import annotations

from heapq import heappop

import simpy
from simpy.core import EmptySchedule


class Clock(simpy.Environment):
    """Time in seconds from 0 on, and what is due."""

    now = 0.0

    def step(self) -> None:
        """Process the next event; raises simpy's `EmptySchedule` if there is none."""
        if not self._queue:
            raise EmptySchedule
        self._now, _, _, event = heappop(self._queue)
        self.now = self._now
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
