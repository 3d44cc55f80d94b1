"""The interface of the cluster for its own parts.

Stores, workers, drivers and replicas depend on `ClusterPort` only, which `SimCluster`
implements, so there is no import cycle. Stores and the admission of drivers have the
type Any here, because their modules import this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from raytwin.runtime.control.channels.channel import Channel
from raytwin.runtime.control.core.config import Config
from raytwin.simulator.machine.costs import CostModel
from raytwin.simulator.machine.frame_faults import FrameFaults
from raytwin.simulator.machine.host import Processor, SharedProcessor
from raytwin.simulator.machine.network import Network
from raytwin.simulator.machine.simulated_process import SimProcess
from raytwin.simulator.programs.virtual_world import ProgramPort, SimWorld


class ClusterPort(ProgramPort, Protocol):
    """A simulated cluster, as its stores, workers, drivers and replicas see it."""

    config: Config
    hosts: list[SharedProcessor]
    network: Network
    frame_faults: FrameFaults
    costs: dict[str, CostModel]
    """By the role of a process."""
    head: SimProcess
    on_output: list[Callable[[str, float, bytes], None]]
    """Called with each output of a replica's machine: the client, its `born`, and the frames."""
    stores: dict[int, Any]
    """The `SimStore` of each node that lives, by number."""
    zygotes: Any
    """The `SimZygotes`."""
    admission: Any
    """The `SimAdmission`."""

    def peer_process(self, channel: Channel) -> SimProcess | None:
        """Return the living process that is a channel's peer, if there is one."""

    def use_core(self, node: int, cpu_s: float, done: Callable[[], None]) -> None:
        """Have a node's process use a core of its host for `cpu_s` seconds, then call `done`."""

    def after_start(self, host: Processor, process: str, started: Callable[[], None]) -> None:
        """Call back when a new node, head or replica of a host has started."""

    def after_end(self, host: Processor, process: str, reaped: Callable[[], None]) -> None:
        """Call back when the parent of a process that has ended on a host reaps it."""

    def start_worker(self, address: str, node: int) -> None:
        """Make a worker on a node, after the time that its process takes to start."""

    def stop_worker(self, address: str) -> None:
        """End a worker in good order; its node receives `WorkerDied`."""

    def make_driver(self, address: str, job: bytes) -> SimWorld:
        """Make a driver's process on node 0, and return the world of its program."""
