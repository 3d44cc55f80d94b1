"""The shell around a client: one driver's or worker's side of the API.

Shared by every backend that runs raytwin's own control plane. It serializes,
makes references, waits and raises; every decision is the `Client`'s, and all
that differs between real and virtual time is the `World`'s.

Each concern is a class in a file of its own, on top of those that it needs:

    References ──> Numbering, Waiting ──> Values ──> Submitting ──> ActorCalls ──> Session

Any thread may call. What user code takes part in (pickling, waiting) happens
outside of turns, so that it cannot hold up other threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.api.backend import World
from raytwin.runtime.api.options.checks import binary, encodable, text
from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_number
from raytwin.runtime.control.gcs.task_history import unpack
from raytwin.runtime.control.messages import (
    CreateGroup,
    FindTask,
    KvDelete,
    KvGet,
    KvPut,
    RemoveGroup,
)
from raytwin.runtime.session.session_actors import ActorCalls


class Session(ActorCalls):
    """The `Backend` of a driver or worker of raytwin's own runtime."""

    def __init__(self, world: World, end_cluster: Callable[[], None] | None = None) -> None:
        super().__init__(world)
        self.name = world.name
        self.one_thread = world.one_thread
        self.address = world.client.address
        self.node = node_of(world.client.address)
        self.namespace = ""
        """The driver's, where it has chosen one."""
        self.before_shutdown: list[Callable[[], None]] = []
        """Called when the session begins to end, while all still works."""
        self._end_cluster = end_cluster

    def future(self, ref: ObjectRef) -> Future[Any]:
        self._check_open([ref])
        return self.futures.future(ref)

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        self._check_open([ref])
        with self.world:
            self.collect()
            entry = self.client.entries.get(ref.binary()[:ARRAY_BYTES])
            if force and entry is not None and entry.is_call:
                raise ValueError("force=True would end the actor: to cancel a call leave it out")
            self.client.submitter.cancel(ref.binary(), force, recursive)

    def create_group(
        self, name: str, bundles: list[dict[str, float]], strategy: str, detached: bool
    ) -> bytes:
        self._check_open()
        with self.world:
            self.collect()
            group = self._next_array()
            made = CreateGroup(group.hex(), name, bundles, strategy, detached)
            key, waiter = self.client.requests.ask_table(
                lambda request: replace(made, request=request)
            )
        self._block(waiter, None)
        if self.client.requests.replies.pop(key) != made.group:
            raise ValueError(f"there is a placement group {name!r} already")
        return group

    def remove_group(self, group: bytes) -> None:
        self._check_open()
        with self.world:
            self.client.buffer.flush()
            self.client.ctx.send(self.client.node, RemoveGroup(group.hex()))

    # -- jobs ------------------------------------------------------------------

    @property
    def job_number(self) -> int:
        """The number of the calling code's job."""
        return job_number(self.client.submitter.job)

    def describe_job(self, namespace: str) -> None:
        """Tell the cluster of this driver's job; names without a namespace are in this one."""
        self.namespace = namespace
        with self.world:
            self.client.submitter.describe_job(
                namespace, encodable(" ".join(sys.argv)), os.getpid()
            )

    def job_namespace(self) -> str:
        """Return the namespace of names that the calling code's job gives and looks up."""
        if not self.namespace:
            for number, _, _, namespace, *_ in self.query("jobs"):
                if number == self.job_number:
                    self.namespace = namespace
        return self.namespace

    # -- questions -------------------------------------------------------------

    def query(self, kind: str) -> Any:
        self._check_open()
        kind = text("a query", kind)
        with self.world:
            self.collect()
            key, waiter = self.client.requests.query(kind)
        self._block(waiter, None)
        return self.client.requests.replies.pop(key)

    # -- the GCS's key-value table ---------------------------------------------

    def kv_put(self, key: bytes, value: bytes) -> bytes | None:
        """Set a key in the GCS; return what it had, None if it had nothing."""
        key, value = binary("a key", key), binary("a value", value)
        return self._ask_table(lambda request: KvPut(key, value, request))

    def kv_get(self, key: bytes) -> bytes | None:
        """Return what a key of the GCS has, None if it has nothing."""
        key = binary("a key", key)
        return self._ask_table(lambda request: KvGet(key, request))

    def kv_delete(self, key: bytes) -> bytes | None:
        """Remove a key from the GCS; return what it had, None if it had nothing."""
        key = binary("a key", key)
        return self._ask_table(lambda request: KvDelete(key, request))

    def find_task(self, oid: bytes) -> dict[str, Any] | None:
        """Return what the GCS's task history has of the task that made an object.

        `oid` is the object's ID (``ref.binary()``). None if there is no row: the
        task has not finished, a reference to its result is alive, or the cluster
        keeps no history. See `flush.unpack` for what a row says.
        """
        array = binary("an object's ID", oid)[:ARRAY_BYTES]
        row = self._ask_table(lambda request: FindTask(array, request))
        return None if row is None else unpack(row)

    def _ask_table(self, make: Callable[[int], Any]) -> Any:
        self._check_open()
        with self.world:
            self.collect()
            key, waiter = self.client.requests.ask_table(make)
        self._block(waiter, None)
        return self.client.requests.replies.pop(key)

    # -- time, and the end -----------------------------------------------------

    def now(self) -> float:
        return self.world.now()

    def sleep(self, seconds: float) -> None:
        if self._dropped:
            with self.world:
                self.collect()
        self.world.sleep(seconds)

    def compute(self, seconds: float) -> None:
        self.world.compute(seconds)

    def blob(self, nbytes: int) -> Any:
        return self.world.blob(nbytes)

    def shutdown(self) -> None:
        if self.closed:
            return
        for called in self.before_shutdown:
            called()
        self.closed = True
        self.world.close()
        self.client.waits.forget_waiters()
        if self._end_cluster is not None:
            self._end_cluster()
