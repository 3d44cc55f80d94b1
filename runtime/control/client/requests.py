"""Requests of a client to its node or the GCS, and the replies.

Each request has a number; its waiter is done when `replies` has the reply with this number. A
request for memory in the arena has the object's ID instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.client.references import References
from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.client.waits import Waits
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    AbandonObject,
    AllocateObject,
    FindActor,
    ObjectAllocated,
    Query,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import StoreFull


class Requests:
    """The requests of one client."""

    def __init__(
        self,
        ctx: Context,
        address: str,
        node: str,
        entries: dict[bytes, Entry],
        references: References,
        waits: Waits,
        buffer: SendBuffer,
    ) -> None:
        self._ctx = ctx
        self._address = address
        self._node = node
        self._entries = entries
        self._references = references
        self._waits = waits
        self._buffer = buffer
        self._last = 0
        self.replies: dict[int, Any] = {}
        """Replies by number of the request; the caller removes its own."""
        self.allocations: dict[bytes, int] = {}
        """By object: its offset in the arena, or -1."""
        self.full: dict[bytes, StoreFull] = {}
        """By object: why its allocation failed, until the caller reads it."""

    def answered(self, request: int, answer: Any) -> None:
        """The node or the GCS has answered a request."""
        self.replies[request] = answer
        self._waits.wake(request.to_bytes(8, "big"))

    def _begin(self) -> tuple[int, Waiter]:
        self._last += 1
        return self._last, self._waits.await_key(self._last.to_bytes(8, "big"))

    def query(self, kind: str) -> tuple[int, Waiter]:
        """Query a table of the cluster in its state after all earlier submissions."""
        self._buffer.flush()
        request, waiter = self._begin()
        self._ctx.send(self._node, Query(kind, request, self._address))
        return request, waiter

    def ask_table(self, make: Callable[[int], Any]) -> tuple[int, Waiter]:
        """Send the message that `make` returns for a request's number."""
        request, waiter = self._begin()
        self._buffer.note_effect()
        self._ctx.send(self._node, make(request))
        return request, waiter

    def find_actor(
        self,
        namespace: str,
        name: str,
        create: TaskSpec | None,
        keeper: bytes = b"",
        holds: tuple[bytes, ...] = (),
    ) -> tuple[int, Waiter]:
        """Look an actor up by name, or create it; the answer is an `ActorFound`."""
        if create is not None and create.array not in self._entries:
            entry = self._references.own(Entry(create.array, 1, 1, 0))
            entry.keeper = keeper
            assert create.extra is not None and create.extra.actor is not None
            detached = create.extra.actor.detached
            self._references.hold_inputs_of_actor(entry, holds + create.deps, detached)
        self._buffer.flush()
        request, waiter = self._begin()
        self._buffer.note_effect()
        self._ctx.send(self._node, FindActor(request, self._address, namespace, name, create))
        return request, waiter

    def allocate(self, oid: bytes, size: int) -> Waiter:
        """Request memory in the arena; `allocations` gets the offset, or -1."""
        waiter = self._waits.await_key(oid)
        self._ctx.send(self._node, AllocateObject(oid, size))
        return waiter

    def on_allocated(self, message: ObjectAllocated) -> None:
        """The node has allocated memory, or reports why it has none."""
        self.allocations[message.object] = message.offset
        if message.full is not None:
            self.full[message.object] = message.full
        self._waits.wake(message.object)

    def abandon(self, oid: bytes) -> None:
        """Give back allocated memory that the client will not use."""
        self._ctx.send(self._node, AbandonObject(oid))
