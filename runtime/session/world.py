"""The world of a session, which real processes and virtual time implement."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.worker.executor import Executor

if TYPE_CHECKING:
    import asyncio


class Environment:
    """The environment variables of the running task: set before it, put back after it."""

    def __init__(self) -> None:
        self.variables: tuple[tuple[str, str], ...] = ()
        self._before: dict[str, str | None] = {}

    def enter(self, variables: Sequence[tuple[str, str]]) -> None:
        """Set variables."""
        self.variables = tuple(variables)
        self.apply()

    def leave(self) -> None:
        """Restore the former variables."""
        self.withdraw()
        self.variables = ()

    def apply(self) -> None:
        """Set the variables (again)."""
        for name, value in self.variables:
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def withdraw(self) -> None:
        """Put back what was there, for now."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


class Serialized(Protocol):
    """A value on its way into a message or the object store."""

    nbytes: int
    contained: Sequence[Any]
    """The references inside: each adds itself to `World.sink` while it is pickled."""

    def to_bytes(self) -> bytes:
        """Return it as the payload of a message."""


class World(Protocol):
    """Time, memory and waiting, for one driver or worker.

    Entering a world (``with world:``) begins a turn of the client and leaving
    it ends the turn, so that its messages are sent.
    """

    name: str
    client: Client
    executor: Executor | None
    """None in a driver."""
    sink: ContextVar[list[Any] | None]
    """Not None where a value is being serialized."""
    environment: Environment
    """The environment variables of the running task."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: object) -> None: ...

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let the world go on until `ready()`; return whether it came to be.

        Raises RaySystemError if the cluster is gone.
        """

    def spawn(self, run: Callable[[], None], most: int) -> None:
        """Run a function concurrently with the calling program: in a thread, or in a greenlet.

        Threads are kept and used again, so there are never more than `most`, as long as no
        more than that is under way.
        """

    unwinding: tuple[type[BaseException], ...]
    """The exceptions by which the world ends user code whose process has ended."""

    def is_for_driver(self, error: BaseException) -> bool:
        """Whether a handler of a signal has raised it, and the driver is in this process."""

    def start_event_loop(
        self, failed: Callable[[BaseException], None]
    ) -> asyncio.AbstractEventLoop:
        """Return an event loop that runs beside the program, until the process ends.

        The thread that runs it is from then on the one that runs tasks.
        `failed` is called if something ends the loop: a coroutine raised SystemExit.
        """

    def run_exit_handlers(self) -> None:
        """Call the functions that the program has registered with `atexit`, the last first.

        Their exceptions are printed.
        """

    def nudge(self) -> None:
        """Have all threads in `block` check their conditions, which no message has changed."""

    def due(self) -> Callable[[], bool]:
        """Return a quick test for: should a running range report by now?"""

    def on_task_thread(self) -> bool:
        """Whether the caller is the thread that runs tasks, and may be interrupted."""

    def charge(self, what: str, count: int) -> None:
        """Account for the CPU time of an API call, where time is virtual."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def compute(self, seconds: float) -> None: ...
    def blob(self, nbytes: int) -> Any: ...

    def serialize(self, value: Any) -> Serialized: ...
    def serialize_values(self, values: list[Any]) -> Serialized:
        """Serialize a task's values, each to be loaded whether others can or not; see `frames`."""

    def deserialize(self, payload: bytes) -> Any: ...

    def dumps_function(self, function: Callable[..., Any]) -> bytes: ...
    @property
    def functions(self) -> object:
        """The scope of function IDs: those of one simulated cluster mean nothing to another."""

    def identity_of(self, blob: bytes) -> bytes:
        """Return the bytes whose digest is a function's ID: its serialized form, or a
        substitute."""

    def loads_function(self, blob: bytes) -> Callable[..., Any]: ...

    def write(self, oid: bytes, offset: int, value: Serialized) -> None:
        """Write a large value where the store gave it room."""

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        """Return a large value; `released` is called when no view of it is left."""

    def close(self) -> None: ...
