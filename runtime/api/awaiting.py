"""References in an event loop: the one place that knows asyncio.

It is loaded by the first call here: most processes have no event loop, and every
one of them would have its 3 MB.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def as_asyncio(future: Future[Any]) -> asyncio.Future[Any]:
    """Return a future of the running event loop that follows another one."""
    import asyncio

    return asyncio.wrap_future(future)


def wait_for(future: Future[Any]) -> Generator[Any, None, Any]:
    """Do what ``await`` does with a future's value."""
    return as_asyncio(future).__await__()
