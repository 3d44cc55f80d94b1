"""The session of a driver or worker: the backend of raytwin's own runtime, in both worlds."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.api.lifecycle import nodes, shutdown
from raytwin.runtime.api.options.checks import encodable
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.ids import ARRAY_BYTES, job_number
from raytwin.runtime.control.messages import ActorInfo, Event
from raytwin.runtime.session.futures import PendingFutures
from raytwin.runtime.session.gcs_client import GcsClient
from raytwin.runtime.session.session_actors import SessionActors
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.task_context import TaskContext
from raytwin.runtime.session.task_submitter import TaskSubmitter
from raytwin.runtime.session.values import StreamItems, Values, Waits
from raytwin.runtime.session.watched_calls import watch_calls
from raytwin.runtime.session.world import World

log = logging.getLogger("raytwin")


class Session:
    """Composes the parts, and offers their methods as those of a `Backend`.

    `init` returns the session, a context manager whose exit ends the cluster, or leaves a cluster
    that this driver has joined.
    """

    cluster_address = ""
    """The address at which other drivers may join; empty if they cannot."""

    def __init__(self, world: World, end_cluster: Callable[[], None] | None = None) -> None:
        """Open the session of a world's client; `shutdown` calls `end_cluster`."""
        self.world = world
        self.client = world.client
        self.name = world.name
        self.address = world.client.address
        self.node = node_of(world.client.address)
        self.namespace = ""
        """The driver's namespace, if it has chosen one."""
        self.before_shutdown: list[Callable[[], None]] = []
        """Functions that `shutdown` calls first, while the cluster still works."""
        self._end_cluster = end_cluster
        self.client.on_warning = _warn

        self.references = references = SessionReferences(world)
        self.waits = waits = Waits(references)
        self.context = context = TaskContext(world)
        self.values = values = Values(references, waits, context)
        self.streams = streams = StreamItems(references, waits)
        self.tasks = tasks = TaskSubmitter(references, context, values, self)
        self.actors = actors = SessionActors(references, context, waits, tasks, self)
        self.gcs = gcs = GcsClient(references, waits, context)
        self.futures = PendingFutures(self)

        # The parts' own methods: a forwarding method would cost each API call a second call.
        self.task_id = context.task_id
        self.running_task = context.running_task
        self.is_cancelled = context.is_cancelled
        self.options_in_force = context.options_in_force
        self.gpus = context.gpus
        self.submit = tasks.submit
        self.map = tasks.map
        self.get = values.get
        self.get_array = values.get_array
        self.put = values.put
        self.wait = waits.wait
        self.wait_again = waits.wait_again
        self.next_item = streams.next_item
        self.create_actor = actors.create_actor
        self.call_actor = actors.call_actor
        self.find_actor = actors.find_actor
        self.kill_actor = actors.kill_actor
        self.exit_actor = actors.exit_actor
        self.this_actor = actors.this_actor
        self.function_name = actors.function_name
        self.query = gcs.query
        self.create_group = gcs.create_group
        self.remove_group = gcs.remove_group
        self.kv_put = gcs.kv_put
        self.kv_get = gcs.kv_get
        self.find_task = gcs.find_task
        self.now = world.now
        self.compute = world.compute
        self.blob = world.blob
        if world.watcher is not None:
            watch_calls(self, world.watcher)

    @property
    def closed(self) -> bool:
        """Whether the cluster or the session has ended."""
        return self.references.closed

    @property
    def actor(self) -> tuple[bytes, ActorInfo | None] | None:
        """The ID and description of the actor whose code calls; None outside of actors."""
        return self.context.actor

    # -- the result of `init` ----------------------------------------------------

    @property
    def address_info(self) -> dict[str, Any]:
        """The address of the driver's node, and the address at which other drivers may join."""
        row = nodes()[self.node]
        return {
            "node_id": row["NodeID"],
            "node_ip_address": row["NodeManagerAddress"],
            "address": self.cluster_address or "local",
            "gcs_address": self.cluster_address or "local",
            "webui_url": None,
        }

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    @property
    def dashboard_url(self) -> str:
        """Empty: there is no dashboard."""
        return ""

    @property
    def python_version(self) -> str:
        """Python's version."""
        return platform.python_version()

    def disconnect(self) -> None:
        """End the cluster, or leave one that this driver has joined."""
        shutdown()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.disconnect()

    # -- futures ---------------------------------------------------------------

    def future(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of an object's value. Raises RaySystemError if the cluster is gone."""
        self.references.check_open([ref])
        return self.futures.future(ref)

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of the reference to an item; see `next_item`."""
        self.references.check_open()
        return self.futures.item(array, index)

    # -- jobs ------------------------------------------------------------------

    @property
    def job_number(self) -> int:
        """The number of the calling code's job."""
        return job_number(self.client.submitter.job)

    def describe_job(self, namespace: str, env_vars: tuple[tuple[str, str], ...] = ()) -> None:
        """Register this driver's job, with its namespace and its tasks' environment variables."""
        self.namespace = namespace
        self.context.env_vars = env_vars
        with self.world:
            self.client.submitter.describe_job(
                namespace, encodable(" ".join(sys.argv)), os.getpid()
            )

    def job_namespace(self) -> str:
        """Return the namespace of the calling code's job, in which it names actors."""
        if not self.namespace:
            for number, _, _, namespace, *_ in self.query("jobs"):
                if number == self.job_number:
                    self.namespace = namespace
        return self.namespace

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object. Raises ValueError for a call with `force`."""
        self.references.check_open([ref])
        with self.world:
            self.references.collect()
            entry = self.client.entries.get(ref.binary()[:ARRAY_BYTES])
            if force and entry is not None and entry.is_call:
                raise ValueError("force=True would end the actor: to cancel a call leave it out")
            self.client.submitter.cancel(ref.binary(), force, recursive)

    # -- time, and the end -----------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Let time pass; first count dropped references, so that their objects can go."""
        if self.references.dropped:
            with self.world:
                self.references.collect()
        self.world.sleep(seconds)

    def shutdown(self) -> None:
        """End the session, and the cluster if this driver has started it."""
        if self.closed:
            return
        for called in self.before_shutdown:
            called()
        self.references.closed = True
        self.world.close()
        self.client.waits.forget_waiters()
        if self._end_cluster is not None:
            self._end_cluster()


def _warn(event: Event) -> None:
    cause = "" if event.cause is None else f": {exception_of(event.cause)}"
    log.warning("%s: %s%s", event.subject, event.detail, cause)
