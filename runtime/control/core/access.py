"""The jobs of one node's clients, and the jobs that have ended; `node` defines jobs."""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.core.task_ranges import job_of_task
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.messages import TaskSpec


class JobAccess:
    """The jobs of one node's clients, and those that have ended."""

    def __init__(self, worker_at: Callable[[str], Worker | None]) -> None:
        """`worker_at` returns the node's worker with an address, if there is one."""
        self._worker_at = worker_at
        self.drivers: dict[str, bytes] = {}
        """The job of each driver on this node."""
        self.ended: set[bytes] = set()
        """Jobs, and branches of jobs (detached actors), that have ended."""

    def of(self, client: str) -> bytes:
        """Return the job that a client of this node works for, empty if it has none yet."""
        worker = self._worker_at(client)
        return worker.job if worker is not None else self.drivers.get(client, b"")

    def has_ended_job(self, spec: TaskSpec) -> bool:
        """Whether a task's job has ended."""
        return bool(self.ended) and job_of_task(spec) in self.ended

    def is_over(self, some_id: bytes) -> bool:
        """Whether the job that an ID belongs to has ended."""
        return bool(self.ended) and job_of(some_id) in self.ended
