"""The task API, the paper's table 1: remote functions, `get`, `put`, `wait` and `cancel`.

Further calls mean the same in real and in virtual time: `now`, `sleep`, `compute` and `Blob`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from raytwin.runtime.api.actors import ActorClass
from raytwin.runtime.api.arguments import Parameters
from raytwin.runtime.api.backend import (
    Backend,
    ObjectRef,
    ObjectRefArray,
    any_closed,
    connected,
    current,
)
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.modules import explains_missing_attributes, missing_names
from raytwin.runtime.api.options.actor_options import NAMES as ACTOR_NAMES
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.options.checks import name_of, short_name
from raytwin.runtime.api.options.method_options import NO_GENERATOR
from raytwin.runtime.api.options.task_options import NAMES as TASK_NAMES
from raytwin.runtime.api.options.task_options import TaskOptions
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.messages import STREAM

_DEFAULT = TaskOptions()
_JUST_REFS = {ObjectRef}
__getattr__ = missing_names("remote_function")


@explains_missing_attributes("RemoteFunction")
class RemoteFunction:
    """A function whose calls are tasks: ``f.remote(x)`` instead of ``f(x)``."""

    def __init__(self, function: Callable[..., Any], options: TaskOptions = _DEFAULT) -> None:
        self.function = function
        self.task_options = options
        self.function_name = name_of(function)
        self.task_name = short_name(self.function_name)
        self._parameters = Parameters(function)
        self.stream = STREAM if inspect.isgeneratorfunction(function) else 0
        """Whether calls without ``num_returns`` return a stream: `STREAM`, or 0."""
        self._streams_nothing = _streams_nothing(function, options)
        """Whether the options ask for a stream, but the function is no generator."""
        self.exported: tuple[bytes, object, bytes, bytes] | None = None
        """(job, scope of function IDs, ID, serialized form), set by the session that exports it."""
        functools.update_wrapper(self, function)

    @property
    def source(self) -> tuple[Any, str]:
        """The plain function, which a session exports, and its name in errors."""
        return self.function, f"{self.function_name}()"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"a remote function is not called directly: use {self.function_name}.remote()"
        )

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a task; return its `ObjectRef`.

        Returns a list of them for ``num_returns`` > 1, None for 0; an `ObjectRefGenerator`
        for a generator function. The task gets the value of an `ObjectRef` among
        the arguments. Raises TypeError for arguments that the function does not take,
        ValueError for a streaming ``num_returns`` of a function that is no generator.
        """
        if self._streams_nothing:
            raise ValueError(NO_GENERATOR.format(self.function_name))
        parameters = self._parameters
        if kwargs or not parameters.least <= len(args) <= parameters.most:
            parameters.check(self.function_name, args, kwargs)
        refs = current().submit(self, args, kwargs, self.task_options)
        if isinstance(refs, ObjectRefGenerator):
            return refs
        return refs[0] if len(refs) == 1 else refs or None

    def map(self, *iterables: Iterable[Any]) -> ObjectRefArray:
        """Submit ``f(x)`` for every x, as one task array.

        Several iterables are zipped, as by the built-in `map`. A `range` is sent as a
        range, whatever its length. Returns a sequence of `ObjectRef`s that `get` takes
        as a whole; raises ValueError if ``num_returns`` is not 1.
        """
        if self.task_options.num_returns != 1:
            raise ValueError("a task array has one return value per task")
        if not iterables:
            raise TypeError("map needs at least one iterable")
        star = len(iterables) > 1
        items: Sequence[Any]
        if star:
            items = list(zip(*iterables, strict=False))
        else:
            only = iterables[0]
            items = only if isinstance(only, (range, list, tuple)) else list(only)
        return current().map(self, items, star, self.task_options)

    def options(self, **given: Any) -> RemoteFunction:
        """Return the same function with other options; see `TaskOptions`."""
        changed = RemoteFunction.__new__(RemoteFunction)
        # Only the options differ; the function's parameters are the same.
        vars(changed).update(vars(self))
        changed.task_options = self.task_options.changed(given)
        changed._streams_nothing = _streams_nothing(self.function, changed.task_options)
        return changed

    def __reduce__(self) -> Any:
        return RemoteFunction, (self.function, self.task_options)

    def __repr__(self) -> str:
        return f"RemoteFunction({self.function_name})"


