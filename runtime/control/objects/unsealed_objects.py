"""Objects that clients are writing into the arena, before they are sealed.

The life of such an object::

    AllocateObject ──> Allocate to the store ──> Allocated ──> UNSEALED: its client writes
                            │ NoRoom                              │
                            └──> `eviction` makes room            ├─ sealed: a result or a put
                                 and retries, or fails            │  names it
                                 with ObjectStoreFullError        └─ freed: abandoned, its client
                                                                     died, its result is not kept
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    AbandonObject,
    Allocate,
    Allocated,
    AllocateObject,
    Free,
    NoRoom,
    ObjectAllocated,
    RangeResult,
)
from raytwin.runtime.control.messages.errors import StoreFull
from raytwin.runtime.control.objects.eviction import CLIENT, Request
from raytwin.runtime.control.objects.object_directory import ObjectDirectory


class UnsealedObjects:
    """The unsealed objects in one node's arena."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        config: Config,
        objects: ObjectDirectory,
        lives: Callable[[str], bool],
    ) -> None:
        """`lives` returns whether a client of this node lives."""
        self._ctx = ctx
        self._store = f"store:{node}"
        self._config = config
        self._objects = objects
        self._lives = lives
        self._allocated: dict[bytes, tuple[str, int]] = {}
        """By object: the client that writes it, and its place."""

    def handlers(self) -> Handlers:
        return {
            AllocateObject: self.on_allocate,
            Allocated: self.on_allocated,
            NoRoom: self.on_no_room,
            AbandonObject: self.on_abandon,
        }

    def __len__(self) -> int:
        return len(self._allocated)

    def on_allocate(self, source: str, message: AllocateObject) -> None:
        """A client wants to write an object."""
        self._ctx.send(self._store, Allocate(message.object, message.size, source))

    def on_allocated(self, source: str, message: Allocated) -> None:
        """The store has room for it."""
        client = message.client
        if not self._lives(client):
            self._ctx.send(self._store, Free(message.object, message.offset))
            return
        self._allocated[message.object] = (client, message.offset)
        self._ctx.send(client, ObjectAllocated(message.object, message.offset))

    def on_no_room(self, source: str, message: NoRoom) -> None:
        """The arena is full: make room for a fetch, or for a client's object."""
        client = message.client
        if not client:
            self._objects.pulls.on_no_room(message)
            return
        oid, size = message.object, message.size

        def retry() -> None:
            self._ctx.send(self._store, Allocate(oid, size, client))

        def fail(full: StoreFull) -> None:
            self._ctx.send(client, ObjectAllocated(oid, -1, full))

        until_s = self._ctx.now() + self._config.allocate_wait_s
        self._objects.eviction.need(Request(size, CLIENT, until_s, retry, fail), message)

    def on_abandon(self, source: str, message: AbandonObject) -> None:
        """A client gives up an object before it has written it."""
        place = self._allocated.pop(message.object, None)
        if place is not None:
            self._ctx.send(self._store, Free(message.object, place[1]))

    def drop(self, client: str) -> None:
        """A client died: free its unsealed objects."""
        for oid in [o for o, (c, _) in self._allocated.items() if c == client]:
            _, offset = self._allocated.pop(oid)
            self._ctx.send(self._store, Free(oid, offset))

    def seal(self, result: RangeResult) -> None:
        """Seal the large values of a result: they outlive the worker that wrote them."""
        if not result.offsets:
            return
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                self._allocated.pop(object_id(result.array, result.start, ret), None)

    def free(self, result: RangeResult) -> None:
        """Free the large values of a result that is not kept."""
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                oid = object_id(result.array, result.start, ret)
                self._ctx.send(self._store, Free(oid, offset))

    def sealed(self, oid: bytes) -> None:
        """A client has put an object: it outlives the client."""
        self._allocated.pop(oid, None)
