"""What the jobs of one node's clients may do to each other.

Every ID begins with its job's, so the node tells from an ID alone whether a client may read
an object, pass it to a task, or cancel a task; see `node.jobs` for what a job owns. Calls of
an actor are checked by the actor's node, which knows the actor's name (`ActorManager`), and
placement groups by the global scheduler (`GroupTable`).
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.ids import job_number, job_of, same_job
from raytwin.runtime.control.core.task_ranges import job_of_task
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.messages import CancelTask, Event, ObjectValue, TaskSpec
from raytwin.runtime.control.messages.errors import ObjectOfOtherJob


def foreign_object(oid: bytes, job: bytes) -> ObjectValue:
    """Return the error that `job` reads in place of another job's object."""
    return failed_value(ObjectOfOtherJob(oid, job_number(oid), job_number(job)), oid)


class JobAccess:
    """The jobs of one node's clients, and what each may do."""

    def __init__(self, ctx: Context, worker_at: Callable[[str], Worker | None]) -> None:
        """`worker_at` returns the node's worker with an address, if there is one."""
        self._ctx = ctx
        self._worker_at = worker_at
        self.drivers: dict[str, bytes] = {}
        """The job of each driver on this node."""
        self.ended: set[bytes] = set()
        """Jobs, and branches of jobs, that have ended."""

    def of(self, client: str) -> bytes:
        """Return the job that a client of this node works for, empty if it has none yet."""
        worker = self._worker_at(client)
        return worker.job if worker is not None else self.drivers.get(client, b"")

    def is_late(self, spec: TaskSpec) -> bool:
        """Whether a task's job has ended."""
        return bool(self.ended) and job_of_task(spec) in self.ended

    def is_over(self, some_id: bytes) -> bool:
        """Whether the job that an ID belongs to has ended."""
        return bool(self.ended) and job_of(some_id) in self.ended

    def may_read(self, client: str, oid: bytes) -> ObjectValue | None:
        """Return None, or the error that the client reads in place of the object."""
        job = self.of(client)
        return None if not job or same_job(oid, job) else foreign_object(oid, job)

    def refusal(self, client: str, spec: TaskSpec) -> ObjectValue | None:
        """Return None, or the error that ends a task whose inputs its client may not read."""
        job = self.of(client)
        if not job:
            return None
        for oid in spec.deps:
            if not same_job(oid, job):
                return foreign_object(oid, job)
        return None

    def may_cancel(self, client: str, message: CancelTask) -> bool:
        """Whether a client may cancel a task; the event log records a refusal."""
        job = self.of(client)
        if not job or same_job(message.array, job):
            return True
        array = message.array
        detail = f"{array.hex()} belongs to job {job_number(array)}"
        self._ctx.send("gcs", Event("refused", client, detail))
        return False
