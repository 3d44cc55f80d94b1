"""The event loop of an actor whose class has async methods.

It is one loop, on one thread, from before the constructor to the actor's end, however many
calls run at a time: what the constructor or a call sets going there goes on when they have
ended. All of the actor's own code runs on that thread, so that what belongs to a thread or
to a loop (a connection to sqlite, a future) is the same in the constructor and in every call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from raytwin.runtime.session.world import World

if TYPE_CHECKING:
    import asyncio


class EventLoop:
    """Runs what an actor's own thread has to run before it takes calls, and waits for it."""

    def __init__(self, world: World, failed: Callable[[BaseException], None]) -> None:
        """Start the loop; `failed` is called if something in it ends the process."""
        self._world = world
        self._failed = failed
        self._end: BaseException | None = None
        self.loop = world.start_event_loop(self._ended)

    def run(self, call: Callable[[], Any]) -> Any:
        """Call something in the loop, as an asyncio task; return or raise what it does.

        A coroutine is awaited. Must not be called on the loop's own thread.
        """
        world = self._world
        values: list[Any] = []
        errors: list[BaseException] = []
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                value = call()
                values.append(await value if type(value) is CoroutineType else value)
            except world.unwinding:
                raise
            except BaseException as error:
                # All of them: the thread that waits raises it.
                errors.append(error)
            world.nudge()

        # In the list, since a loop alone does not keep its tasks.
        self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(run())))
        world.block(lambda: bool(values or errors or self._end), None)
        if values:
            return values.pop()
        # The list does not refer to it any more: its traceback refers to this frame.
        raise errors.pop() if errors else self._take_end()

    def _ended(self, error: BaseException) -> None:
        self._end = error
        self._failed(error)

    def _take_end(self) -> BaseException:
        assert self._end is not None
        return self._end


def has_async_methods(cls: type) -> bool:
    """Whether a class is an async actor's: any of its methods is a coroutine's or yields so."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(cls, inspect.isroutine)
    )


async def made_in_loop(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Make an instance of a class whose ``__init__`` is async."""
    instance = cls.__new__(cls, *args, **kwargs)
    await instance.__init__(*args, **kwargs)
    return instance
