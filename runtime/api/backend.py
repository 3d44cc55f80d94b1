"""What a backend implements: `Backend` for the API, `World` for a session.

`api` speaks to a `Backend`. Backends that run raytwin's own control
plane share one, `session.Session`, and differ in the `World`
under it: real processes or virtual time. A backend with a control plane of its
own (Ray) implements `Backend` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.environment import Environment

if TYPE_CHECKING:
    import asyncio

    from raytwin.runtime.api.actor_call import ActorCall
    from raytwin.runtime.api.options.actor_options import ActorOptions
    from raytwin.runtime.api.options.task_options import TaskOptions
    from raytwin.runtime.api.refs import ObjectRef, ObjectRefArray
    from raytwin.runtime.api.streams import ObjectRefGenerator, Place


class Definition(Protocol):
    """A remote function or an actor class, as a session exports it to workers."""

    exported: tuple[bytes, object, bytes, bytes] | None
    """(job, table of functions, ID, serialized form), made by the first session that needs it."""

    @property
    def source(self) -> tuple[Any, str]:
        """The plain function or class, and its name in errors."""


class FunctionDefinition(Definition, Protocol):
    """A remote function, as a session submits its tasks: `RemoteFunction`."""

    function: Callable[..., Any]
    function_name: str
    stream: int
    """What its calls return where ``num_returns`` does not say: `STREAM` or 0."""


class ActorDefinition(Definition, Protocol):
    """An actor class, as a session creates its actors: `ActorClass`."""

    cls: type
    class_name: str

    @property
    def concurrency(self) -> int:
        """How many calls may run at a time."""

    def description(self) -> tuple[Any, ...]:
        """Return the parts of a handle that are the same for all its actors."""


class Backend(Protocol):
    """What `api` needs of whoever runs the program."""

    name: str
    one_thread: bool
    """Programs have no second thread: what waits lets the others go on. A future that is
    given a call-back is waited for there and then."""

    node: int
    """The calling code's."""
    address: str
    """The calling process's."""
    namespace: str
    env_vars: tuple[tuple[str, str], ...]
    """Of every task of this driver."""

    actor: tuple[bytes, ActorInfo | None] | None
    """The ID and description of the actor that the calling code is part of."""

    def task_id(self) -> bytes | None:
        """Return the ID of the task or call that calls; None in a driver."""

    def running_task(self) -> tuple[TaskSpec, bytes] | None:
        """Return the task that the calling code is part of and its ID; None in a driver."""

    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called for the task or call that calls.

        Raises RuntimeError in a driver, and in an actor of coroutines.
        """

    def standing(self) -> tuple[str, TaskExtra | None] | None:
        """Return the demand and the extra that hold for the calling code; None in a driver.

        They are the task's, and in the methods of an actor those that it was made with.
        """

    def submit(
        self,
        function: FunctionDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: TaskOptions,
    ) -> list[ObjectRef] | ObjectRefGenerator:
        """Submit one task; return a reference per return value, or its stream."""  # fmt: skip

    def map(
        self, function: FunctionDefinition, items: Sequence[Any], star: bool, options: TaskOptions
    ) -> ObjectRefArray:
        """Submit one task per item; ``star`` calls ``f(*item)``."""

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """Return the values; raise a task's error, or GetTimeoutError."""

    def get_array(self, refs: ObjectRefArray, timeout_s: float | None) -> list[Any]:
        """Return the values of a whole array."""

    def put(self, value: Any) -> ObjectRef:
        """Store a value."""

    def wait(
        self,
        refs: Sequence[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Return (ready, not ready), both in the order given."""  # fmt: skip

    def wait_again(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]] | None:
        """As `wait`, for a list that it has returned, with more behind it perhaps.

        None for any other list, which may be anything: it has not been checked.
        """  # fmt: skip

    def create_actor(
        self,
        actor_class: ActorDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
    ) -> tuple[bytes, ObjectRef, bytes]:
        """Create an actor, or find the one of that name where `options` allow it.

        Return its ID, a reference that keeps it alive, and, if it was found, its
        handle's description as it was given; raise ValueError if the name is taken.
        """

    def call_actor(
        self,
        call: ActorCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[ObjectRef] | ObjectRefGenerator:
        """Submit a call of an actor; return a reference per return value, or its stream."""

    def wait_mixed(
        self,
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[Any], list[Any]]:
        """As `wait`; a stream is ready when its next item is, or its end."""

    def find_actor(self, name: str, namespace: str) -> tuple[bytes, ObjectRef, bytes] | None:
        """Return (ID, reference, handle's description) of a named actor, or None."""

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        """End an actor at once; with `restart` it starts again if it may."""

    def function_name(self, spec: TaskSpec) -> str:
        """Return the qualified name of a running task's function."""

    def own_actor(self) -> tuple[ObjectRef, type]:
        """Return what stands for the actor that calls, and its class."""

    def exit_actor(self) -> None:
        """End the actor that calls."""

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        """Wait for an item of a stream; None: it has ended. Raises GetTimeoutError."""

    def take_item(self, array: bytes, place: Place) -> ObjectRef | None:
        """Wait for the next item of a stream and take it; None: it has ended."""

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of what `next_item` returns."""

    def future(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of an object's value."""

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        """Take back the task that makes an object."""

    def create_group(
        self, name: str, bundles: list[dict[str, float]], strategy: str, detached: bool
    ) -> bytes:
        """Begin to reserve a placement group, which may outlive its job; return its ID.

        It waits until the global scheduler knows the group, not until it is reserved.
        ValueError if another one has the name.
        """

    @property
    def job_number(self) -> int:
        """The number of the calling code's job."""

    def describe_job(self, namespace: str) -> None:
        """Say of a driver's job in which namespace its names are; empty: one of its own."""

    def job_namespace(self) -> str:
        """Return that namespace."""

    def remove_group(self, group: bytes) -> None:
        """Give a placement group back."""

    def query(self, kind: str) -> Any:
        """Return ``nodes``, ``timeline``, ``stores`` or ``disks`` rows; see `queries`."""

    def now(self) -> float:
        """Return the time in seconds."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def compute(self, seconds: float) -> None:
        """Keep one CPU busy."""

    def blob(self, nbytes: int) -> Any:
        """Return a value of that size."""

    def shutdown(self) -> None:
        """End the cluster, or leave it."""


class Serialized(Protocol):
    """A value on its way into a message or the object store."""

    nbytes: int
    contained: Sequence[Any]
    """What has put itself into `World.sink` meanwhile: references."""

    def to_bytes(self) -> bytes:
        """Return it as the payload of a message."""


class World(Protocol):
    """What a session needs besides the control plane: time, memory, waiting.

    Entering a world (``with world:``) begins a turn of the client and leaving
    it ends the turn, so that what was sent within goes out.
    """

    name: str
    one_thread: bool
    """See `Backend.one_thread`."""
    client: Client
    executor: Executor | None
    """None in a driver."""
    sink: ContextVar[list[Any] | None]
    """Not None where a value is being serialized."""
    environment: Environment
    """Of the running task."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: object) -> None: ...

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let the world go on until `ready()`; return whether it came to be.

        Raises RaySystemError if the cluster is gone.
        """

    def spawn(self, run: Callable[[], None], most: int) -> None:
        """Run something beside the program that calls: a thread, or what stands for one.

        Threads are kept and used again, so there are never more than `most`, as long as no
        more than that is under way.
        """

    unwinding: tuple[type[BaseException], ...]
    """What the world ends user code with whose process is gone."""

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
        """Call what the process's program has registered with `atexit`, the last first.

        What they raise is printed.
        """

    def nudge(self) -> None:
        """Make those who `block` look again: something changed without a message."""

    def due(self) -> Callable[[], bool]:
        """Return a quick test for: should a running range report by now?"""

    def on_task_thread(self) -> bool:
        """Whether the caller is the thread that runs tasks, and may be interrupted."""

    def look_again(self) -> None:
        """Have those in `block` ask again whether they are `ready`."""

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
        """Whose IDs of functions these are: those of one simulated cluster mean nothing to
        another."""

    def identity_of(self, blob: bytes) -> bytes:
        """Return of what a function's ID is the digest: its serialized form, or what stands
        for it."""

    def loads_function(self, blob: bytes) -> Callable[..., Any]: ...

    def write(self, oid: bytes, offset: int, value: Serialized) -> None:
        """Write a large value where the store gave it room."""

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        """Return a large value; `released` is called when no view of it is left."""

    def close(self) -> None: ...
