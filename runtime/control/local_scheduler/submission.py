"""The node accepts tasks, calls and actors: submitted, submitted again, or assigned.

The way of a range in `SubmitTasks`::

    a batch of calls ──────────────────────────> `PendingCalls`
    submitted before, as its parent runs again ─> the node sends its results so far, or
                                                  sends a call without a result once more
    a call, an actor ──────────────────────────> `PendingCalls`, the GCS
    new ──its parent runs again──> ClaimTasks: a node that has it sends results here, too
      │                                └─ no node has it ──TasksClaimed─┐
      ↓                                                                 ↓
   `Spillback` ──keeps it──> accepted (`TaskInputs`)  <─────────────────┘
               ──else──> PlaceTasks to the global scheduler

`OwnerTable.ends` has the element up to which an array was submitted; only later elements are new.
So a parent that runs a second time submits nothing twice.

**Assignments** come from the global scheduler. The node ignores ranges for its earlier
incarnations, which the GCS places again, and ranges of jobs that have ended. If the owner was a
client of this node and has died, the node accepts the range and keeps the result for borrowers,
which ask the GCS for it. A range ends at once if its owner's tasks were cancelled before, see
`cancellation`. A range that fails before it has run ends here with that error.

**Unfinished ranges** of a node that has died come from the GCS to the node of their owner, if they
have inputs. Those whose results are here have ended: the node reports them, since the dead node has
not. It spills the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.actors.pending_calls import PendingCalls
from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.call_batches import arrays_of, singles
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.core.task_ranges import attempt_of, is_of_actor, needs_of, part_of
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.spillback import Spillback
from raytwin.runtime.control.messages import (
    OK,
    SOMEWHERE,
    AssignTasks,
    ClaimTasks,
    CreateActors,
    FindActor,
    ObjectValue,
    PlaceTasks,
    RangeResult,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TasksClaimed,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import unpack
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.result_manager import ResultManager


class Submission:
    """Accepts the submissions of one node's clients, and assignments; see the picture above."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        spillback: Spillback,
        workers: Mapping[str, Worker],
        objects: NodeObjects,
        log: GcsWriteLog,
        inputs: TaskInputs,
        access: JobAccess,
        actors: NodeActors,
        pending_calls: PendingCalls,
        results: ResultManager,
        canceller: Canceller,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self.incarnation = incarnation
        self._spillback = spillback
        self._workers = workers
        self._objects = objects
        self._log = log
        self._inputs = inputs
        self._access = access
        self._actors = actors
        self._pending_calls = pending_calls
        self._results = results
        self._canceller = canceller
        self.assigned = 0
        """Elements that the global scheduler has assigned to this node so far."""
        self._created_again: set[bytes] = set()
        """Actors that may exist already, because the task that creates them has run before."""
        pending_calls.on_alive = self._on_actor_alive

    def handlers(self) -> Handlers:
        return {
            SubmitTasks: self.on_submit,
            TasksClaimed: self.on_claimed,
            FindActor: self.on_find_actor,
            AssignTasks: self.on_assign,
            PlaceTasks: self.on_place,
        }

    def on_submit(self, source: str, message: SubmitTasks) -> None:
        """Keep, spill or forward each submitted range."""
        # Children of a task that was resubmitted, or moved, may exist already.
        worker = self._workers.get(source)
        running = worker.assigned[0] if worker is not None and worker.assigned else None
        again = running is not None and self._has_begun(running)
        if worker is not None and worker.actor:
            again = self._actors.is_repeating(worker)
        claims: list[TaskSpec] = []
        for spec in message.tasks:
            if spec.extra is not None and spec.extra.batch is not None:
                self._on_batch(source, spec)
                continue
            if worker is not None and not worker.has_children:
                worker.has_children = not is_of_actor(spec)
            array, end = spec.array, spec.start + spec.count
            new = spec.start
            if array in self._objects.owners:
                # The next part of an array, or a repetition: its parent runs a second time.
                new = max(new, self._objects.owners.ends.get(array, 1))
            self._objects.owners.own(array, source)
            if new > spec.start:
                self._send_existing_results(spec, source)
                if spec.extra is not None and spec.extra.call:
                    self._pending_calls.submit_again(spec)
                if array in self._objects.owners.actors:
                    # The GCS ends it for its owner alone.
                    self._ctx.send("gcs", CreateActors([spec]))
            if new < end and spec.extra is not None and self._handle_actor_task(spec, again):
                continue
            if new < end:
                part = spec if new == spec.start else part_of(spec, new, end - new)
                if again:
                    self._results.claim(array, new, end)
                    self._log.spilled(part, self._objects.owners)
                    claims.append(part)
                    copies = self._objects.copies(array, part.start, part.count)
                    if copies:
                        self._ctx.send(source, TaskResults(source, copies))
                else:
                    self._submit(part)
            if end > 1:
                self._objects.owners.ends[array] = max(end, self._objects.owners.ends.get(array, 0))
        self._spillback.end_message()
        if claims:
            self._ctx.send("gcs", ClaimTasks(claims))

    def _has_begun(self, spec: TaskSpec) -> bool:
        """Whether a task that runs here may have run on another node before."""
        begun = -1 if spec.extra is None else spec.extra.begun
        return attempt_of(spec) > 0 or begun not in (-1, self._node)

    def _on_batch(self, source: str, spec: TaskSpec) -> None:
        """Submit a batch of calls; one by one if any of them was submitted before."""
        arrays = arrays_of(spec)
        if not self._objects.owners.own_all(arrays, source):
            self.on_submit(source, SubmitTasks(singles([spec])))
            return
        self._pending_calls.submit_batch(spec, arrays)

    def on_claimed(self, source: str, message: TasksClaimed) -> None:
        """The GCS has found children of a repeated task that no node has: submit them."""
        for spec in message.tasks:
            if spec.array in self._objects.owners:
                # A node that died may have begun it, and its children may exist elsewhere.
                spec.extra = replace(spec.extra or TaskExtra(), begun=SOMEWHERE)
                self._submit(spec)
        self._spillback.end_message()

    def _submit(self, spec: TaskSpec) -> None:
        stay = self._spillback.keep(spec)
        if stay == spec.count:
            self._log.accept(spec)
            self._inputs.accept(spec)
            return
        if stay:
            head = part_of(spec, spec.start, stay)
            self._log.accept(head)
            self._inputs.accept(head)
        rest = part_of(spec, spec.start + stay, spec.count - stay)
        self._log.spilled(rest, self._objects.owners)
        self._ctx.send("global", PlaceTasks([rest]))

    def _send_existing_results(self, spec: TaskSpec, owner: str) -> None:
        """Send the new owner the results that an earlier run of its parent has caused so far."""
        end = spec.start + spec.count
        made = [
            result
            for result in self._objects.results.of(spec.array)
            if (result.start < end and spec.start < result.start + result.count)
            or result.start >= STREAM_BASE
        ]
        if made:
            self._ctx.send(owner, TaskResults(owner, made))

    # -- actors ------------------------------------------------------------------

    def _handle_actor_task(self, spec: TaskSpec, again: bool = False) -> bool:
        """Handle a spec that creates an actor or is a call; return False for any other.

        `again`: an earlier run of its parent may have submitted it.
        """
        extra = spec.extra
        assert extra is not None
        if extra.call:
            for oid in needs_of(spec) if extra.inside else spec.deps:
                if oid[: len(spec.array)] in self._objects.owners:
                    self._log.expose(oid[: len(spec.array)])
            self._pending_calls.submit(spec)
        elif extra.actor is not None:
            if again:
                self._created_again.add(spec.array)
            self._own_actor(spec)
            self._ctx.send("gcs", CreateActors([spec]))
        else:
            return False
        return True

    def _own_actor(self, spec: TaskSpec) -> None:
        assert spec.extra is not None and spec.extra.actor is not None
        self._log.spilled(spec, self._objects.owners)
        self._pending_calls.created(spec.array)
        if not spec.extra.actor.detached:
            self._objects.owners.actors.add(spec.array)

    def _on_actor_alive(self, actor: bytes) -> None:
        """End a repeated creation: the constructor's result went to the first creator, if any."""
        if actor in self._created_again:
            self._created_again.discard(actor)
            self._ctx.after(LOST_S, partial(self._end_creation, actor))

    def _end_creation(self, actor: bytes) -> None:
        owner = self._objects.owners.get(actor)
        if owner is not None and not self._objects.has_array(actor):
            self._results.finish(RangeResult(actor, 0, 1, OK, b"", self._node), owner)

    def on_find_actor(self, source: str, message: FindActor) -> None:
        """A client looks for an actor by its name, or creates it if there is none."""
        message.job = self._access.of(source)
        if message.create is not None:
            self._objects.owners.own(message.create.array, source)
            self._own_actor(message.create)
        self._ctx.send("gcs", message)

    # -- assignments of the global scheduler ---------------------------------------

    def on_assign(self, source: str, message: AssignTasks) -> None:
        """The global scheduler has chosen this node."""
        if message.incarnation not in (0, self.incarnation):
            return  # for a former incarnation: the GCS places the ranges again
        for spec in message.tasks:
            self.assigned += spec.count
            if self._access.has_ended_job(spec):
                continue
            if spec.extra is not None and spec.extra.actor is not None:
                if not self._actors.accept(spec):
                    continue
            else:
                self._keep_if_owner_died(spec)
                if self._canceller.end_late(spec):
                    continue
            self._inputs.accept(spec)

    def _keep_if_owner_died(self, spec: TaskSpec) -> None:
        """Keep a range's result for other owners, if its own owner has died in a former incarnation
        of this node."""
        gone = node_of(spec.owner) == self._node and spec.array not in self._objects.owners
        # The owner lived in a former incarnation: its task may run again, and claim the result.
        of_former_incarnation = gone and incarnation_of(spec.owner) != self.incarnation
        if of_former_incarnation:
            # The GCS frees it when no client needs it any more.
            self._results.keep_for_others(spec.array)
        # The GCS needs no row of a range that was released before it first arrived here.
        if not gone or attempt_of(spec) or of_former_incarnation:
            self._log.expose(spec.array)

    def on_place(self, source: str, message: PlaceTasks) -> None:
        """The GCS knows of no end of these ranges of clients here; their node has died."""
        for spec in message.tasks:
            left = self._results.report(spec)
            if left:
                self._canceller.sent_on(left)
                self._ctx.send("global", PlaceTasks(left))

    def fail(self, spec: TaskSpec, error: ObjectValue) -> None:
        """End a range, which has not run, with an error."""
        if spec.extra is not None and spec.extra.actor is not None:
            self._actors.creation_failed(spec, error)
            return
        if attempt_of(spec):
            self._results.made_again(spec.array, spec.owner)
        if is_lost(error) and self._results.is_kept(spec.array, spec.owner):
            self._log.unreconstructable(spec.array, unpack(error.payload))
        self._results.finish(
            RangeResult(
                spec.array, spec.start, spec.count, error.status, error.payload, self._node,
                spec.returns,
            ),
            spec.owner,
        )  # fmt: skip
