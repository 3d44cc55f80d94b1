"""asyncio in virtual time: the event loop of a simulated async actor.

An asyncio loop asks its selector to wait for files until the next timer is due.
Here there are no files: waiting is waiting in virtual time, until a timer or
until a value or callback from outside reaches the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn

from greenlet import GreenletExit

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.session.futures import ItemWaiter, NotifyingWaiter, settle
from raytwin.simulator.programs.virtual_program import VirtualProgram

REAL = (
    "a simulated actor's event loop is in virtual time, and cannot wait for real processes,"
    " sockets and pipes: use what blocks (subprocess.run), or run the program on backend 'local'"
)


class _VirtualSelector(selectors.BaseSelector):
    """Waits in virtual time; the files it is given never become ready."""

    def __init__(self, world: VirtualProgram) -> None:
        self._world = world
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.woken = False
        self.done: list[NotifyingWaiter] = []
        """Waiters whose reference has a value by now, or whose stream has an item."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._keys:  # the first is the loop's own
            raise RuntimeError(REAL)
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._world.block(lambda: self.woken or bool(self.done), timeout)
        self.woken = False
        while self.done:
            waiter = self.done.pop(0)
            # It may be unready again for a moment, while a large value is fetched.
            if waiter.ready and not waiter.future.done():
                assert self._world.session is not None
                settle(waiter.future, partial(waiter.value, self._world.session))
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the simulation's."""

    def __init__(self, world: VirtualProgram) -> None:
        self._world = world
        self._virtual = _VirtualSelector(world)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._world.now()

    def future_of(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of a reference's value, which the loop can await."""
        future: Future[Any] = Future()
        waiter = NotifyingWaiter(ref, future, self._virtual.done)
        with self._world:
            self._world.client.buffer.flush()
            self._world.client.waits.watch([ref.binary()], waiter=waiter)
        if not waiter.missing:
            self._virtual.done.append(waiter)
        return future

    def future_of_item(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of the next item in a stream, which the loop can await."""
        session = self._world.session
        assert session is not None
        waiter = ItemWaiter(session, array, index, self._virtual.done)
        with self._world:
            waiter.watch(session)
        if waiter.ready:
            self._virtual.done.append(waiter)
        waiter.future.add_done_callback(
            lambda future: waiter.leave(session) if future.cancelled() else None
        )
        return waiter.future

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(REAL)

    def _write_to_self(self) -> None:
        self._virtual.woken = True
        self._world.nudge()


def end(loop: asyncio.AbstractEventLoop | None) -> None:
    """Stop a loop for good, without reports, because its process has ended.

    Otherwise asyncio would take the error that unwinds a coroutine or callback for its
    result, and run the next one. Call this in the greenlet that runs the loop, also if
    that is the program's own. None, and loops that are not asyncio's, stay as they are.
    """
    if not isinstance(loop, asyncio.BaseEventLoop):
        return
    own: Any = loop
    loop.set_exception_handler(lambda loop, context: None)
    own._run_once = partial(_run_no_more, loop)
    _close_unbegun(loop)
    for handle in own._ready:  # or the round under way would still run them
        handle.cancel()


def _run_no_more(loop: asyncio.BaseEventLoop) -> NoReturn:
    _close_unbegun(loop)  # `asyncio.run` makes further coroutines at its end
    raise GreenletExit


def _close_unbegun(loop: asyncio.BaseEventLoop) -> None:
    """Close coroutines that have not begun, or Python warns that they were never awaited."""
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        if inspect.iscoroutine(coroutine) and (
            inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        ):
            coroutine.close()
