"""asyncio in virtual time: the event loop of a simulated async actor.

An asyncio loop asks its selector to wait for files until the next timer is due.
Here there are no files: waiting is waiting in virtual time, until a timer or
until something is handed to the loop from outside.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.world import SimWorld


class _VirtualSelector(selectors.BaseSelector):
    """Waits in virtual time; the files it is given never become ready."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.woken = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._world.block(lambda: self.woken, timeout)
        self.woken = False
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the simulation's."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._virtual = _VirtualSelector(world)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._world.now()

    def _write_to_self(self) -> None:
        self._virtual.woken = True
        self._world.nudge()
