"""Placement groups that are asked for and not known: how long the global scheduler waits.

A task can be here before its group is. Both were sent in the right order, but by way of two
nodes: the group's creation comes from its creator's, the task from where the creator's handle
was used. So it waits. But it may also be in vain, and the table (`placement_groups`) cannot
tell: the group was removed, and `REMOVED_MAX` others since; its job is over; its creator died
before the creation had left; or there never was one of that ID.

What tells is time. A creation that is still on its way when `wait_s` is over is that of a node
which has been silent for twice as long as one that lives may be. So what waits is ended then, as
if the group were known to be removed. Its creation is taken all the same if it does come: a
creator whose node has died runs again, and what is submitted from then on runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from runtime.control.config import Config
from runtime.control.context import Context

LATE_S = 10.0
"""What is asked for waits for its group at least so long,"""
TIMEOUTS = 2.0
"""and so many times as long as a node may be silent (`heartbeat_timeout_s`)."""


class LateGroups:
    """Those that something waits for; part of the global scheduler."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        known: Container[str],
        give_up: Callable[[str], None],
    ) -> None:
        self._ctx = ctx
        self.wait_s = max(LATE_S, TIMEOUTS * config.heartbeat_timeout_s)
        self._known = known
        """Groups that are there."""
        self._give_up = give_up
        """Called with one that has not come."""
        self._until: dict[str, float] = {}
        """Until when each is waited for, soonest first."""

    def expect(self, group: str) -> None:
        """Something in it waits: unless the group comes, give up what does."""
        if group in self._known or group in self._until:
            return
        self._until[group] = self._ctx.now() + self.wait_s
        if len(self._until) == 1:
            self._ctx.after(self.wait_s, self._look)

    def _look(self) -> None:
        now = self._ctx.now()
        for group in [group for group, until_s in self._until.items() if until_s <= now]:
            del self._until[group]
            if group not in self._known:
                self._give_up(group)
        for until_s in self._until.values():
            self._ctx.after(until_s - now, self._look)
            break
