"""Values as `concurrent.futures.Future`s, and so for asyncio.

In real time one thread per session waits for all pending futures (`PendingFutures`). Virtual time
passes only while code waits, so a `LazyFuture` runs the simulation when the program asks for its
result or adds a callback. An event loop in a simulated driver therefore awaits references one
after another, in virtual time, while the loop's own timers are in real time. A future of a
stream's next item works in the same ways.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Any, Protocol

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.client.owned_arrays import Waiter
from raytwin.runtime.control.core.ids import item_id, object_id
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.values import StreamItems, Values, Waits


class SessionParts(Protocol):
    """The parts of a session that futures need."""

    @property
    def references(self) -> SessionReferences: ...
    @property
    def waits(self) -> Waits: ...
    @property
    def values(self) -> Values: ...
    @property
    def streams(self) -> StreamItems: ...


class NotifyingWaiter(Waiter):
    """A waiter that adds itself to a list once its objects have come."""

    __slots__ = ("_missing", "done", "future", "ref")
    may_miss = 0
    """Number of the awaited objects that need not come."""

    def __init__(self, ref: ObjectRef, future: Future[Any], done: list[NotifyingWaiter]) -> None:
        self._missing = 0
        super().__init__()
        self.ref = ref
        self.future = future
        self.done = done

    @property
    def missing(self) -> int:
        return self._missing

    @missing.setter
    def missing(self, value: int) -> None:
        before, self._missing = self._missing, value
        if before > value == self.may_miss:
            self.done.append(self)

    @property
    def ready(self) -> bool:
        return self._missing <= self.may_miss

    @property
    def awaited(self) -> tuple[bytes, ...]:
        """The IDs of the awaited objects."""
        return (self.ref.binary(),)

    def watch(self, session: SessionParts) -> None:
        """Begin to wait; in a turn."""
        session.references.collect()
        client = session.references.client
        client.buffer.flush()
        client.waits.watch(self.awaited, waiter=self)

    def leave(self, session: SessionParts) -> None:
        """Stop waiting."""
        with session.references.world:
            session.references.client.waits.unwatch(self.awaited, self)

    def value(self, session: SessionParts) -> Any:
        """Return the value. Raises its task's error."""
        return session.values.get([self.ref], None)[0]


class ItemWaiter(NotifyingWaiter):
    """A waiter for an item of a stream or for its end, whichever comes first."""

    __slots__ = ("_awaited", "_entry", "_index")
    may_miss = 1

    def __init__(
        self, session: SessionParts, array: bytes, index: int, done: list[NotifyingWaiter]
    ) -> None:
        self._entry = session.references.client.entries[array]
        self._index = index
        # The waiter keeps the stream alive.
        end = ObjectRef(object_id(array, 0, 0), session.references)
        super().__init__(end, Future(), done)
        self.fetch = False
        self._awaited = (self.ref.binary(), item_id(array, index))

    @property
    def awaited(self) -> tuple[bytes, ...]:
        return self._awaited

    def value(self, session: SessionParts) -> ObjectRef | None:
        """Return the item's reference, or None if the stream has ended before it."""
        # The other awaited object may never come, and a stream would collect a waiter per item.
        self.leave(session)
        return session.streams.item_of(self._entry, self._index)


