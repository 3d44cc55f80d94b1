"""The two sides of a simulated program: the cluster that it runs in, and the program itself.

A program's world asks the cluster through `ProgramPort`; the program's event loops and
its exits ask the world through `VirtualProgram`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.session.session import Session
from raytwin.simulator.machine.costs import Profile
from raytwin.simulator.machine.simulated_process import ProcessPort, SimProcess
from raytwin.simulator.programs.function_names import Functions


class ProgramPort(ProcessPort, Protocol):
    """What the programs of a cluster, and their worlds, may ask of it."""

    profile: Profile
    hub: Any
    """The greenlet that runs the simulation, and the first driver's program."""
    thread: int
    """The one thread in which any of it may run."""
    pid: int
    """The real process that all of it is in."""
    on_sigterm: Any
    """The driver's handler of SIGTERM; workers have the default action."""
    loop_of_hub: asyncio.AbstractEventLoop | None
    """The asyncio loop that runs in the hub, while a program's greenlet has the thread."""
    hooks_of_hub: Any
    """The hub's hooks for asynchronous generators: see `sys.set_asyncgen_hooks`."""
    functions: Functions
    tasks: int
    """Tasks and actors' calls that workers have run so far, counted again if run again."""
    closed: bool

    def run_until(self, ready: Callable[[], object], watch: bool) -> None:
        """Run the simulation until `ready()` holds; with `watch`, raise if it never can."""

    def worker_left(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that has ended in good order."""

    def worker_died(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that its program has ended at once."""


class VirtualProgram(Protocol):
    """A simulated program, as its event loops and its exits see it: see `SimWorld`."""

    cluster: ProgramPort
    client: Client
    session: Session | None

    def __enter__(self) -> VirtualProgram: ...

    def __exit__(self, *exc: object) -> None: ...

    def block(self, ready: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait in virtual time until `ready()`; return whether it holds."""

    def nudge(self) -> None:
        """Have the program's other greenlets look whether they can go on."""

    def now(self) -> float:
        """Return the virtual time in seconds."""

    def die(self, reason: str) -> NoReturn:
        """End the program's process at once."""
