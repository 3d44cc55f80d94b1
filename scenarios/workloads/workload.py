"""A workload of the fidelity study: program, cluster, and how it relates to the calibration.

Each program runs on both backends and returns what it did, by the cluster's clock.

=========== ================================================================================
TRAIN       loads of the calibration, run anew
SIZE        loads of the calibration with other sizes
WORKLOAD    programs of another shape, with and without work in their tasks
SHAPE       on one core: the profile was measured on all
FIGURE      what figures 8a, 8b, 9 and 10b measure on one host, at a small size; puts that several
            threads copy are SIZE, since the calibration has some
FAULTS      programs in which processes die or links fail, among them figures 10a, 11a and 11b
SEARCHED    the worst of those that a search has tried, see `layered_graph`: none is among these
=========== ================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SEED = 14
"""Programs draw with this seed, so that they draw the same on both backends."""


@dataclass(frozen=True)
class Ended:
    """A program has ended: its operations, and how long they took."""

    operations: int
    elapsed_s: float
    latencies_s: tuple[float, ...] = ()
    """Of the operations whose end the driver sees."""
    recovery_s: Mapping[str, float] = field(default_factory=dict)
    """How long its cluster took to recover from faults, by metric. A program that measures this is
    paced by the clock, so that its makespan is no figure."""


Run = Callable[[], Ended]


class Group(Enum):
    """How a workload relates to the calibration; see the module."""

    TRAIN = "train"
    SIZE = "held-out size"
    WORKLOAD = "held-out workload"
    SHAPE = "held-out machine shape"
    FIGURE = "figures"
    FAULTS = "under faults"
    SEARCHED = "searched"


@dataclass(frozen=True)
class Workload:
    """A program, the cluster that it is for, and the machine."""

    start: Callable[[], Run]
    """Makes the program's actors; what it returns may be run several times."""
    group: Group
    cpus: tuple[int, ...] = (1,)
    """Of each node; the driver is on the first."""
    cores: int | None = None
    """How many cores of the machine it may use; None: all."""
    body_s: float = 0.0
    """CPU time within an operation, seconds."""
    of_tasks: bool = True
    """Whether it is made of tasks or calls, and nothing else decides how long it takes: the naive
    model is of these."""
    slots: float = 0.0
    """Of a resource, ``slot``, that all nodes but the driver's have."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `init`, besides."""
    stores_gcs: bool = False
    """Whether its GCS has a file."""
    faulty: bool = False
    """Whether processes die or links fail in it. It warms itself up and runs once in a cluster; CPU
    times and turns are not compared, since they are gone with their processes."""
    behind_proxies: bool = False
    """Whether links between real processes lead through Toxiproxy."""

    @property
    def nodes(self) -> list[dict[str, float]]:
        """The nodes as `init` takes them."""
        slots = {"slot": self.slots} if self.slots else {}
        driver, *others = self.cpus
        return [{"CPU": driver}, *({"CPU": cpus, **slots} for cpus in others)]
