"""What a backend implements, and what it is given to export.

Backends that run raytwin's own control plane share one, `session.session.Session`, and
differ in the `World` under it: real processes or virtual time. A backend with a control plane
of its own (Ray) implements `Backend` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec

if TYPE_CHECKING:
    from raytwin.runtime.api.actor_call import ActorCall
    from raytwin.runtime.api.options.actor_options import ActorOptions
    from raytwin.runtime.api.options.task_options import TaskOptions
    from raytwin.runtime.api.refs import ObjectRef, ObjectRefArray
    from raytwin.runtime.api.streams import ObjectRefGenerator


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
    node: int
    """The calling code's."""
    address: str
    """The calling process's."""
    namespace: str
    env_vars: tuple[tuple[str, str], ...]
    """Of every task of this driver."""

    @property
    def actor(self) -> tuple[bytes, ActorInfo | None] | None:
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
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[Any], list[Any]]:
        """Return (ready, not ready), both in the order given.

        A stream is ready when its next item is, or its end.
        """  # fmt: skip

    def wait_again(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]] | None:
        """As `wait`, for the list of references that it returned last.

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
