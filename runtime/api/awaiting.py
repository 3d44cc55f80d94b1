"""References in an event loop: the one place that knows asyncio.

It is loaded by the first call here: most processes have no event loop, and every
one of them would have its 3 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def as_asyncio(future: Future[Any]) -> asyncio.Future[Any]:
    """Return a future of the running event loop that follows another one."""
    import asyncio

    return asyncio.wrap_future(future)


def wait_for(future: Future[Any]) -> Generator[Any, None, Any]:
    """Do what ``await`` does with a future's value."""
    return as_asyncio(future).__await__()


async def in_thread(call: Callable[[], T]) -> T:
    """Return what a call returns that waits, and let the event loop go on meanwhile."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, call)
