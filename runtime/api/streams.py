"""What a generator task returns: the references of its items, as they are made."""

from __future__ import annotations

import heapq
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from raytwin.runtime.api.awaiting import Turns, as_asyncio
from raytwin.runtime.api.exceptions import GetTimeoutError
from raytwin.runtime.api.modules import says_what_is_missing
from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.control.core.ids import ARRAY_BYTES


class Place:
    """Which item of a stream comes next: each is taken once, whoever waits."""

    def __init__(self) -> None:
        self._index = 0
        self._given_back: list[int] = []
        """Those before it that are to be taken again; a heap."""
        self._lock = threading.Lock()

    @property
    def index(self) -> int:
        """The next one."""
        return self._given_back[0] if self._given_back else self._index

    def take(self, index: int) -> bool:
        """Go past an item; False: another has meanwhile."""
        with self._lock:
            if index != self.index:
                return False
            if self._given_back:
                heapq.heappop(self._given_back)
            else:
                self._index += 1
            return True

    def give_back(self, index: int) -> None:
        """Who has taken an item was interrupted before it had it."""
        with self._lock:
            heapq.heappush(self._given_back, index)


class StreamHolder(Protocol):
    """Who knows what a stream has yielded: the backend."""

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        """Wait for an item of a stream; None: it has ended. Raises GetTimeoutError."""

    def take_item(self, array: bytes, place: Place) -> ObjectRef | None:
        """Wait for the next item of a stream and take it; None: it has ended."""

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of what `next_item` returns."""


@says_what_is_missing("ObjectRefGenerator")
class ObjectRefGenerator:
    """Iterates over the `ObjectRef`s of what a task yields.

    ``next`` waits until the task has yielded the item, and ends when the task
    has. If it raises, the last reference stands for the exception: its `get`
    raises it. The items live until no reference to any of them is left.

    Several threads or coroutines may take items: each item goes to one of them. An
    ``anext`` that is cancelled while it waits takes none. What waiting costs does not
    grow with how many wait: an item wakes one of the threads, and of an event loop's
    coroutines one waits for it and the others for their turn.
    """

    def __init__(self, end: ObjectRef, holder: StreamHolder) -> None:
        self._end = end
        self._array = end.binary()[:ARRAY_BYTES]
        self._holder = holder
        self._place = Place()
        self._over = False
        self._turns = Turns()

    def __iter__(self) -> Iterator[ObjectRef]:
        return self

    def __next__(self) -> ObjectRef:
        if not self._over:
            ref = self._holder.take_item(self._array, self._place)
            self._over = self._over or ref is None or ref == self._end
            if ref is not None:
                return ref
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    async def __anext__(self) -> ObjectRef:
        async with self._turns.mine():
            while not self._over:
                index = self._place.index
                ref = await as_asyncio(self._holder.item_future(self._array, index))
                # In a step of the event loop: a wait that is cancelled does not come here.
                if self._place.take(index):
                    self._over = self._over or ref is None or ref == self._end
                    if ref is not None:
                        return ref
        raise StopAsyncIteration

    def completed(self) -> ObjectRef:
        """Return a reference that is ready once the task has ended."""
        return self._end

    def next_ready(self) -> bool:
        """Whether `next` would not wait."""
        if self._over:
            return False
        try:
            return self._holder.next_item(self._array, self._place.index, 0) is not None
        except GetTimeoutError:
            return False

    def is_finished(self) -> bool:
        """Whether all of the references have been taken."""
        if self._over:
            return True
        try:
            return self._holder.next_item(self._array, self._place.index, 0) is None
        except GetTimeoutError:
            return False

    def position(self) -> tuple[bytes, int]:
        """Return which array its items are of, and which of them comes next."""
        return self._array, self._place.index

    def task_id(self) -> Any:
        """Return the ID of the task."""
        return self._end.task_id()

    def __reduce__(self) -> Any:
        raise TypeError("an ObjectRefGenerator stays with the driver or task that has made it")

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._array.hex()})"


@says_what_is_missing("DynamicObjectRefGenerator")
class DynamicObjectRefGenerator:
    """The value of a task with ``num_returns="dynamic"``: the references of its items."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs = list(refs)

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, index: int) -> ObjectRef:
        return self._refs[index]
