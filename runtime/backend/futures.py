"""Values as `concurrent.futures.Future`s, and so for asyncio.

In real time one thread per session waits for all of them, as long as there are
any: `FutureDesk`. In virtual time nothing happens while nobody waits, so there
the simulation is run by whoever asks for the result or for a call-back:
`LazyFuture`. An event loop in a simulated driver therefore awaits references in
the order in which it comes to them; virtual time passes meanwhile, its own
timers are in real time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from runtime.control.entries import Waiter

if TYPE_CHECKING:
    from runtime.api.refs import ObjectRef
    from runtime.backend.session import Session


class NotifyingWaiter(Waiter):
    """A waiter that says when nothing is missing any more."""

    __slots__ = ("_missing", "done", "future", "ref")

    def __init__(self, ref: ObjectRef, future: Future[Any], done: list[NotifyingWaiter]) -> None:
        self.done: list[NotifyingWaiter] = []  # until all is in place
        super().__init__()
        self.ref = ref
        self.future = future
        self.done = done

    @property
    def missing(self) -> int:
        return self._missing

    @missing.setter
    def missing(self, value: int) -> None:
        self._missing = value
        if not value:
            self.done.append(self)


class FutureDesk:
    """Completes the futures of one session of a real backend."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done: list[NotifyingWaiter] = []
        self._pending = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def future(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of a reference's value."""
        future: Future[Any] = Future()
        session = self._session
        waiter = NotifyingWaiter(ref, future, self._done)
        with session.world:
            session.collect()
            session.client.flush()
            session.client.watch([ref.binary()], waiter=waiter)
        if not waiter.missing:
            self._complete(waiter)
            return future
        with self._lock:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="raytwin-futures", daemon=True
                )
                self._thread.start()
        return future

    def abandon(self) -> None:
        """The task has ended: what it has not waited for is nobody's."""
        thread = self._thread
        if thread is None:
            return
        self._stopping = True
        self._session.world.look_again()
        thread.join()
        self._stopping = False
        self._pending = 0
        self._done.clear()

    def _run(self) -> None:
        try:
            while True:
                self._session.wait_until(lambda: bool(self._done) or self._stopping)
                while self._done:
                    waiter = self._done.pop()
                    # It was at nothing for a moment, and then a large value was fetched.
                    if not waiter.missing and not waiter.future.done():
                        self._complete(waiter)
                        with self._lock:
                            self._pending -= 1
                with self._lock:
                    if self._stopping or not self._pending:
                        self._thread = None
                        return
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _complete(self, waiter: NotifyingWaiter) -> None:
        if not waiter.future.set_running_or_notify_cancel():
            return
        settle(waiter.future, lambda: self._session.get([waiter.ref], None)[0])


class LazyFuture(Future[Any]):
    """A future in virtual time: asking for it is what lets time pass."""

    def __init__(self, session: Session, ref: ObjectRef) -> None:
        super().__init__()
        self._session = session
        self._ref = ref

    def done(self) -> bool:
        if not super().done() and self._session.wait([self._ref], 1, 0.0, True)[0]:
            self._get(None)
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        self._get(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._get(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self._get(None)
        super().add_done_callback(fn)

    def _get(self, timeout_s: float | None) -> None:
        if super().done():
            return
        session = self._session
        if timeout_s is not None and not session.wait([self._ref], 1, timeout_s, True)[0]:
            raise TimeoutError
        settle(self, lambda: session.get([self._ref], None)[0])


def settle(future: Future[Any], get: Callable[[], Any]) -> None:
    """Give a future a value, or the error that comes instead."""
    try:
        value = get()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(value)
