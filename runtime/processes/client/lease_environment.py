"""Environment variables by which libraries learn what resources the running task has.

They hold for a lease: a worker runs tasks of one demand one after another, so the variables are set
when the demand changes, not for each task. An actor keeps its own for life.

``OMP_NUM_THREADS`` is the number of CPUs, at least 1, unless the cluster was started with a value:
libraries that start one thread per core would otherwise have as many threads as the machine has
cores, in each of as many workers. A library that the zygote loaded before the fork has read the
variable already: `blas_threads` sets its number of threads.

``CUDA_VISIBLE_DEVICES`` are the lease's GPUs; if the cluster was started with a value, their names
in it. Without GPUs it stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from raytwin.runtime.control.core.group_resources import plain_amounts
from raytwin.runtime.processes.client import blas_threads
from raytwin.runtime.session.world import Environment

THREADS = "OMP_NUM_THREADS"
DEVICES = "CUDA_VISIBLE_DEVICES"


class LeaseEnvironment:
    """Sets the variables of one worker's process."""

    def __init__(self) -> None:
        self._sets_threads = THREADS not in os.environ
        self._devices = os.environ[DEVICES].split(",") if os.environ.get(DEVICES) else []
        self._environment = Environment()

    def enter(self, demand: str, gpus: Sequence[int]) -> None:
        """Set the variables for the tasks of a demand, which have these GPUs."""
        self._environment.leave()
        variables = []
        if self._sets_threads:
            threads = max(1, int(plain_amounts(demand).get("CPU", 0.0)))
            variables.append((THREADS, str(threads)))
            blas_threads.use(threads)
        if gpus:
            names = self._devices if len(self._devices) > max(gpus) else range(max(gpus) + 1)
            variables.append((DEVICES, ",".join(str(names[number]) for number in gpus)))
        self._environment.enter(variables)

    def leave(self) -> None:
        """Restore the variables that the process has started with."""
        self._environment.leave()
