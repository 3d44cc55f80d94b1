"""The client: the part of every driver and worker that submits, waits and counts references.

A client **owns** the arrays that its tasks and puts make: its node sends it their results, with
the small values. The life of an owned array::

    submit/put ──> PENDING ──TaskResults──> DONE ──no reference left──> RELEASED
                                             │
                                             └─ large values: WantObjects,
                                                ObjectsReady: LOCAL and pinned,
                                                until released, or the node asks
                                                for room and no view is left

A **borrowed** object is one whose reference came in a value: the client asks its node for it,
as for a large value. `References` decides when to release an array.

The world makes one call at a time: it calls each method in a turn of its own, or from ``handle``.
The world also makes threads wait, by the count of missing objects in a `Waiter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.client.direct_calls import DirectCalls
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.client.references import Pins, References
from raytwin.runtime.control.client.requests import Requests
from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.client.submitter import Submitter
from raytwin.runtime.control.client.waits import Waits
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.call_batches import singles
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import failed_result
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import (
    ActorEnded,
    ActorFound,
    BorrowersGone,
    CancelTask,
    DirectCall,
    DirectClosed,
    DirectOpen,
    Event,
    Exit,
    FunctionBlob,
    GiveBack,
    GrantGpus,
    GroupCreated,
    KvReply,
    ObjectAllocated,
    ObjectsReady,
    QueryReply,
    RefUpdates,
    RestoreActor,
    Resume,
    RunTasks,
    TakeBack,
    TaskFound,
    TaskResults,
    TasksUnsent,
)
from raytwin.runtime.control.messages.errors import Unsendable
from raytwin.runtime.control.worker.executor import Executor

FOR_EXECUTOR = frozenset(
    (
        RunTasks,
        FunctionBlob,
        TakeBack,
        Resume,
        RestoreActor,
        Exit,
        CancelTask,
        DirectCall,
        GrantGpus,
    )
)
"""The messages that the executor takes."""


class Client:
    """One driver's or worker's client: its parts, and the messages that reach them."""

    def __init__(self, ctx: Context, address: str, node: int, config: Config) -> None:
        self.ctx = ctx
        self.address = address
        self.node = f"node:{node}"
        self.config = config
        self.entries: dict[bytes, Entry] = {}
        """The arrays that this client owns; all parts share the table."""
        self.buffer = SendBuffer(ctx, self.node, config)
        self.pins = Pins(self.buffer)
        self.on_warning: Callable[[Event], None] | None = None
        """Called with an event that the driver's user has to know of; None: it has no user."""
        self.direct = DirectCalls(ctx, address, self.entries, self.buffer)
        self.references = References(
            ctx, address, self.node, self.entries, self.pins, self.buffer, self.direct
        )
        self.waits = Waits(ctx, self.node, self.entries, self.references, self.pins)
        self.requests = Requests(
            ctx, address, self.node, self.entries, self.references, self.waits, self.buffer
        )
        self.submitter = Submitter(
            ctx, address, self.node, self.entries, self.references, self.buffer, self.direct
        )

    def handle(self, source: str, message: Any) -> None:
        """Handle one message; raises TypeError for a message that is not for clients."""
        if isinstance(message, TaskResults):
            if source == self.node or self.direct.takes(message.results[0]):
                self.buffer.answered = True
                self.waits.on_results(message)
        elif isinstance(message, ObjectsReady):
            self.waits.on_ready(message)
        elif isinstance(message, ObjectAllocated):
            self.requests.on_allocated(message)
        elif isinstance(message, KvReply):
            self.requests.answered(message.request, message.value)
        elif isinstance(message, TaskFound):
            self.requests.answered(message.request, message.row)
        elif isinstance(message, QueryReply):
            self.requests.answered(message.key, message.value)
        elif isinstance(message, ActorFound):
            self.requests.answered(message.key, message)
        elif isinstance(message, ActorEnded):
            self.references.end_actor(message.actor)
        elif isinstance(message, GroupCreated):
            self.requests.answered(message.request, message.group)
        elif isinstance(message, RefUpdates):
            self.references.counter.on_updates(message)
        elif isinstance(message, BorrowersGone):
            self.references.counter.on_gone(message)
        elif isinstance(message, Event):
            if self.on_warning is not None:
                self.on_warning(message)
        elif isinstance(message, GiveBack):
            if message.cycles:
                self.references.collect_cycles()
            self.references.give_back()
        elif isinstance(message, DirectOpen):
            self.direct.on_open(message.actor, source)
        elif isinstance(message, DirectClosed):
            self.direct.on_closed(source)
        else:
            assert isinstance(message, TasksUnsent), f"a client was sent {type(message).__name__}"
            results = [
                failed_result(task, Unsendable(task.name, message.reason), node_of(self.address))
                for task in singles(message.tasks)
            ]
            self.handle(self.node, TaskResults(self.address, results))

    def end_turn(self) -> None:
        """Do nothing: a client sends at once, or by its buffer's timers."""


class WorkerComponent:
    """The component at a worker's address: passes each message to the client or the executor.

    Before results leave, what the client holds back does: they may refer to its puts and
    submissions.
    """

    def __init__(
        self, ctx: Context, address: str, node: int, config: Config, driver: str = ""
    ) -> None:
        """`driver`: a driver that this worker can reach itself, if there is one."""
        self.client = Client(ctx, address, node, config)
        self.executor = Executor(ctx, node, config)
        if driver:
            self.executor.direct.driver = driver
            self.executor.direct.effects = lambda: self.client.buffer.effects
        self.executor.before_results = self.client.buffer.flush_held
        self.executor.on_cancel = self._on_cancel

    def handle(self, source: str, message: Any) -> None:
        if type(message) in FOR_EXECUTOR:
            self.executor.handle(source, message)
        else:
            self.client.handle(source, message)

    def end_turn(self) -> None:
        """Do nothing: neither part has work at the end of a turn."""

    def _on_cancel(self, message: CancelTask) -> None:
        """Cancel the children of the running task, if the request is for them as well."""
        running = self.executor.running
        if message.recursive and running is not None:
            self.client.submitter.cancel_children(
                task_id(running.array, self.executor.cancelled), message.force
            )
