"""A pool of actors that share work: an idle actor takes the next item.

A work item is ``(function, value)``; ``function(actor, value)`` makes one actor call and
returns its reference. The pool starts an item on an idle actor, or the item waits for
one; it gets a number when it starts. An actor is idle again once the program has
collected the item's result, so a pool stalls unless its results are collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.tasks import get, wait

__getattr__ = missing_names("util.actor_pool")
Work = Callable[[Any, Any], Any]


@explains_missing_attributes("ActorPool")
class ActorPool:
    """Distributes calls among actors; see the module."""

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = list(actors)
        self._waiting: deque[tuple[Work, Any]] = deque()
        self._running: dict[int, tuple[Any, Any]] = {}
        """{number: (reference or list of them, actor)} of uncollected items."""
        self._started = 0
        self._next = 0
        """The number of the item whose result `get_next` returns."""

    def submit(self, fn: Work, value: Any) -> None:
        """Call ``fn(actor, value)`` with the next idle actor."""
        if self._idle:
            actor = self._idle.pop()
            self._running[self._started] = (fn(actor, value), actor)
            self._started += 1
        else:
            self._waiting.append((fn, value))

    def map(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Submit all values now; return an iterator over the results in order.

        Drops uncollected results of earlier submissions.
        """
        self._submit_all(fn, values)
        return self._collect(self.get_next)

    def map_unordered(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Submit all values, as `map`; the iterator yields each result as soon as it is there."""
        self._submit_all(fn, values)
        return self._collect(self.get_next_unordered)

    def has_next(self) -> bool:
        """Whether there are results to collect, now or later."""
        return bool(self._running)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result in the order of submission.

        Raises StopIteration if there is no further result, TimeoutError if it is not
        there after ``timeout`` seconds (``ignore_if_timedout`` then drops the
        result), ValueError if `get_next_unordered` has returned a later one, and the
        call's own exception.
        """
        self._check_any()
        if self._next not in self._running:
            raise ValueError("get_next cannot follow get_next_unordered: the order is lost")
        number = self._next
        ready = timeout is None or self._ready([number], timeout)
        return self._take(number if ready or ignore_if_timedout else None, bool(ready))

    def get_next_unordered(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Return the first result that is ready; raises as `get_next`.

        ``ignore_if_timedout`` drops the result of the oldest call.
        """
        self._check_any()
        numbers = list(self._running)
        ready = self._ready(numbers, timeout)
        number = ready[0] if ready else numbers[0] if ignore_if_timedout else None
        return self._take(number, bool(ready))

    def has_free(self) -> bool:
        """Whether an actor is idle and no work waits for it."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any | None:
        """Take an idle actor out of the pool; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor. Raises ValueError if it is in the pool already."""
        if actor in self._idle or any(actor == busy for _, busy in self._running.values()):
            raise ValueError(f"{actor!r} is in this pool already")
        self._free(actor)

    # -- inside ----------------------------------------------------------------

    def _submit_all(self, fn: Work, values: Iterable[Any]) -> None:
        while self._running:
            # Each actor takes a waiting item, which is dropped in turn.
            self._release(next(iter(self._running)))
        for value in values:
            self.submit(fn, value)

    def _collect(self, next_result: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield next_result()

    def _check_any(self) -> None:
        if not self._running:
            raise StopIteration("the pool has no results to come")

    def _ready(self, numbers: list[int], timeout: float | None) -> list[int]:
        """Return the number of a finished item, [] if none finishes in time."""
        # The references of one call are ready together, so the first one is enough.
        by_ref = {_first(self._running[number][0]): number for number in numbers}
        done, _ = wait(list(by_ref), num_returns=1, timeout=timeout)
        return [by_ref[ref] for ref in done]

    def _take(self, number: int | None, ready: bool) -> Any:
        """Collect a result; if it is not `ready`, drop it and raise TimeoutError."""
        if number is None:
            raise TimeoutError("no result in time")
        refs = self._release(number)
        if not ready:
            raise TimeoutError(f"no result in time; that of {refs} was dropped")
        return get(refs)

    def _release(self, number: int) -> Any:
        """Remove an item and give its actor the next one; return the item's references."""
        refs, actor = self._running.pop(number)
        self._next = max(self._next, number + 1)
        self._free(actor)
        return refs

    def _free(self, actor: Any) -> None:
        self._idle.append(actor)
        if self._waiting:
            self.submit(*self._waiting.popleft())


def _first(refs: Any) -> Any:
    return refs[0] if isinstance(refs, list) else refs
