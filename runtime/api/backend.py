"""The backend of the calling code, and the references to objects that it makes and resolves.

A real driver or worker has one backend for the whole process. In virtual
time many drivers and workers share a process, so a backend may install a
look-up that finds the backend of the running greenlet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from types import GenericAlias
from typing import Any, Protocol, overload

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.ids import JobID, TaskID
from raytwin.runtime.api.modules import explains_missing_attributes, missing_attribute
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.options.method_options import ActorCall
from raytwin.runtime.api.options.task_options import TaskOptions
from raytwin.runtime.control.core.ids import TASK_BYTES, object_id
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec

_new = object.__new__


class RefHolder(Protocol):
    """The part of a session that counts references."""

    @property
    def closed(self) -> bool:
        """Whether the session's cluster is gone, and with it every value."""

    def ref_added(self, oid: bytes) -> None: ...
    def ref_dropped(self, oid: bytes) -> None: ...

    def ref_sent(self, ref: ObjectRef) -> str:
        """Note that a reference is pickled; return its owner's address."""

    def ref_received(self, oid: bytes, owner: str) -> None:
        """Note that a reference is unpickled; `ObjectRef` counts it next."""


class _ObjectRefType(type):
    """The class of `ObjectRef`, which explains missing attributes such as ``ObjectRef.nil()``."""

    def __getattr__(cls, name: str) -> Any:
        raise missing_attribute("ObjectRef", cls, name)


@explains_missing_attributes("ObjectRef")
class ObjectRef(metaclass=_ObjectRefType):
    """A reference to a value that exists, or will once its task has run."""

    __slots__ = ("__weakref__", "_holder", "_id")
    _holder: RefHolder
    _id: bytes

    def __new__(cls, oid: Any = None, holder: RefHolder | None = None) -> ObjectRef:
        if holder is None:
            raise TypeError(
                "raytwin makes no ObjectRef of an ID: calls, put() and map() return references, and"
                " they may be sent to tasks and actors"
            )
        # Counted first: if that fails there is no reference, whose `__del__` would count it down.
        holder.ref_added(oid)
        return counted_ref(oid, holder)

    def __del__(self) -> None:
        # Runs on any thread, at any moment; the holder only queues the ID.
        self._holder.ref_dropped(self._id)

    @property
    def closed(self) -> bool:
        """Whether the cluster that has the value is gone."""
        return self._holder.closed

    def binary(self) -> bytes:
        """Return the object's ID, 18 bytes."""
        return self._id

    def hex(self) -> str:
        """Return the object's ID in hexadecimal."""
        return self._id.hex()

    def future(self) -> Future[Any]:
        """Return a `concurrent.futures.Future` of the value."""
        return current().future(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()

    def as_future(self) -> Any:
        """Return an asyncio future of the value, within a running event loop."""
        import asyncio  # imported late, since most processes have no event loop: 3 MB less

        return asyncio.wrap_future(self.future())

    def task_id(self) -> TaskID:
        """Return the ID of the task that makes the object."""
        return TaskID(self._id[:TASK_BYTES])

    def job_id(self) -> JobID:
        """Return the ID of the calling code's job."""
        return JobID(current().job_number.to_bytes(4, "little"))

    def is_nil(self) -> bool:
        """Whether the reference is to nothing: always False."""
        return False

    __class_getitem__: Any = classmethod(GenericAlias)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectRef({self._id.hex()})"

    def __reduce__(self) -> Any:
        return _restore, (self._id, self._holder.ref_sent(self))


def _restore(oid: bytes, owner: str) -> ObjectRef:
    """Make the reference anew in the session that unpickles it."""
    holder = current().references
    holder.ref_received(oid, owner)
    return ObjectRef(oid, holder)


def counted_ref(oid: bytes, holder: RefHolder) -> ObjectRef:
    """Return a reference that its holder has already counted, since it counts several at once."""
    ref = _new(ObjectRef)
    ref._id = oid
    ref._holder = holder
    return ref


def any_closed(refs: Sequence[ObjectRef | ObjectRefArray]) -> bool:
    """Whether the cluster of one of the references is gone."""
    if len(refs) == 1:
        return refs[0]._holder.closed
    return any(holder.closed for holder in {ref._holder for ref in refs})


class ObjectRefArray(Sequence[ObjectRef]):
    """The references of one ``f.map``, a sequence that makes each reference on access."""

    __slots__ = ("_array", "_count", "_holder")
    _array: bytes
    _count: int
    _holder: RefHolder

    def __new__(cls, array: bytes, count: int, holder: RefHolder) -> ObjectRefArray:
        if count:
            holder.ref_added(object_id(array, 0, 0))
        self = _new(cls)
        self._array = array
        self._count = count
        self._holder = holder
        return self

    def __del__(self) -> None:
        if self._count:
            self._holder.ref_dropped(object_id(self._array, 0, 0))

    @property
    def closed(self) -> bool:
        """Whether the cluster that has the values is gone."""
        return self._holder.closed

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ObjectRef: ...
    @overload
    def __getitem__(self, index: slice) -> list[ObjectRef]: ...
    def __getitem__(self, index: int | slice) -> ObjectRef | list[ObjectRef]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"array of {self._count} references has no item {index}")
        return ObjectRef(object_id(self._array, index, 0), self._holder)

    def __iter__(self) -> Iterator[ObjectRef]:
        return (self[i] for i in range(self._count))

    def __repr__(self) -> str:
        return f"ObjectRefArray({self._array.hex()}, {self._count})"

    def __reduce__(self) -> Any:
        # Sent as single references, since the receiver does not own the array.
        return list, (list(self),)


