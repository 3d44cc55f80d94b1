"""Assignments: the ranges that the global scheduler has given to a node.

::

    AssignTasks ──> `TaskInputs`, until it could run
         ├─ for an earlier incarnation of this node: ignored, as the GCS places it again
         ├─ its job has ended: ignored
         ├─ an actor that is here already: ignored
         └─ its owner was a client of this node and is gone: accepted, and its result kept for
            borrowers, which ask the GCS for it

A range that fails before it has run (an input is lost, or it was cancelled) ends here with that
error.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.task_ranges import attempt_of
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.messages import AssignTasks, ObjectValue, RangeResult, TaskSpec
from raytwin.runtime.control.messages.errors import unpack
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.result_manager import ResultManager


class Assignments:
    """Takes the ranges assigned to one node, and ends those that cannot run."""

    def __init__(
        self,
        node: int,
        incarnation: int,
        objects: ObjectDirectory,
        log: GcsWriteLog,
        inputs: TaskInputs,
        access: JobAccess,
        actors: ActorManager,
        results: ResultManager,
    ) -> None:
        self._node = node
        self.incarnation = incarnation
        self._objects = objects
        self._log = log
        self._inputs = inputs
        self._access = access
        self._actors = actors
        self._results = results
        self.assigned = 0
        """Elements that the global scheduler has given to this node so far."""

    def handlers(self) -> Handlers:
        return {AssignTasks: self.on_assign}

    def on_assign(self, source: str, message: AssignTasks) -> None:
        """The global scheduler has chosen this node."""
        if message.incarnation not in (0, self.incarnation):
            return  # they were its former life's, and are placed again
        for spec in message.tasks:
            self.assigned += spec.count
            if self._access.is_late(spec):
                continue
            if spec.extra is not None and spec.extra.actor is not None:
                if not self._actors.accept(spec):
                    continue
            else:
                self._look_at_owner(spec)
            self._inputs.accept(spec)

    def _look_at_owner(self, spec: TaskSpec) -> None:
        """Its result may be for others than its owner, or for nobody."""
        gone = node_of(spec.owner) == self._node and spec.array not in self._objects.owners
        # Its owner lived here before: its task runs again somewhere, and asks for it.
        bereft = gone and incarnation_of(spec.owner) != self.incarnation
        if gone and (attempt_of(spec) or bereft):
            # The GCS will free it, when nobody needs it any more.
            self._results.keep_for_others(spec.array)
        # What was let go of on its first way here nobody needs or hears of.
        if not gone or attempt_of(spec) or bereft:
            self._log.expose(spec.array)

    def fail(self, spec: TaskSpec, error: ObjectValue) -> None:
        """A range ends without having run."""
        if spec.extra is not None and spec.extra.actor is not None:
            self._actors.creation_failed(spec, error)
            return
        if is_lost(error) and self._results.is_kept(spec.array, spec.owner):
            self._log.unreconstructable(spec.array, unpack(error.payload))
        self._results.finish(
            RangeResult(
                spec.array, spec.start, spec.count, error.status, error.payload, self._node,
                spec.returns,
            ),
            spec.owner,
        )  # fmt: skip