def _streams_nothing(function: Any, options: TaskOptions) -> bool:
    """Whether the options ask for a stream, but neither a function nor the ``__call__`` of an
    object is a generator function."""
    if options.stream <= 0:
        return False
    called = vars(type(function)).get("__call__")
    return not (inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called))


@overload
def remote(function: type, /) -> ActorClass: ...  # type: ignore[overload-overlap]
@overload
def remote(function: Callable[..., Any], /) -> RemoteFunction: ...
@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function remote, or a class an actor class: ``@remote``, ``@remote(num_cpus=2)``.

    Raises TypeError for any other object and ValueError for unknown options.
    """
    if bool(args) == bool(options):
        raise TypeError("use @remote or @remote(option=value), not both at once and not @remote()")
    if len(args) > 1:
        raise TypeError("@remote takes one function or class")
    if args:
        return _make(args[0], {})
    _check_names(options)
    return lambda target: _make(target, options)


def _check_names(options: dict[str, Any]) -> None:
    """Raise early for options that neither a function nor a class can have."""
    of_actors = all(name in ACTOR_NAMES for name in options)
    if of_actors and not all(name in TASK_NAMES for name in options):
        ActorOptions().changed(options)
    else:
        _DEFAULT.changed(options)


def _make(target: Any, options: dict[str, Any]) -> RemoteFunction | ActorClass:
    if isinstance(target, type):
        return ActorClass(target, ActorOptions().changed(options) if options else ActorOptions())
    if isinstance(target, (RemoteFunction, ActorClass)) or not callable(target):
        raise TypeError(f"@remote takes a function or a class, not {target!r}")
    if inspect.iscoroutinefunction(target):
        raise ValueError(
            "an async function cannot be a task: let a plain one call asyncio.run(f())"
        )
    return RemoteFunction(target, _DEFAULT.changed(options) if options else _DEFAULT)


def get(object_refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Return the value of a reference, or the list of values of several.

    Waits until all are there or one is an error, at most ``timeout`` seconds. Raises
    the task's own exception (as a `RayTaskError` that also is of its class),
    GetTimeoutError, ObjectLostError or WorkerCrashedError; ValueError for an object that
    is neither a reference nor a list, TypeError for a list of other objects.
    Arrays are read-only and share the store's memory. As in Ray, `get` returns a stream
    unchanged, and a ``timeout`` of -1 means None; ValueError for another negative one.
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

    Both lists keep the order given; the first has at most ``num_returns`` references.
    Returns those that are ready after ``timeout`` seconds. With ``fetch_local`` a
    reference is ready once its value is on this node. An `ObjectRefGenerator`
    is ready when `next` would not wait. Raises ValueError
    for a repeated reference, an impossible ``num_returns`` or a negative timeout,
    TypeError for anything but a list of references.
    """
    if type(ray_waitables) is list and (timeout is None or timeout >= 0):
        # The list that the last call has returned needs no second check.
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
    """Cancel the task that makes an object; `get` of the object raises TaskCancelledError.

    A task that has not started never runs. In a running task KeyboardInterrupt is
    raised, which the task may handle; with ``force`` its worker is killed, and all
    tasks of that worker end. With ``recursive`` the task's children are cancelled too.
    A finished task keeps its result. Raises TypeError for anything but a reference.
    """
    ref = ray_waitable
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel takes an ObjectRef, not {type(ref).__name__}")
    _backend_of([ref]).cancel(ref, bool(force), bool(recursive))


def _checked(refs: Any, what: str, error: type[Exception]) -> list[Any]:
    """Return a list of references, for `wait` also of streams; raise for other items."""
    if not isinstance(refs, (list, ObjectRefArray)):
        raise error(f"{what} takes an ObjectRef or a list of them, not {type(refs).__name__}")
    kinds = ObjectRef if what == "get" else (ObjectRef, ObjectRefGenerator)
    if not set(map(type, refs)) <= _JUST_REFS:
        for ref in refs:
            if not isinstance(ref, kinds):
                raise TypeError(f"{what} takes ObjectRefs, not {type(ref).__name__}")
    return list(refs)


def _backend_of(refs: Sequence[ObjectRef | ObjectRefArray]) -> Backend:
    """Return the backend; raise, and start none, if a reference's cluster is gone."""
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
    """Use one CPU for ``seconds`` of CPU time."""
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
