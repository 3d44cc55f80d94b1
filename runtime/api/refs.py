"""References to objects, and to whole arrays of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from types import GenericAlias
from typing import Any, Protocol, overload

from raytwin.runtime.api.ids import JobID, TaskID
from raytwin.runtime.api.modules import not_there, says_what_is_missing
from raytwin.runtime.control.core.ids import TASK_BYTES, object_id

_new = object.__new__


def _no_backend() -> Any:
    raise AssertionError("references need raytwin.runtime.api.current to be imported")


backend_of_caller: Callable[[], Any] = _no_backend
"""Returns the backend that the calling code runs on. `current` sets it when it is imported:
backends speak of references, so references cannot import what knows backends."""


class RefHolder(Protocol):
    """Who counts references: the session of a driver or worker."""

    closed: bool
    """Whether its cluster is gone, and with it every value."""

    def ref_added(self, oid: bytes) -> None: ...
    def ref_dropped(self, oid: bytes) -> None: ...

    def ref_sent(self, ref: ObjectRef) -> str:
        """The reference is pickled; return its owner's address."""

    def ref_received(self, oid: bytes, owner: str) -> None:
        """It is unpickled, and counted next."""


class _Kind(type):
    """What is missing from the class itself says so: ``ObjectRef.nil()``."""

    def __getattr__(cls, name: str) -> Any:
        raise not_there("ObjectRef", cls, name)


@says_what_is_missing("ObjectRef")
class ObjectRef(metaclass=_Kind):
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
        # Counted first: what cannot be counted is no reference, and nobody drops it.
        holder.ref_added(oid)
        return counted_ref(oid, holder)

    def __del__(self) -> None:
        # Runs wherever the garbage collector does; the holder only notes it.
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
        made: Future[Any] = backend_of_caller().future(self)
        return made

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()

    def as_future(self) -> Any:
        """Return an asyncio future of the value; an event loop runs."""
        import asyncio  # most processes have no event loop, and do without these 3 MB

        return asyncio.wrap_future(self.future())

    def task_id(self) -> TaskID:
        """Return the ID of the task that makes the object."""
        return TaskID(self._id[:TASK_BYTES])

    def job_id(self) -> JobID:
        """Return the ID of the job whose driver or task asks."""
        return JobID(backend_of_caller().job_number.to_bytes(4, "little"))

    def is_nil(self) -> bool:
        """Whether it refers to nothing: never."""
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
    """Make the reference anew in whatever session deserializes it."""
    holder: RefHolder = backend_of_caller().references
    holder.ref_received(oid, owner)
    return ObjectRef(oid, holder)


def counted_ref(oid: bytes, holder: RefHolder) -> ObjectRef:
    """Return a reference that its holder has counted already, as it makes many."""
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
    """The references of one ``f.map``: a sequence that makes them when asked."""

    __slots__ = ("_array", "_count", "_holder", "_returns")
    _array: bytes
    _count: int
    _holder: RefHolder
    _returns: int

    def __new__(cls, array: bytes, count: int, returns: int, holder: RefHolder) -> ObjectRefArray:
        if count:
            holder.ref_added(object_id(array, 0, 0))
        self = _new(cls)
        self._array = array
        self._count = count
        self._returns = returns
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
        # As its references: whoever gets it does not own the array.
        return list, (list(self),)
