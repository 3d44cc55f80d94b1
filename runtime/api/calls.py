"""get, put and wait; and the calls that mean the same in real and virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raytwin.runtime.api.backend import (
    Backend,
    ObjectRef,
    ObjectRefArray,
    any_closed,
    connected,
    current,
)
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.streams import ObjectRefGenerator

_JUST_REFS = {ObjectRef}


def get(object_refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Return the value of a reference, or the list of values of several.

    Waits until all are there or one is an error, at most ``timeout`` seconds. Raises
    the task's own exception (as a `RayTaskError` that also is of its class),
    GetTimeoutError, ObjectLostError or WorkerCrashedError; ValueError for what
    is neither a reference nor a list, TypeError for a list of anything else.
    Arrays are read-only and share the store's memory. As in Ray, a stream is returned
    as it is, and a ``timeout`` of -1 is none; ValueError for another negative one.
    """
    if timeout is not None and timeout < 0:
        if timeout != -1:
            raise ValueError(f"a timeout is not negative, but {timeout}")
        timeout = None
    if isinstance(object_refs, ObjectRef):
        one = [object_refs]
        return _backend_of(one).get(one, timeout)[0]
    if isinstance(object_refs, ObjectRefArray):
        return _backend_of([object_refs]).get_array(object_refs, timeout)
    if isinstance(object_refs, ObjectRefGenerator):
        return object_refs
    checked = _checked(object_refs, "get", ValueError)
    return _backend_of(checked).get(checked, timeout) if checked else []


def put(value: Any) -> ObjectRef:
    """Store a value; return a reference to it. Raises ObjectStoreFullError."""
    if isinstance(value, ObjectRef):
        raise TypeError("put takes a value, not an ObjectRef")
    return current().put(value)


def wait(
    ray_waitables: Sequence[ObjectRef | ObjectRefGenerator],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Return (ready, not ready) as soon as ``num_returns`` are ready.

    Both lists keep the order given; at most ``num_returns`` are in the first.
    After ``timeout`` seconds whatever is ready is returned. ``fetch_local``:
    ready means that the value has been brought to this node. An `ObjectRefGenerator`
    is ready when `next` would not wait. Raises ValueError
    for a repeating list, an impossible ``num_returns`` or a negative timeout,
    TypeError for what is not a list of references.
    """
    if type(ray_waitables) is list and (timeout is None or timeout >= 0):
        # The list that the call before has returned needs no second check.
        backend = connected()
        if backend is not None:
            again = backend.wait_again(ray_waitables, num_returns, timeout, fetch_local)
            if again is not None:
                return again
    if isinstance(ray_waitables, ObjectRef):
        raise TypeError("wait takes a list of ObjectRefs, not a single one")
    checked = _checked(ray_waitables, "wait", TypeError)
    if timeout is not None and timeout < 0:
        raise ValueError(f"a timeout is not negative, but {timeout}")
    if not checked:
        return [], []
    if len(set(checked)) != len(checked):
        raise ValueError("wait needs ObjectRefs that differ")
    if not 1 <= num_returns <= len(checked):
        raise ValueError(f"num_returns is 1 to {len(checked)}, not {num_returns}")
    refs = [w for w in checked if isinstance(w, ObjectRef)]
    return _backend_of(refs).wait(checked, num_returns, timeout, fetch_local)


def cancel(
    ray_waitable: ObjectRef | ObjectRefGenerator, *, force: bool = False, recursive: bool = True
) -> None:
    """Take back the task that makes an object; its `get` raises TaskCancelledError.

    A task that has not started never runs. In one that runs KeyboardInterrupt is
    raised, and what it makes of that is its result; with ``force`` its worker is
    killed. With ``recursive`` the tasks that it has submitted are cancelled too.
    A task that is done stays as it is. Raises TypeError for what is not a
    reference.
    """
    ref = ray_waitable
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel takes an ObjectRef, not {type(ref).__name__}")
    _backend_of([ref]).cancel(ref, bool(force), bool(recursive))


def _checked(refs: Any, what: str, error: type[Exception]) -> list[Any]:
    """Return the references, and for `wait` also the streams, of a list of nothing else."""
    if not isinstance(refs, (list, ObjectRefArray)):
        raise error(f"{what} takes an ObjectRef or a list of them, not {type(refs).__name__}")
    kinds = ObjectRef if what == "get" else (ObjectRef, ObjectRefGenerator)
    if not set(map(type, refs)) <= _JUST_REFS:
        for ref in refs:
            if not isinstance(ref, kinds):
                raise TypeError(f"{what} takes ObjectRefs, not {type(ref).__name__}")
    return list(refs)


def _backend_of(refs: Sequence[ObjectRef | ObjectRefArray]) -> Backend:
    """Return the backend; a reference of one that is gone does not start another."""
    if any_closed(refs):
        raise RaySystemError("the cluster of this reference is gone")
    return current()


def now() -> float:
    """Return the time in seconds: the machine's steady clock, or virtual time."""
    return current().now()


def sleep(seconds: float) -> None:
    """Let time pass without using a CPU; in virtual time no real time passes."""
    current().sleep(_duration(seconds))


def compute(seconds: float) -> None:
    """Use one CPU for so many seconds of CPU time."""
    current().compute(_duration(seconds))


def Blob(nbytes: int) -> Any:
    """Return a value of ``nbytes`` bytes: real ones, or virtual ones on `sim`."""
    if nbytes < 0:
        raise ValueError(f"a blob of {nbytes} bytes")
    return current().blob(nbytes)


def _duration(seconds: float) -> float:
    if not seconds >= 0:
        raise ValueError(f"a duration of {seconds} seconds")
    return float(seconds)
