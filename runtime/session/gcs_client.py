"""Requests to the GCS: its tables, placement groups, and queries of the cluster's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.api.options.checks import binary, text
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.gcs.task_history import unpack
from raytwin.runtime.control.messages import (
    CreateGroup,
    FindTask,
    KvGet,
    KvPut,
    RemoveGroup,
)
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.task_context import TaskContext
from raytwin.runtime.session.values import Waits


class GcsClient:
    """Sends requests to the GCS through the client, and waits for each reply."""

    def __init__(self, references: SessionReferences, waits: Waits, context: TaskContext) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._waits = waits
        self._context = context

    def query(self, kind: str) -> Any:
        """Return rows of the cluster's state, of a kind that `observability.queries` lists.

        Raises ValueError for any other kind.
        """
        self._references.check_open()
        kind = text("a query", kind)
        with self.world:
            self._references.collect()
            key, waiter = self.client.requests.query(kind)
        self._waits.block(waiter, None)
        return self.client.requests.replies.pop(key)

    # -- placement groups ------------------------------------------------------

    def create_group(
        self, name: str, bundles: list[dict[str, float]], strategy: str, detached: bool
    ) -> bytes:
        """Register a placement group and return its ID; the GCS then reserves the bundles.

        `bundles` has {resource: amount} of each. Raises ValueError if the name is taken.
        """
        self._references.check_open()
        with self.world:
            self._references.collect()
            group = self._context.next_array()
            made = CreateGroup(group.hex(), name, bundles, strategy, detached)
            key, waiter = self.client.requests.ask_table(
                lambda request: replace(made, request=request)
            )
        self._waits.block(waiter, None)
        if self.client.requests.replies.pop(key) != made.group:
            raise ValueError(f"there is a placement group {name!r} already")
        return group

    def remove_group(self, group: bytes) -> None:
        """Release the bundles of a placement group; its tasks and actors end."""
        self._references.check_open()
        with self.world:
            self.client.buffer.flush()
            self.client.ctx.send(self.client.node, RemoveGroup(group.hex()))

    # -- tables ----------------------------------------------------------------

    def kv_put(self, key: bytes, value: bytes) -> bytes | None:
        """Set a key of the key-value table; return its former value, None if there was none."""
        key, value = binary("a key", key), binary("a value", value)
        return self._ask_table(lambda request: KvPut(key, value, request))

    def kv_get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        key = binary("a key", key)
        return self._ask_table(lambda request: KvGet(key, request))

    def find_task(self, oid: bytes) -> dict[str, Any] | None:
        """Return the row of the task history of the task that made an object.

        `oid` is the object's ID (``ref.binary()``). None if there is no row: the
        task has not finished, a reference to its result is alive, or the cluster
        keeps no history. `gcs.task_history.unpack` names the columns.
        """
        array = binary("an object's ID", oid)[:ARRAY_BYTES]
        row = self._ask_table(lambda request: FindTask(array, request))
        return None if row is None else unpack(row)

    def _ask_table(self, make: Callable[[int], Any]) -> Any:
        self._references.check_open()
        with self.world:
            self._references.collect()
            key, waiter = self.client.requests.ask_table(make)
        self._waits.block(waiter, None)
        return self.client.requests.replies.pop(key)
