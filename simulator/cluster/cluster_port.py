"""What the parts of a simulated cluster may ask of the whole.

Stores, workers, drivers and replicas take a `ClusterPort`, and `SimCluster` is one: they
know these attributes and methods, and not the file that makes them.
"""

from __future__ import annotations

from typing import Protocol

from raytwin.runtime.control.core.config import Config
from raytwin.simulator.machine.costs import CostModel
from raytwin.simulator.machine.host import Host
from raytwin.simulator.machine.network import Network
from raytwin.simulator.machine.simulated_process import SimProcess
from raytwin.simulator.programs.virtual_program import ProgramPort


class ClusterPort(ProgramPort, Protocol):
    """A simulated cluster, as its stores, workers, drivers and replicas see it."""

    config: Config
    hosts: list[Host]
    network: Network
    costs: dict[str, CostModel]
    """By the role of a process."""
    head: SimProcess

    def start_worker(self, address: str, node: int) -> None:
        """Make a worker, whose process has come up on a node."""

    def stop_worker(self, address: str) -> None:
        """End a worker in good order; its node receives `WorkerDied`."""
