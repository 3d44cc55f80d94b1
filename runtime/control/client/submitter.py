"""Submits tasks, calls and puts of a client's running task, and gives them IDs.

IDs are deterministic: each follows from the parent task and a counter (`ids`), so a task that
runs again submits the same children.
"""

from __future__ import annotations

from raytwin.runtime.control.client.direct_calls import DirectCalls
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.client.references import References
from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import (
    ARRAY_BYTES,
    STREAM_BASE,
    adopted,
    anew,
    array_id,
    job_of,
    put_id,
    split_object_id,
)
from raytwin.runtime.control.messages import (
    CancelTask,
    DescribeJob,
    ExportFunction,
    KillActor,
    RangeResult,
    TaskExtra,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause

CHILDREN_MAX = 1024
"""The number of noted children of one task at which the client removes released ones."""


class Submitter:
    """Submits for one client."""

    def __init__(
        self,
        ctx: Context,
        address: str,
        node: str,
        entries: dict[bytes, Entry],
        references: References,
        buffer: SendBuffer,
        direct: DirectCalls,
    ) -> None:
        """`entries` are the arrays that the client owns."""
        self._ctx = ctx
        self._address = address
        self._node = node
        self._entries = entries
        self._references = references
        self._buffer = buffer
        self._direct = direct
        self._loans = references.counter.loans
        self.job = b""
        """The job in every ID made here: the driver's, or that of a worker's first task."""
        self.parent = b""
        """The running task, the parent of all its submissions."""
        self._numbered_by = b""
        """The ID from which the children's IDs are made: the parent's, or that of its present
        try."""
        self._submissions = 0
        self._own_puts = 0
        self._children: dict[bytes, None] = {}
        """The arrays that the running task has submitted, in order; some may be released."""
        self._children_max = CHILDREN_MAX
        self._batch_deps: tuple[bytes, ...] = ()
        """The actor of the open batch of calls: each call holds it."""
        self._exported: set[bytes] = set()
        self._cancels = 0

    # -- the running task --------------------------------------------------------

    def begin_task(self, task: bytes, tries: int = 0) -> None:
        """Make `task`, which has raised in `tries` earlier runs, the parent of all submissions.

        When a run fails, the client releases its values and ends its actors. So each run has
        children with other IDs.
        """
        self.job = self.job or job_of(task)
        self.parent = adopted(task, self.job)
        self._numbered_by = anew(self.parent, tries) if tries else self.parent
        self._submissions = 0
        self._own_puts = 0
        self._buffer.begin_parent()
        self._children = {}
        self._children_max = CHILDREN_MAX

    def next_array(self) -> bytes:
        """Return the ID of the next array that a driver submits."""
        self._submissions += 1
        return array_id(self._numbered_by, self._submissions)

    def next_child(self) -> bytes:
        """Return the ID of the next array that the current task submits; see `ids`."""
        array = self.next_array()
        if len(self._children) >= self._children_max:
            self._children = {kept: None for kept in self._children if kept in self._entries}
            self._children_max = max(CHILDREN_MAX, 2 * len(self._children))
        self._children[array] = None
        return array

    def next_put(self) -> bytes:
        """Return the array ID of the current task's next put."""
        self._own_puts += 1
        return put_id(self._numbered_by, self._own_puts)

    # -- submission --------------------------------------------------------------

    def describe_job(self, namespace: str, entrypoint: str, pid: int) -> None:
        """Send the GCS the facts about the job that only the driver knows."""
        self._ctx.send(self._node, DescribeJob(namespace, entrypoint, pid))

    def export(self, function: bytes, blob: bytes) -> None:
        """Export a function to the cluster, once."""
        if function not in self._exported:
            self._exported.add(function)
            self._ctx.send(self._node, ExportFunction(function, blob))

    def submit(
        self,
        array: bytes,
        specs: list[TaskSpec],
        count: int,
        returns: int,
        holds: tuple[bytes, ...] = (),
        keeper: bytes = b"",
    ) -> Entry:
        """Submit an array, as the given ranges.

        The client keeps the inputs until the tasks have ended, and also `holds`: objects, or
        whole arrays, with references inside arguments. If `keeper` is an actor that may restart,
        and so be rebuilt from these inputs, the client keeps them as long as the actor lives: all
        of its constructor's, and of its calls' the arrays, the large ones and those with references
        inside. Other small inputs of calls are in its lineage.
        """
        references = self._references
        entry = self._entries.get(array)
        if entry is None:
            entry = references.own(Entry(array, count, returns, count))
        if keeper:
            entry.keeper = keeper
        for spec in specs:
            if spec.deps:
                holds += spec.deps
        if holds:
            references.hold_inputs(entry, holds)
        self._buffer.submit(specs)
        return entry

    def create(self, spec: TaskSpec, holds: tuple[bytes, ...], keeper: bytes) -> None:
        """Submit the creation of an actor, as `submit` does.

        The client does not await the constructor's end: an actor to which nobody has a handle ends
        before it, too, lest one whose process crashes in it restart for ever.
        """
        assert spec.extra is not None and spec.extra.actor is not None
        entry = self._entries.get(spec.array)
        if entry is None:
            entry = self._references.own(Entry(spec.array, 1, 1, 0))
        entry.keeper = keeper
        detached = spec.extra.actor.detached
        self._references.hold_inputs_of_actor(entry, holds + spec.deps, detached)
        self._buffer.submit([spec])

    def call(
        self, array: bytes, extra: TaskExtra, name: str, retries: int, args: bytes,
        actor: bytes, keeper: bytes = b"",
    ) -> Entry:  # fmt: skip
        """Submit a call without inputs and with one value, as `submit` does.

        The client keeps the object `actor` until the call has ended. Calls with the same object
        `extra` have the same name and retries, too.
        """
        buffer = self._buffer
        entry = self._entries.get(array)
        directly = False
        if entry is None:
            entry = Entry(array, 1, 1, 1)
            if self._loans:
                self._references.own(entry)
            else:
                self._entries[array] = entry
            if self._direct.workers:
                directly = self._direct.call(entry, actor[:ARRAY_BYTES], extra, name, retries, args)
        if not directly and extra is not buffer.batch_extra:
            spec = TaskSpec(b"", 0, 1, b"", b"", self._address, "", (), 1, retries, -1, name)
            buffer.begin_batch(extra, spec)
            self._batch_deps = (actor,)
        entry.keeper = keeper
        entry.is_call = True
        if entry.deps:
            self._references.hold_inputs(entry, (actor,))
        else:
            entry.deps = (actor,) if directly else self._batch_deps
            self._references.hold(actor[:ARRAY_BYTES])
        if not directly:
            buffer.call(array, args)
        return entry

    def put(self, result: RangeResult) -> Entry:
        """Own a value that this client made: inline, or sealed in the arena."""
        entry = self._references.own(Entry(result.array, 1, 1, 0, result))
        self._buffer.put(result)
        return entry

    # -- cancellation ------------------------------------------------------------

    def cancel(self, oid: bytes, force: bool, recursive: bool) -> None:
        """Cancel the task of an object, unless it has ended."""
        array, index, _ = split_object_id(oid)
        entry = self._entries.get(array)
        index = 0 if index >= STREAM_BASE else index
        if entry is None or entry.find(index) is None:
            self._buffer.flush()
            self._cancel(array, index, 1, force, recursive, "" if entry is None else entry.worker)

    def cancel_children(self, task: bytes, force: bool) -> None:
        """Cancel all children of a task of this worker that have not ended."""
        task = adopted(task, self.job) if self.job else task
        if task != self.parent:
            return  # the task has submitted nothing
        self._buffer.flush()
        for array in self._children:
            entry = self._entries.get(array)
            if entry is not None and entry.missing:
                self._cancel(entry.array, 0, entry.count, force, recursive=True)

    def _cancel(
        self, array: bytes, start: int, count: int, force: bool, recursive: bool, worker: str = ""
    ) -> None:
        self._cancels += 1
        request = f"{self._address}/{self._cancels}"
        message = CancelTask(array, start, count, force, recursive, request=request)
        self._buffer.note_effect()
        # The worker to which a call was sent directly knows alone whether it has begun.
        self._ctx.send(worker or self._node, message)

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        """Kill an actor, after the calls submitted before."""
        self._direct.close(actor)
        self._buffer.flush()
        self._buffer.note_effect()
        self._ctx.send(self._node, KillActor(actor, ActorDeath(DeathCause.KILLED), restart))
