"""``admission:<n>``: admits drivers to a node, and reports their ends.

::

    register ──RegisterJob──> node ──> GCS ──JobRegistered──> ADMITTED ──ended──> JobEnded ──> node
                                                  └── no job number is left: REFUSED

The driver that has started the cluster is job 1: its node admits it before it asks. The world
connects drivers with their node: see `Doorkeeper`.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.messages import JobEnded, JobInfo, JobRegistered, RegisterJob

WAITING_MAX = 64
"""The most drivers that may wait for the GCS's answer at once."""
NO_NUMBER = "the cluster has no job number left"

D = TypeVar("D")
"""How a world knows a driver that waits."""
D_contra = TypeVar("D_contra", contravariant=True)


class Doorkeeper(Protocol[D_contra]):
    """The operations of a world on drivers that ask for admission."""

    def report(self, message: RegisterJob | JobEnded) -> None:
        """Hand a message to the node."""

    def welcome(self, driver: D_contra, info: JobInfo) -> None:
        """Connect a driver with the node, for its job."""

    def refuse(self, driver: D_contra, reason: str) -> None:
        """Send a driver away."""


class Admission(Generic[D]):
    """The drivers that wait for admission to one node."""

    def __init__(self, doorkeeper: Doorkeeper[D]) -> None:
        self._doorkeeper = doorkeeper
        self._keys = 0
        self._waiting: dict[int, D] = {}

    @property
    def full(self) -> bool:
        """Whether so many drivers wait that no further one may ask."""
        return len(self._waiting) >= WAITING_MAX

    def register_first(self, info: JobInfo) -> None:
        """Register the driver that has started the cluster."""
        self._doorkeeper.report(RegisterJob(info, 0))

    def register(self, info: JobInfo, driver: D) -> None:
        """Ask the GCS for a job number for a driver."""
        self._keys += 1
        self._waiting[self._keys] = driver
        self._doorkeeper.report(RegisterJob(info, self._keys))

    def handle(self, source: str, message: JobRegistered) -> None:
        """Admit the driver whose job the GCS has numbered, or refuse it."""
        if message.key not in self._waiting:
            return  # the driver of job 1
        driver = self._waiting.pop(message.key)
        if message.info.number:
            self._doorkeeper.welcome(driver, message.info)
        else:
            self._doorkeeper.refuse(driver, NO_NUMBER)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def ended(self, job: int, reason: str) -> None:
        """A driver has gone: its job ends."""
        self._doorkeeper.report(JobEnded(job_id(job), f"its driver is gone ({reason})"))
