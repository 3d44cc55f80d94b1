"""The time of a chain: its head's clock, shifted, and the machine's timers by it.

The head stamps each command; whoever follows it measures how far its own clock is off
(`follow`), and goes on from there if it becomes the head. So stamps never go back, and
replicas on several hosts need no common clock::

    stamp = now + shift, but not before the timer that the command is for
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.context import Context, Timer


class ChainClock:
    """The clock of one replica."""

    def __init__(self, ctx: Context, on_due: Callable[[], None]) -> None:
        """`on_due` is called when the time comes that was `set`."""
        self._ctx = ctx
        self._on_due = on_due
        self._shift_s = 0.0
        self._tick: Timer | None = None
        self._tick_s = 0.0

    def stamp_s(self, due_s: float) -> float:
        """Return the time of a command now, for a timer that was due at `due_s`."""
        # A timer's clock may be a hair behind what it was to wait for.
        return max(due_s, self._ctx.now() + self._shift_s)

    def follow(self, time_s: float) -> None:
        """A command came with this stamp."""
        self._shift_s = time_s - self._ctx.now()

    def set(self, due_s: float | None) -> None:
        """Wait for the next timer of the machine, if there is one."""
        if self._tick is not None:
            if due_s == self._tick_s:
                return
            self._tick.cancel()
            self._tick = None
        if due_s is not None:
            self._tick_s = due_s
            left_s = due_s - self._shift_s - self._ctx.now()
            self._tick = self._ctx.after(max(0.0, left_s), self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self._on_due()
