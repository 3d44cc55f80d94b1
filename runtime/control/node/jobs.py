"""Jobs: several drivers on one cluster that know nothing of each other.

A **job** is a driver and all that comes of it. The GCS numbers jobs, and every ID
begins with its job's (`ids`), so who may see what and what ends with whom can be
told from an ID alone::

    RegisterJob ──> RUNNING ──the driver is gone──> ENDED
                       │                              │ JobEnded, to every node and the
                       │                              ↓ global scheduler
                       └─ its detached actors, each a branch of the job's IDs, stay;
                          a branch ends, in the same way, with its actor

What is a job's own: tasks, objects, functions, placement groups, actors without a
name, and worker processes. A worker belongs to the first job that it runs a task of
(a detached actor's tasks count as a job of their own) until it ends. What jobs share
is resources, the key-value table, detached placement groups, and named actors: the name is
what lets others in.
An actor whose driver gave no namespace is named in one that only its job has.

What a job may not do its client's node refuses (`core.access`): to read another job's
object, to give one to a task, to cancel or kill what it has not made. Calls
of an actor are checked where it lives (`ActorManager`), since its name is known there, and
what is said of placement groups at the global scheduler (`GroupTable`).

`JobEnded` says all at once, so nobody has to find out what a job had: each receiver
drops what begins with the ID, and what comes late and begins with it is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.messages import (
    DescribeJob,
    JobEnded,
    JobRegistered,
    RegisterJob,
)

if TYPE_CHECKING:
    from raytwin.runtime.control.node.node_manager import LocalScheduler


class NodeJobs:
    """Jobs as one node sees them, for its scheduler."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._scheduler = scheduler
        self._access = scheduler.access
        self.gone: set[str] = set()
        """Drivers that lived here: they are sent nothing, and given no pins."""

    def on_register(self, source: str, message: RegisterJob) -> None:
        """A driver is at this node's door."""
        if message.info.number:
            self._access.drivers[message.info.driver] = job_id(message.info.number)
        self._scheduler.ctx.send("gcs", message)

    def on_registered(self, source: str, message: JobRegistered) -> None:
        """The GCS knows its number: let it in."""
        info = message.info
        if info.number:
            self._access.drivers[info.driver] = job_id(info.number)
        self._scheduler.ctx.send(f"door:{self._scheduler.node}", message)

    def on_describe(self, source: str, message: DescribeJob) -> None:
        """A driver says more of its job."""
        message.job = self._access.of(source)
        self._scheduler.ctx.send("gcs", message)

    def on_ended(self, source: str, message: JobEnded) -> None:
        """Drop all that a job has here; said by the door of its driver, then by the GCS."""
        if source.startswith("door:"):
            self._scheduler.ctx.send("gcs", message)
        if message.job not in self._access.ended:
            self._access.ended.add(message.job)
            gone = [driver for driver, job in self._access.drivers.items() if job == message.job]
            self.gone.update(gone)
            self._drop(message.job, f"its job has ended: {message.reason}")
            for driver in gone:
                self._drop_driver(driver)
                del self._access.drivers[driver]

    def _drop(self, job: bytes, reason: str) -> None:
        """Drop all that a job has here, queues first, so that nothing of it begins."""
        node = self._scheduler
        workers = node.dispatcher.end_job(job)
        node.inputs.end_job(job)
        # Detached actors here keep their class, whose job may have ended.
        actors = [actor.spec for actor in node.actors.actors.values()]
        used = {spec.function for spec in actors if not self._access.is_late(spec)}
        node.inputs.forget_functions(self._access.ended, used)
        for worker in workers:
            node.deaths.end(worker, reason)
        node.owned.end_job(job)
        node.actors.end_job(job)
        node.results.end_job(job)
        for array in node.objects.of_job(job):
            node.log.forget(array)
            node.letting_go.release_all((array,))

    def _drop_driver(self, client: str) -> None:
        """Drop what a driver of this node held."""
        node = self._scheduler
        for array in node.objects.drop_client(client):
            if node.objects.owners.release(array, client):
                node.letting_go.release_all((array,))
        node.places.drop(client)
        node.custody.worker_gone(client)
