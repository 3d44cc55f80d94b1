"""Virtual time: SimPy's environment, made quick where it is used most.

`now` is read a dozen times per event and events are processed by the million:
here it is an attribute, not a property, and `step` omits SimPy's handling of failed
events and of `run`, which this package does not use.
"""

from __future__ import annotations

from heapq import heappop

import simpy
from simpy.core import EmptySchedule


class Clock(simpy.Environment):
    """Virtual time in seconds, from 0 on, and the events that are due."""

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
