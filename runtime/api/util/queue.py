"""A first-in first-out queue that drivers, tasks and actors share.

The queue lives in an actor of its own; a `Queue` is a handle that the program may send
anywhere. A `get` or `put` that has to wait does so in a coroutine of the actor, whose
``max_concurrency`` limits their number.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable
from typing import Any

from raytwin.runtime.api.actors import ActorClass, kill
from raytwin.runtime.api.exceptions import RayActorError
from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.tasks import get, wait

__getattr__ = missing_names("util.queue")


class Empty(queue.Empty):
    """The queue has no item, or got none in time."""


class Full(queue.Full):
    """The queue has no room, or got none in time."""


@explains_missing_attributes("Queue")
class Queue:
    """A distributed queue, with the methods of the standard library's.

    ``maxsize`` is in items, 0 for no limit; ``actor_options`` are options of the
    queue's actor.
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor: Any = ActorClass(_Items).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Return the number of items."""
        return int(get(self._live().size.remote()))

    def qsize(self) -> int:
        """Return the number of items."""
        return self.size()

    def empty(self) -> bool:
        """Whether there is no item."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether there is no room; always False for a queue without limit."""
        return 0 < self.maxsize <= self.size()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. Raises Full if there is no room, or none within ``timeout`` s.

        Without ``block`` it does not wait; ValueError for a negative timeout.
        """
        wait_s = _wait_seconds(block, timeout)
        if not get(self._live().put.remote(item, wait_s)):
            raise Full("the queue is full")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the oldest item. Raises Empty; arguments as in `put`."""
        items = get(self._live().get.remote(_wait_seconds(block, timeout)))
        if not items:
            raise Empty("the queue is empty")
        return items[0]

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, as `put` does, without blocking the event loop."""
        wait_s = _wait_seconds(block, timeout)
        if not await self._live().put.remote(item, wait_s):
            raise Full("the queue is full")

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the oldest item, as `get` does, without blocking the event loop."""
        items = await self._live().get.remote(_wait_seconds(block, timeout))
        if not items:
            raise Empty("the queue is empty")
        return items[0]

    def put_nowait(self, item: Any) -> None:
        """Add an item or raise Full."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Remove and return the oldest item, or raise Empty."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items, in order, or none of them and raise Full."""
        if not isinstance(items, Iterable):
            raise TypeError(f"items are iterable, but {type(items).__name__} is not")
        batch = list(items)
        size = get(self._live().put_batch.remote(batch))
        if size is not None:
            raise Full(f"no room for {len(batch)} items: {size} of {self.maxsize} are there")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove the oldest ``num_items`` items and return them.

        Raises Empty, and removes none, if there are fewer.
        """
        if not isinstance(num_items, int):
            raise TypeError(f"num_items is an integer, not {num_items!r}")
        if num_items < 0:
            raise ValueError(f"num_items is not negative, but {num_items}")
        items, size = get(self._live().get_batch.remote(num_items))
        if size < num_items:
            raise Empty(f"{num_items} items are not there, but {size}")
        return list(items)

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue's actor, and the items with it.

        Pending calls may end within ``grace_period_s``; with ``force`` the actor is
        killed at once. Later calls raise RayActorError.
        """
        actor, self.actor = self.actor, None
        if actor is None:
            return
        if not force:
            wait([actor.__ray_terminate__.remote()], timeout=grace_period_s)
        kill(actor)

    def _live(self) -> Any:
        if self.actor is None:
            raise RayActorError("the queue was shut down")
        return self.actor


def _wait_seconds(block: bool, timeout: float | None) -> float | None:
    """Return the seconds to wait, None for no limit."""
    if not block:
        return 0.0
    if timeout is not None and timeout < 0:
        raise ValueError(f"'timeout' is not negative, but {timeout}")
    return timeout


class _Items:
    """The queue's actor. Its replies report failures as values, which cost no traceback."""

    def __init__(self, maxsize: int) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def put(self, item: Any, wait_s: float | None) -> bool:
        """Return whether there was room."""
        if wait_s != 0 or not self._queue.full():
            # Not `wait_for` with 0, which times out before it has tried.
            try:
                await asyncio.wait_for(self._queue.put(item), wait_s or None)
            except TimeoutError:
                return False
            return True
        return False

    async def get(self, wait_s: float | None) -> list[Any]:
        """Return the item in a list, an empty one if there is none."""
        if wait_s != 0 or not self._queue.empty():
            try:
                return [await asyncio.wait_for(self._queue.get(), wait_s or None)]
            except TimeoutError:
                return []
        return []

    async def put_batch(self, items: list[Any]) -> int | None:
        """Add all items and return None, or return the size if there is not room for all."""
        size = self._queue.qsize()
        if 0 < self._queue.maxsize < size + len(items):
            return size
        for item in items:
            self._queue.put_nowait(item)
        return None

    async def get_batch(self, count: int) -> tuple[list[Any], int]:
        """Return (`count` items or none if there are fewer, the former size)."""
        size = self._queue.qsize()
        if size < count:
            return [], size
        return [self._queue.get_nowait() for _ in range(count)], size

    async def size(self) -> int:
        return self._queue.qsize()
