"""Jobs: several drivers on one cluster that know nothing of each other.

A **job** is a driver with all that comes of it. The GCS numbers jobs (`gcs.job_table`), and
every ID begins with its job's (`ids`), so an ID alone tells which job may see a thing and
with which job it ends::

    RegisterJob ──> RUNNING ──the driver ends──> ENDED
                       │                            │ JobEnded, to every node and the
                       │                            ↓ global scheduler
                       └─ its detached actors, each a branch of the job's IDs, live on;
                          a branch ends in the same way, with its actor

A job has of its own: tasks, objects, functions, placement groups, actors without a name, and
worker processes. A worker belongs to the first job that it runs a task of (a detached
actor's tasks count as a job of their own). Jobs share resources, the key-value table,
detached placement groups, and named actors; an actor whose driver chose no namespace has
its name in a namespace of its job's.

What one job hands to another can be used there, as in Ray. `JobEnded` names the job alone: each
receiver drops everything whose ID begins with the job's, and ignores what arrives later.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import DescribeJob, JobEnded, JobRegistered, RegisterJob
from raytwin.runtime.control.node.worker_failure import WorkerFailure
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.release_manager import ReleaseManager
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.ownership.contained_references import ContainedReferences


class NodeJobs:
    """The drivers of one node and their jobs, from registration to the end."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        access: JobAccess,
        dispatcher: Dispatcher,
        inputs: TaskInputs,
        actors: ActorManager,
        objects: ObjectDirectory,
        results: ResultManager,
        contained_references: ContainedReferences,
        log: GcsWriteLog,
        release: ReleaseManager,
        worker_failure: WorkerFailure,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._access = access
        self._dispatcher = dispatcher
        self._inputs = inputs
        self._actors = actors
        self._objects = objects
        self._results = results
        self._contained_references = contained_references
        self._log = log
        self._release = release
        self._worker_failure = worker_failure
        self.gone: set[str] = set()
        """Drivers whose job has ended: the node sends them nothing, and pins nothing for them."""

    def handlers(self) -> Handlers:
        return {
            RegisterJob: self.on_register,
            JobRegistered: self.on_registered,
            DescribeJob: self.on_describe,
            JobEnded: self.on_ended,
        }

    def on_register(self, source: str, message: RegisterJob) -> None:
        """A driver is at this node's door."""
        if message.info.number:
            self._access.drivers[message.info.driver] = job_id(message.info.number)
        self._ctx.send("gcs", message)

    def on_registered(self, source: str, message: JobRegistered) -> None:
        """The GCS knows its number: let it in."""
        info = message.info
        if info.number:
            self._access.drivers[info.driver] = job_id(info.number)
        self._ctx.send(f"door:{self._node}", message)

    def on_describe(self, source: str, message: DescribeJob) -> None:
        """A driver says more of its job."""
        message.job = self._access.of(source)
        self._ctx.send("gcs", message)

    def on_ended(self, source: str, message: JobEnded) -> None:
        """Drop all that a job has here; said by the door of its driver, then by the GCS."""
        if source.startswith("door:"):
            self._ctx.send("gcs", message)
        if message.job not in self._access.ended:
            self._access.ended.add(message.job)
            gone = [driver for driver, job in self._access.drivers.items() if job == message.job]
            self.gone.update(gone)
            self._drop(message.job, f"its job has ended: {message.reason}")
            for driver in gone:
                self._drop_driver(driver)
                del self._access.drivers[driver]

    def _drop(self, job: bytes, reason: str) -> None:
        """Drop all that a job has here, queues first, so that none of its tasks begins."""
        workers = self._dispatcher.end_job(job)
        self._inputs.end_job(job)
        # Detached actors here keep their class, whose job may have ended.
        actors = [actor.spec for actor in self._actors.actors.values()]
        used = {spec.function for spec in actors if not self._access.is_late(spec)}
        self._inputs.forget_functions(self._access.ended, used)
        for worker in workers:
            self._worker_failure.end(worker, reason)
        self._objects.owners.end_job(job)
        self._actors.end_job(job)
        self._results.end_job(job)
        for array in self._objects.of_job(job):
            self._log.forget(array)
            self._release.release_all((array,))

    def _drop_driver(self, client: str) -> None:
        """Drop the references, pins and places of a driver."""
        for array in self._objects.drop_client(client):
            if self._objects.owners.release(array, client):
                self._release.release_all((array,))
        self._contained_references.worker_gone(client)
