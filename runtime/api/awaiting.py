"""References in an event loop: the one place that knows asyncio.

It is loaded by the first call here: most processes have no event loop, and every
one of them would have its 3 MB.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio


def as_asyncio(future: Future[Any]) -> asyncio.Future[Any]:
    """Return a future of the running event loop that follows another one."""
    import asyncio

    return asyncio.wrap_future(future)


class Turns:
    """Has the coroutines of each event loop do something one after another.

    Coroutines of one loop wait for no other one's: that may have stopped for good.
    """

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def mine(self) -> AbstractAsyncContextManager[None]:
        """Return what a coroutine of the running loop enters when it is its turn."""
        import asyncio

        if self._locks is None:
            self._locks = WeakKeyDictionary()
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def wait_for(future: Future[Any]) -> Generator[Any, None, Any]:
    """Do what ``await`` does with a future's value."""
    return as_asyncio(future).__await__()
