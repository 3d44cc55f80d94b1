"""The node's other parts, as its actors use them.

The node manager implements `NodeServices` and imports the actors; the actors import only this
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.messages import ObjectValue, TaskSpec
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.observability.timeline import RangeLog
from raytwin.runtime.control.ownership.contained_references import ContainedReferences


class Dependencies(Protocol):
    """Claims and pins the inputs of constructors and calls."""

    def claim(self, spec: TaskSpec) -> int:
        """Keep a task's inputs in memory until `unclaim`; return its rank at eviction."""

    def unclaim(self, spec: TaskSpec) -> None:
        """End the claim, if there is one."""

    def take(self, spec: TaskSpec, worker: str) -> tuple[ObjectValue, ...] | None:
        """Return the inputs, pinned for the worker; None if one is not in memory."""


class Workers(Protocol):
    """The node's workers."""

    @property
    def workers(self) -> Mapping[str, Worker]:
        """The living workers, by address."""

    def send_function(self, worker: Worker, function: bytes) -> None:
        """Send a worker a function or class, unless it has it."""


class NodeServices(Protocol):
    """The parts of a node, as its actors see them."""

    config: Config
    objects: NodeObjects
    results: ResultManager
    contained_references: ContainedReferences
    timeline: RangeLog
    members: Membership
    access: JobAccess

    @property
    def pool(self) -> ResourcePool:
        """The node's resources."""

    @property
    def inputs(self) -> Dependencies:
        """The inputs of constructors and calls."""

    @property
    def leases(self) -> Workers:
        """The living workers."""

    def end_worker(self, worker: Worker, reason: str) -> None:
        """Kill a worker at once, whatever it runs."""