class PendingFutures:
    """Completes the futures of one session of a real backend."""

    def __init__(self, session: SessionParts) -> None:
        self._session = session
        self._world = session.references.world
        self._done: list[NotifyingWaiter] = []
        self._pending: set[NotifyingWaiter] = set()
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None
        """The thread that waits for the pending futures; None while there are none."""
        self._stopping = False
        self.lasting = False
        """Whether futures outlive the call that made them: true in an actor's event loop."""

    def future(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of a reference's value.

        Its error is RaySystemError once the cluster is gone, or once the task that made the future
        has ended.
        """
        waiter = NotifyingWaiter(ref, Future(), self._done)
        self._begin(waiter)
        return waiter.future

    def item(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of the result of `next_item`, with the errors of `future`."""
        waiter = ItemWaiter(self._session, array, index, self._done)
        if not self._begin(waiter):
            waiter.future.add_done_callback(lambda future: self._forget(waiter, future))
        return waiter.future

    def _begin(self, waiter: NotifyingWaiter) -> bool:
        """Begin to wait; return whether the value is there already."""
        # First, as the thread completes only waiters that are pending.
        with self._lock:
            self._pending.add(waiter)
        try:
            with self._world:
                waiter.watch(self._session)
        except BaseException:
            self._take(waiter)
            raise
        if waiter.ready:
            if self._take(waiter):
                self._complete(waiter)
            # The waiter may have added itself to the list, which the thread has not read yet.
            with suppress(ValueError):
                self._done.remove(waiter)
            return True
        with self._lock:
            if self._pending and self.thread is None:
                self.thread = threading.Thread(
                    target=self._run, name="raytwin-futures", daemon=True
                )
                self.thread.start()
        return False

    def _take(self, waiter: NotifyingWaiter) -> bool:
        with self._lock:
            known = waiter in self._pending
            self._pending.discard(waiter)
        return known

    def _forget(self, waiter: ItemWaiter, future: Future[Any]) -> None:
        """Stop waiting for an item whose future was cancelled."""
        if future.cancelled():
            self._take(waiter)
            waiter.leave(self._session)

    def abandon(self) -> None:
        """Give up the futures of a task that has ended."""
        thread = self.thread
        if thread is None or self.lasting:
            return
        self._stopping = True
        self._world.wake_blocked()
        thread.join()
        self._stopping = False
        # Cleared first: after `_give_up` it may have a future that another thread made meanwhile.
        self._done.clear()
        given_up = self._give_up("the task that made this future has ended")
        for waiter in given_up:
            waiter.leave(self._session)
        with self._world:
            self._done[:] = [waiter for waiter in self._done if waiter not in given_up]

    def _run(self) -> None:
        try:
            while True:
                self._session.waits.until(lambda: bool(self._done) or self._stopping, None)
                while (waiter := self._next_done()) is not None:
                    # A large value's copy may be lost again; then the node fetches it once more.
                    if not waiter.ready:
                        continue
                    if self._take(waiter):
                        self._complete(waiter)
                with self._lock:
                    if self._stopping or not self._pending:
                        self.thread = None
                        return
        except RaySystemError as error:
            self._give_up(str(error))
        finally:
            with self._lock:
                if self.thread is threading.current_thread():
                    self.thread = None

    def _next_done(self) -> NotifyingWaiter | None:
        # `_begin` removes waiters too, so the list may be empty.
        with suppress(IndexError):
            return self._done.pop()
        return None

    def _give_up(self, reason: str) -> set[NotifyingWaiter]:
        """Set an error on all pending futures; return their waiters."""
        with self._lock:
            given_up, self._pending = self._pending, set()
            if self.thread is threading.current_thread():
                self.thread = None
        for waiter in given_up:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_exception(RaySystemError(reason))
        return given_up

    def _complete(self, waiter: NotifyingWaiter) -> None:
        if not waiter.future.set_running_or_notify_cancel():
            return
        settle(waiter.future, lambda: waiter.value(self._session))


class LazyFuture(Future[Any]):
    """A future in virtual time, which waits for its value when the program asks for the result.

    Virtual time passes only while code waits. So `add_done_callback`, and
    `concurrent.futures.wait` or `as_completed`, wait for the value at once, too.
    """

    def __init__(self, session: SessionParts, ref: ObjectRef) -> None:
        super().__init__()
        self._session = session
        self._ref = ref
        # `concurrent.futures.wait` and `as_completed` add their waiters to this list.
        self._waiters = _SettlingList(self)

    def done(self) -> bool:
        return super().done() or self._settles_within(0.0)

    def result(self, timeout: float | None = None) -> Any:
        self._get(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._get(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        import asyncio

        # Outside of an event loop the program itself waits here, and may give up its CPU.
        self.settle(keeps_cpu=asyncio._get_running_loop() is not None)
        super().add_done_callback(fn)

    def _get(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            self.settle()
        elif not super().done() and not self._settles_within(timeout_s):
            raise TimeoutError

    def _settles_within(self, timeout_s: float) -> bool:
        waits = self._session.waits
        with suppress(RaySystemError), waits.keeping_cpu():
            if not waits.wait([self._ref], 1, timeout_s, True)[0]:
                return False
        self.settle()
        return True

    def settle(self, keeps_cpu: bool = True) -> None:
        """Wait for the value, however long that takes."""
        if super().done():
            return
        with self._session.references.world:
            pass  # raises on a thread that may not wait, and leaves the future pending

        def value() -> Any:
            with self._session.waits.keeping_cpu() if keeps_cpu else nullcontext():
                return self._session.values.get([self._ref], None)[0]

        settle(self, value)


class _SettlingList(list[Any]):
    """The waiters of a lazy future, which settles the future when one is added."""

    def __init__(self, future: LazyFuture) -> None:
        super().__init__()
        self._future = future

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._future.settle()


def settled_item(session: SessionParts, array: bytes, index: int) -> Future[ObjectRef | None]:
    """Wait for a stream's item in virtual time; return a settled future of it."""

    def item() -> ObjectRef | None:
        with session.waits.keeping_cpu():
            return session.streams.next_item(array, index, None)

    future: Future[ObjectRef | None] = Future()
    settle(future, item)
    return future


def settle(future: Future[Any], get: Callable[[], Any]) -> None:
    """Set a future to the value that `get` returns, or to the error that it raises."""
    try:
        value = get()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(value)
