"""The event loop: file descriptors and timers, one pass at a time.

`poll` waits once and `dispatch` calls back for the events found, so the caller
decides which thread runs the callbacks: a driver's thread that waits runs them
itself, which saves a thread switch per message.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANG_UP = select.EPOLLHUP | select.EPOLLERR

Callback = Callable[[int], None]


class RealTimer:
    """A callback in the future; see `context.Timer`."""

    __slots__ = ("callback", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """epoll with timers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, RealTimer]] = []
        self.timers_set = 0
        """How many timers were set so far."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add(self._wake_fd, READ, self._on_wake)

    def add(self, fd: int, events: int, callback: Callback) -> None:
        """Call `callback(events)` whenever the descriptor is ready."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Change the events for which a descriptor waits."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, delay_s: float, callback: Callable[[], None]) -> RealTimer:
        """Call back once, after `delay_s` seconds."""
        timer = RealTimer(time.monotonic() + delay_s, callback)
        self.timers_set += 1
        heapq.heappush(self._timers, (timer.due_s, self.timers_set, timer))
        return timer

    def next_due_s(self) -> float | None:
        """Return when the next timer is due, None if there is none."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait until a descriptor is ready, a timer is due or the timeout is over."""
        due_s = self.next_due_s()
        if due_s is not None:
            left_s = max(0.0, due_s - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        return self._epoll.poll(timeout_s, 256)

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait until a descriptor is ready or the timeout is over.

        Touches nothing but the kernel's state, so other threads may add
        descriptors and timers meanwhile.
        """
        return self._epoll.poll(timeout_s, 256)

    def dispatch(self, events: list[tuple[int, int]]) -> None:
        """Call the callbacks of the events."""
        for fd, mask in events:
            callback = self._callbacks.get(fd)
            if callback is not None:  # else removed by an earlier callback
                callback(mask)

    def fire(self) -> bool:
        """Call the callbacks of the timers that are due; return whether there were any."""
        if not self._timers or self._timers[0][0] > (now_s := time.monotonic()):
            return False
        while self._timers and self._timers[0][0] <= now_s:
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                callback_now, timer.callback = timer.callback, None
                callback_now()
        return True

    def wake(self) -> None:
        """Make the `poll` or `wait` under way return; any thread may call this."""
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close the descriptors."""
        self._epoll.close()
        os.close(self._wake_fd)

    def _on_wake(self, mask: int) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return  # another thread has read it
