"""The world of a session: a protocol that real processes and virtual time implement."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.control.worker.executor import Executor

if TYPE_CHECKING:
    import asyncio


LOOP_STOPPED = "its event loop was stopped"
"""Why an actor has ended whose program stopped the event loop of its methods."""


def cluster_gone(reason: str) -> RaySystemError:
    """Return the error of waits after the cluster has ended."""
    return RaySystemError(f"the cluster is gone: {reason}")


class Environment:
    """Sets the environment variables of the running task, and restores the former ones."""

    def __init__(self) -> None:
        self.variables: tuple[tuple[str, str], ...] = ()
        self._before: dict[str, str | None] = {}

    def enter(self, variables: Sequence[tuple[str, str]]) -> None:
        """Set the variables of a task that begins."""
        self.variables = tuple(variables)
        self.apply()

    def leave(self) -> None:
        """Restore the former variables; the task has ended."""
        self.withdraw()
        self.variables = ()

    def apply(self) -> None:
        """Set the task's variables, for the first time or after `withdraw`."""
        for name, value in self.variables:
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def withdraw(self) -> None:
        """Restore the former variables until `apply`."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


class Serialized(Protocol):
    """A serialized value, which goes into a message or the object store."""

    nbytes: int
    contained: Sequence[Any]
    """The references inside; each adds itself to `World.sink` while it is pickled."""

    def to_bytes(self) -> bytes:
        """Return the payload of a message."""


class BodyWatcher(Protocol):
    """Is told where a program's own code runs, and where the runtime's.

    Own code are the bodies of tasks and calls, and a driver's program, without their API calls.
    """

    def opened(self, session: Any) -> None:
        """The program has this session from now on."""

    def begin(self) -> None:
        """A body begins, or goes on for its next item; or a driver's program begins."""

    def end(self) -> None:
        """The body, or the driver's program, has ended."""

    def yielded(self) -> None:
        """A body that is a generator waits until its next item is wanted."""

    def leave(self, call: str) -> bool:
        """Own code calls the API, or waits; return whether own code was running."""

    def waited(self, waitables: Sequence[Any]) -> None:
        """The call that own code has left for has waited until these were there.

        They are references, or streams.
        """

    def back(self) -> None:
        """Own code goes on after a call for which `leave` has returned True."""

    def reported(
        self, spec: TaskSpec, start: int, count: int, nbytes: int, began_s: float, ended_s: float
    ) -> None:
        """Bodies are over, of elements of `spec`; their values have so many bytes together."""

    def stored(self, array: bytes, nbytes: int) -> None:
        """The program has put an object."""


class World(Protocol):
    """Time, memory and waiting, for one driver or worker.

    Entering a world (``with world:``) begins a turn of the client and leaving
    it ends the turn, so that its messages are sent.
    """

    name: str
    client: Client
    executor: Executor | None
    """The queue of a worker; None in a driver."""
    sink: ContextVar[list[Any] | None]
    """Collects the references inside of the value that is being serialized; else None."""
    environment: Environment
    """The environment variables of the running task."""
    watcher: BodyWatcher | None
    """Is told where the program's own code runs; None if nobody asks."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: object) -> None: ...

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block the caller until `ready()`; return False if the time-out comes first.

        Raises RaySystemError if the cluster is gone.
        """

    def spawn(self, run: Callable[[], None], most: int) -> None:
        """Run a function concurrently with the calling program: in a thread, or in a greenlet.

        Threads are reused, so there are never more than `most` as long as no more than that many
        functions run.
        """

    unwinding: tuple[type[BaseException], ...]
    """The exceptions that the world raises in user code whose process has ended."""

    def is_for_driver(self, error: BaseException) -> bool:
        """Whether a signal handler has raised the error, and the driver is in this process."""

    def start_event_loop(
        self, failed: Callable[[BaseException], None]
    ) -> asyncio.AbstractEventLoop:
        """Return an event loop that runs beside the program, until the process ends.

        The loop's thread runs the tasks from then on. The world calls `failed` if an error ends
        the loop: a coroutine raised SystemExit, for instance.
        """

    def run_exit_handlers(self) -> None:
        """Call the functions that the program has registered with `atexit`, the last first.

        Prints their exceptions.
        """

    def wake_blocked(self) -> None:
        """Have all threads in `block` check their conditions, which no message has changed."""

    def collect_cycles(self) -> None:
        """Have the garbage collector find what only reference cycles keep."""

    def overdue(self) -> Callable[[], bool] | None:
        """Return a fast function that tells whether a range that begins now should report by then.

        None where time is virtual: whatever lets time pass raises an alert of the executor.
        """

    def on_task_thread(self) -> bool:
        """Whether the thread that runs tasks calls; only it may be interrupted."""

    def enter_lease(self, demand: str, gpus: Sequence[int]) -> None:
        """Tell libraries, where processes are real, what resources the next tasks have."""

    def charge(self, what: str, count: int) -> None:
        """Account for the CPU time of an API call, where time is virtual."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def compute(self, seconds: float) -> None: ...
    def blob(self, nbytes: int) -> Any: ...

    def serialize(self, value: Any) -> Serialized: ...
    def serialize_values(self, values: list[Any]) -> Serialized:
        """Serialize a task's values so that each can be loaded on its own; see `Frames`."""

    def deserialize(self, payload: bytes) -> Any: ...

    def dumps_function(self, function: Callable[..., Any]) -> bytes: ...
    @property
    def functions(self) -> object:
        """The scope of function IDs, which are valid in one simulated cluster only."""

    def identity_of(self, blob: bytes) -> bytes:
        """Return the bytes whose digest is a function's ID: its serialized form, or a
        substitute."""

    def loads_function(self, blob: bytes) -> Callable[..., Any]: ...

    def write(self, oid: bytes, offset: int, value: Serialized) -> None:
        """Write a large value at the offset that the store has allocated."""

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        """Return a large value, and call `released` when no view of it is left."""

    def close(self) -> None: ...
