"""The GCS's job table: every job's number, driver and namespace; `node` defines jobs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import JOBS_MAX, job_id, job_number
from raytwin.runtime.control.messages import (
    DescribeJob,
    JobInfo,
    JobRegistered,
    RegisterJob,
)

ENDED_ROWS_MAX = 1024
"""How many rows of ended jobs the table keeps, at most."""


class JobTable:
    """The jobs of the cluster."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.rows: dict[int, JobInfo] = {}
        """Running jobs, by number."""
        self._ended_rows: BoundedMap[int, JobInfo] = BoundedMap(ENDED_ROWS_MAX)
        self.ended: set[bytes] = set()
        """IDs of jobs and branches that have ended: messages about them are ignored."""
        self._last = 0
        self._branches: dict[int, int] = {}
        self._namespaces: dict[int, str] = {}
        """Namespaces that drivers chose; a detached actor may use one after its job has ended."""

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
        """Enter the driver's namespace, entry point and process."""
        number = job_number(message.job)
        row = self.rows.get(number)
        if row is not None:
            row.namespace = message.namespace or row.namespace
            row.entrypoint, row.pid = message.entrypoint, message.pid or row.pid
            if message.namespace:
                self._namespaces[number] = message.namespace

    def end(self, job: bytes, reason: str) -> None:
        """A driver or a detached actor has ended."""
        self.ended.add(job)
        number = job_number(job)
        if number in self.rows and job == job_id(number):
            row = self._ended_rows[number] = self.rows.pop(number)
            row.alive, row.reason, row.ended_s = False, reason, self._ctx.now()

    def driver_of(self, job: bytes) -> str:
        """Return the address of a running job's driver, empty if it has ended."""
        row = self.rows.get(job_number(job))
        return "" if row is None else row.driver

    def next_branch(self, job: bytes) -> int:
        """Return the number of a new detached actor of a job; 0 if there are none left."""
        number = job_number(job)
        branch = self._branches.get(number, 0) + 1
        if branch > JOBS_MAX:
            return 0
        self._branches[number] = branch
        return branch

    def namespace_of(self, job: bytes) -> str:
        """Return the default namespace of a job."""
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
