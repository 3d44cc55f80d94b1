"""Streams: the references to the items of a generator task, available as it yields them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from raytwin.runtime.api.backend import Backend, ObjectRef
from raytwin.runtime.api.exceptions import GetTimeoutError
from raytwin.runtime.api.modules import explains_missing_attributes
from raytwin.runtime.control.core.ids import ARRAY_BYTES


@explains_missing_attributes("ObjectRefGenerator")
class ObjectRefGenerator:
    """Iterates over the `ObjectRef`s of the items that a task yields.

    ``next`` waits until the task has yielded the item; the iteration ends when the task
    has ended. If the task raises, `get` of the last reference raises its exception. The
    items live until no reference to any of them is left.

    Several threads or coroutines may iterate; each item goes to one of them. All wait for
    the next item, and the first that wakes takes it.
    """

    def __init__(self, end: ObjectRef, backend: Backend) -> None:
        self._end = end
        self._array = end.binary()[:ARRAY_BYTES]
        self._backend = backend
        self._index = 0
        """The index of the next item."""
        self._over = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[ObjectRef]:
        return self

    def __next__(self) -> ObjectRef:
        while not self._over:
            index = self._index
            ref = self._backend.next_item(self._array, index, None)
            if self._take(index, ref) and ref is not None:
                return ref
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    async def __anext__(self) -> ObjectRef:
        import asyncio

        while not self._over:
            index = self._index
            ref = await asyncio.wrap_future(self._backend.item_future(self._array, index))
            if self._take(index, ref) and ref is not None:
                return ref
        raise StopAsyncIteration

    def _take(self, index: int, ref: ObjectRef | None) -> bool:
        """Take an item that has come; return False if another thread or coroutine took it."""
        with self._lock:
            if index != self._index:
                return False
            self._index += 1
            self._over = ref is None or ref == self._end
            return True

    def completed(self) -> ObjectRef:
        """Return a reference that is ready once the task has ended."""
        return self._end

    def next_ready(self) -> bool:
        """Whether `next` would not wait."""
        if self._over:
            return False
        try:
            return self._backend.next_item(self._array, self._index, 0) is not None
        except GetTimeoutError:
            return False

    def is_finished(self) -> bool:
        """Whether all of the references have been taken."""
        if self._over:
            return True
        try:
            return self._backend.next_item(self._array, self._index, 0) is None
        except GetTimeoutError:
            return False

    def position(self) -> tuple[bytes, int]:
        """Return the array of the items, and the index of the next one."""
        return self._array, self._index

    def task_id(self) -> Any:
        """Return the ID of the task."""
        return self._end.task_id()

    def __reduce__(self) -> Any:
        raise TypeError("an ObjectRefGenerator stays with the driver or task that has made it")

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._array.hex()})"


@explains_missing_attributes("DynamicObjectRefGenerator")
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