class Backend(Protocol):
    """The session of the calling driver or worker, which the functions of this package call.

    `session.Session` implements it for both worlds.
    """

    name: str
    node: int
    """The number of the calling code's node."""
    address: str
    """The address of the calling process."""
    cluster_address: str
    """The address at which other drivers may join; empty if they cannot."""
    namespace: str

    @property
    def references(self) -> RefHolder:
        """The holder of references that are unpickled here."""

    @property
    def actor(self) -> tuple[bytes, ActorInfo | None] | None:
        """The ID and description of the actor whose code calls; None outside of actors."""

    def task_id(self) -> bytes | None:
        """Return the ID of the running task or call; None in a driver."""

    def running_task(self) -> tuple[TaskSpec, bytes] | None:
        """Return the running task or call, and its ID; None in a driver."""

    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called for the running task or call.

        Raises RuntimeError in a driver, and in an actor of coroutines.
        """

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs that the running task or actor has."""

    def options_in_force(self) -> tuple[str, TaskExtra | None] | None:
        """Return the demand and the extra of the calling code; None in a driver.

        They are the running task's, or those of the actor's creation.
        """

    def submit(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: TaskOptions,
    ) -> Any:
        """Submit one task; return a reference per return value, or its stream."""  # fmt: skip

    def map(
        self, function: Any, items: Sequence[Any], star: bool, options: TaskOptions
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
        waitables: Sequence[Any],
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
        """Wait as `wait` does, for the list of references that it returned last.

        Returns None for any other list, which the caller has yet to check.
        """  # fmt: skip

    def create_actor(
        self,
        actor_class: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
    ) -> tuple[bytes, ObjectRef, bytes]:
        """Create an actor, or find the one of that name if `options` allow it.

        Return its ID, a reference that keeps it alive, and for a found actor the
        pickled description of its handle; raise ValueError if the name is taken.
        """

    def call_actor(
        self,
        call: ActorCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Submit a call of an actor; return a reference per return value, or its stream."""

    def find_actor(self, name: str, namespace: str) -> tuple[bytes, ObjectRef, bytes] | None:
        """Return (ID, reference, handle's description) of a named actor, or None."""

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        """End an actor at once; with `restart` it starts again if it has restarts left."""

    def function_name(self, spec: TaskSpec) -> str:
        """Return the qualified name of a running task's function."""

    def this_actor(self) -> tuple[ObjectRef, type]:
        """Return the reference that keeps the calling actor alive, and its class."""

    def exit_actor(self) -> None:
        """End the calling actor."""

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        """Wait for an item of a stream; None if the stream has ended. Raises GetTimeoutError."""

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of the reference to an item; see `next_item`."""

    def future(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of an object's value."""

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object."""

    def create_group(
        self, name: str, bundles: list[dict[str, float]], strategy: str, detached: bool
    ) -> bytes:
        """Begin to reserve a placement group, which may outlive its job; return its ID.

        Waits until the global scheduler knows the group, not until the bundles are
        reserved. Raises ValueError if another group has the name.
        """

    @property
    def job_number(self) -> int:
        """The number of the calling code's job."""

    def describe_job(self, namespace: str, env_vars: tuple[tuple[str, str], ...] = ()) -> None:
        """Register a driver's job: its namespace (empty: its own), its environment variables."""

    def job_namespace(self) -> str:
        """Return the namespace of the calling code's job."""

    def remove_group(self, group: bytes) -> None:
        """Release a placement group."""

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


Connect = Callable[..., Backend]

on_connect: list[Callable[[Any], None]] = []
"""Functions that `init` calls with the backend that it has connected."""

_current: Backend | None = None
_lookup: Callable[[], Backend | None] | None = None
_check: Callable[[], None] | None = None
_backends: dict[str, Connect] = {}
_start: Callable[[], Any]
"""Starts a local cluster; `lifecycle`, the module of `init`, registers it."""


def current() -> Backend:
    """Return the calling code's backend; start a local cluster if there is none."""
    if _lookup is None and _current is not None:
        return _current
    check()
    backend = connected()
    if backend is None:
        _start()
        backend = connected()
        assert backend is not None
    return backend


def present() -> Backend:
    """Return the calling code's backend, without starting one.

    Raises RaySystemError if no cluster is connected.
    """
    check()
    backend = connected()
    if backend is None:
        raise RaySystemError("no cluster is connected: call init() first")
    return backend


def check() -> None:
    """Raise RuntimeError if the calling thread may not use the backend."""
    if _check is not None:
        _check()


def connected() -> Backend | None:
    """Return the calling code's backend, or None."""
    if _lookup is not None:
        found = _lookup()
        if found is not None:
            return found
    return _current


def set_current(
    backend: Backend | None,
    lookup: Callable[[], Backend | None] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Set the process's backend, and a look-up that takes precedence over it.

    `check` raises RuntimeError on threads that may not use it.
    """
    global _current, _lookup, _check
    _current = backend
    _lookup = lookup
    _check = check


def register_backend(name: str, connect: Connect) -> None:
    """Make ``init(backend=name, **options)`` call `connect(**options)`."""
    _backends[name] = connect


def register_start(start: Callable[[], Any]) -> None:
    """Have `current` call `start` if no cluster is connected."""
    global _start
    _start = start


def backends() -> dict[str, Connect]:
    """Return the backends by name."""
    return dict(_backends)
