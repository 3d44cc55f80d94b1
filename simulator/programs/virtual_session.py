"""The session of a program in virtual time: its futures can be awaited in a virtual event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.session.futures import LazyFuture, settled_item
from raytwin.runtime.session.session import Session
from raytwin.simulator.programs.virtual_world import VirtualEventLoop


class VirtualSession(Session):
    """A worker's session, and what those of drivers have in common with it."""

    def future(self, ref: ObjectRef) -> Future[Any]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of(ref)
        return LazyFuture(self, ref)

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualEventLoop):
            return loop.future_of_item(array, index)
        return settled_item(self, array, index)
