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

What a job may not do its client's node refuses (`NodeJobs`): to read another job's
object, to give one to a task, to cancel or kill what it has not made. Calls
of an actor are checked where it lives (`ActorManager`), since its name is known there, and
what is said of placement groups at the global scheduler (`GroupTable`).

`JobEnded` says all at once, so nobody has to find out what a job had: each receiver
drops what begins with the ID, and what comes late and begins with it is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import failed_value
from raytwin.runtime.control.core.ids import JOBS_MAX, job_id, job_number, job_of, same_job
from raytwin.runtime.control.messages import (
    CancelTask,
    DescribeJob,
    Event,
    JobEnded,
    JobInfo,
    JobRegistered,
    ObjectValue,
    RegisterJob,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import ObjectOfOtherJob

if TYPE_CHECKING:
    from raytwin.runtime.control.node.node_manager import LocalScheduler

ENDED_ROWS_MAX = 1024
"""Of how many ended jobs the table keeps a row, at most."""


# -- at the GCS ------------------------------------------------------------------


class JobTable:
    """The part of the GCS that knows jobs."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.rows: dict[int, JobInfo] = {}
        """Of jobs that are not over, by number."""
        self._ended_rows: BoundedMap[int, JobInfo] = BoundedMap(ENDED_ROWS_MAX)
        self.ended: set[bytes] = set()
        """IDs of jobs and branches that are over: what comes of them is late."""
        self._last = 0
        self._branches: dict[int, int] = {}
        self._namespaces: dict[int, str] = {}
        """Those that drivers chose; detached actors may ask after their job has ended."""

    def on_register(self, source: str, message: RegisterJob) -> None:
        """Give a job its number, unless it has one."""
        info = message.info
        if not info.number and self._last < JOBS_MAX:
            info.number = self._last + 1
        if info.number:
            self._last = max(self._last, info.number)
            info.started_s = self._ctx.now()
            info.driver = info.driver or f"driver:{info.node}.{info.number}"
            self.rows[info.number] = replace(info)
        self._ctx.send(source, JobRegistered(info, message.key))

    def on_describe(self, source: str, message: DescribeJob) -> None:
        """Its driver says more of it."""
        number = job_number(message.job)
        row = self.rows.get(number)
        if row is not None:
            row.namespace = message.namespace or row.namespace
            row.entrypoint, row.pid = message.entrypoint, message.pid or row.pid
            if message.namespace:
                self._namespaces[number] = message.namespace

    def end(self, job: bytes, reason: str) -> None:
        """A driver, or a detached actor, is gone."""
        self.ended.add(job)
        number = job_number(job)
        if number in self.rows and job == job_id(number):
            row = self._ended_rows[number] = self.rows.pop(number)
            row.alive, row.reason, row.ended_s = False, reason, self._ctx.now()

    def next_branch(self, job: bytes) -> int:
        """Return the number of a new detached actor of a job; 0 if there are none left."""
        number = job_number(job)
        branch = self._branches.get(number, 0) + 1
        if branch > JOBS_MAX:
            return 0
        self._branches[number] = branch
        return branch

    def namespace_of(self, job: bytes) -> str:
        """Return the namespace of a job's names, where none is said."""
        number = job_number(job)
        return self._namespaces.get(number, namespace_of(number)) if job else ""

    def table(self) -> list[list[Any]]:
        """Return [number, driver, pid, namespace, entrypoint, alive, reason] each."""
        return [
            [
                row.number, row.driver, row.pid, row.namespace or namespace_of(row.number),
                row.entrypoint, row.alive, row.reason,
            ]
            for _, row in sorted({**self._ended_rows, **self.rows}.items())
        ]  # fmt: skip


def namespace_of(number: int) -> str:
    """Return the namespace of a job whose driver has chosen none."""
    return f"job-{number}"


def without_ended(message: TaskUpdates, ended: Iterable[bytes]) -> TaskUpdates:
    """Return a node's news without those of jobs that are over."""
    if not ended:
        return message
    return TaskUpdates(
        message.node,
        [spec for spec in message.added if job_of(spec.array) not in ended],
        [row for row in message.done if job_of(row[0]) not in ended],
        [row for row in message.copies if job_of(row[0]) not in ended],
        [array for array in message.released if job_of(array) not in ended],
        [row for row in message.puts if job_of(row[0]) not in ended],
        message.incarnation,
        [row for row in message.calls if job_of(row[0]) not in ended],
        message.bereaved,
        message.handed,
        message.holding,
        message.barren,
        message.left,
    )


# -- on a node -------------------------------------------------------------------


def foreign_object(oid: bytes, job: bytes) -> ObjectValue:
    """Return what an object is to a job that it does not belong to."""
    return failed_value(ObjectOfOtherJob(oid, job_number(oid), job_number(job)), oid)


class NodeJobs:
    """Jobs as one node sees them, for its scheduler."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._scheduler = scheduler
        self.drivers: dict[str, bytes] = {}
        """The jobs of the drivers that live here."""
        self.ended: set[bytes] = set()
        self.gone: set[str] = set()
        """Drivers that lived here: they are sent nothing, and given no pins."""

    def of(self, client: str) -> bytes:
        """Return the job that a client of this node works for, empty if it has none yet."""
        worker = self._scheduler.dispatcher.workers.get(client)
        return worker.job if worker is not None else self.drivers.get(client, b"")

    def is_late(self, spec: TaskSpec) -> bool:
        """Whether a task's job has ended."""
        return bool(self.ended) and job_of_task(spec) in self.ended

    def is_over(self, some_id: bytes) -> bool:
        """Whether something belongs to a job that has ended."""
        return bool(self.ended) and job_of(some_id) in self.ended

    # -- coming and going --------------------------------------------------------

    def on_register(self, source: str, message: RegisterJob) -> None:
        """A driver is at this node's door."""
        if message.info.number:
            self.drivers[message.info.driver] = job_id(message.info.number)
        self._scheduler.ctx.send("gcs", message)

    def on_registered(self, source: str, message: JobRegistered) -> None:
        """The GCS knows its number: let it in."""
        info = message.info
        if info.number:
            self.drivers[info.driver] = job_id(info.number)
        self._scheduler.ctx.send(f"door:{self._scheduler.node}", message)

    def on_describe(self, source: str, message: DescribeJob) -> None:
        """A driver says more of its job."""
        message.job = self.of(source)
        self._scheduler.ctx.send("gcs", message)

    def on_ended(self, source: str, message: JobEnded) -> None:
        """Drop all that a job has here; said by the door of its driver, then by the GCS."""
        if source.startswith("door:"):
            self._scheduler.ctx.send("gcs", message)
        if message.job not in self.ended:
            self.ended.add(message.job)
            gone = [driver for driver, job in self.drivers.items() if job == message.job]
            self.gone.update(gone)
            self._drop(message.job, f"its job has ended: {message.reason}")
            for driver in gone:
                self._drop_driver(driver)
                del self.drivers[driver]

    def _drop(self, job: bytes, reason: str) -> None:
        """Drop all that a job has here, queues first, so that nothing of it begins."""
        node = self._scheduler
        workers = node.dispatcher.end_job(job)
        node.inputs.end_job(job)
        # Detached actors here keep their class, whose job may have ended.
        actors = [actor.spec for actor in node.actors.actors.values()]
        used = {spec.function for spec in actors if not self.is_late(spec)}
        node.inputs.forget_functions(self.ended, used)
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
            if node.objects.let_go(array, client):
                node.letting_go.release_all((array,))
        node.places.drop(client)
        node.custody.worker_gone(client)

    # -- what is refused ---------------------------------------------------------

    def may_read(self, client: str, oid: bytes) -> ObjectValue | None:
        """Return None, or the error that an object is to this client."""
        job = self.of(client)
        return None if not job or same_job(oid, job) else foreign_object(oid, job)

    def refusal(self, client: str, spec: TaskSpec) -> ObjectValue | None:
        """Return None, or the error that a task ends with that its client may not submit."""
        job = self.of(client)
        if not job:
            return None
        for oid in spec.deps:
            if not same_job(oid, job):
                return foreign_object(oid, job)
        return None

    def may_cancel(self, client: str, message: CancelTask) -> bool:
        """Whether a client may cancel; tells the event log if not."""
        job = self.of(client)
        return not job or same_job(message.array, job) or self._refuse(client, message.array)

    def _refuse(self, client: str, what: bytes) -> bool:
        self._scheduler.ctx.send(
            "gcs", Event("refused", client, f"{what.hex()} belongs to job {job_number(what)}")
        )
        return False


def job_of_task(spec: TaskSpec) -> bytes:
    """Return the job with which a task ends; to that, its worker belongs.

    The creation of a detached actor is the actor's.
    """
    actor = spec.extra.actor if spec.extra is not None else None
    branch = actor.branch if actor is not None else 0
    return job_id(job_number(spec.array), branch) if branch else job_of(spec.array)
