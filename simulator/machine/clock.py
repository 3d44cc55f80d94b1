"""Virtual time: SimPy's environment, with a faster `now` and `step`.

A simulation processes millions of events and reads `now` a dozen times in each: here
it is an attribute, not a property, and `step` omits SimPy's handling of failed events
and of `run`, which this package does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, Event


class Call(Event):
    """An event that calls a function when it is due."""

    __slots__ = ("call", "callbacks")

    _ok = True
    _value = None

    def __init__(
        self, call: Callable[[], object], callbacks: list[Callable[[Any], None]] | None = None
    ) -> None:
        """`callbacks` replace the one that makes the call."""
        # SimPy's own constructor is skipped: it allocates a list per event.
        self.call = call
        self.callbacks = callbacks or _MAKE_CALL


def _make_call(event: Call) -> None:
    event.call()


_MAKE_CALL: list[Callable[[Any], None]] = [_make_call]


class Clock(simpy.Environment):
    """Virtual time in seconds, from 0 on, and the queue of events."""

    now = 0.0

    def step(self) -> None:
        """Process the next event; raises simpy's `EmptySchedule` if there is none."""
        queue = self._queue
        if not queue:
            raise EmptySchedule
        when_s, _, _, event = heappop(queue)
        self.now = self._now = when_s
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)

    def after(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call a function after a delay, from an event of its own."""
        heappush(self._queue, (self._now + delay_s, NORMAL, next(self._eid), Call(call)))

    def schedule_at(self, event: Event, when_s: float) -> None:
        """Make an event due at exactly `when_s`; `schedule` with a delay would round it."""
        heappush(self._queue, (when_s, NORMAL, next(self._eid), event))
