"""Functions that run as tasks: what ``@remote`` makes of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from raytwin.runtime.api.actors import ActorClass
from raytwin.runtime.api.arguments import Parameters
from raytwin.runtime.api.backend import ObjectRef, ObjectRefArray, current
from raytwin.runtime.api.modules import refuser, says_what_is_missing
from raytwin.runtime.api.options.actor_options import NAMES as ACTOR_NAMES
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.options.checks import name_of
from raytwin.runtime.api.options.method_options import NO_GENERATOR
from raytwin.runtime.api.options.task_options import TaskOptions
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.messages import STREAM

_DEFAULT = TaskOptions()
__getattr__ = refuser("remote_function")


@says_what_is_missing("RemoteFunction")
class RemoteFunction:
    """A function whose calls are tasks: ``f.remote(x)`` instead of ``f(x)``."""

    def __init__(self, function: Callable[..., Any], options: TaskOptions = _DEFAULT) -> None:
        self.function = function
        self.task_options = options
        self.function_name = name_of(function)
        self._parameters = Parameters(function)
        self.stream = STREAM if inspect.isgeneratorfunction(function) else 0
        """What its calls return where ``num_returns`` does not say."""
        self._streams_nothing = options.stream > 0 and not _generates(function)
        """Its calls ask for a stream, and it makes none."""
        self.exported: tuple[bytes, object, bytes, bytes] | None = None
        """(job, whose functions, ID, serialized form), made by the first session that needs it."""
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

        A list of them for ``num_returns`` > 1, None for 0; an `ObjectRefGenerator`
        of a generator function's. An `ObjectRef` among
        the arguments is replaced by its value before the task starts. Raises
        TypeError for arguments that the function does not take, ValueError if it is
        no generator function and ``num_returns`` says that it is.
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

        Several iterables are zipped, as `map` does. A `range` stays a range
        however long it is. Returns a sequence of `ObjectRef`s that `get` takes
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
        changed = RemoteFunction(self.function, self.task_options.changed(given))
        changed.exported = self.exported
        return changed

    def __reduce__(self) -> Any:
        return RemoteFunction, (self.function, self.task_options)

    def __repr__(self) -> str:
        return f"RemoteFunction({self.function_name})"


def _generates(function: Any) -> bool:
    """Whether a function is a generator function, or a callable object has one."""
    called = vars(type(function)).get("__call__")
    return inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called)


@overload
def remote(function: type, /) -> ActorClass: ...  # type: ignore[overload-overlap]
@overload
def remote(function: Callable[..., Any], /) -> RemoteFunction: ...
@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function remote, or actors of a class: ``@remote``, ``@remote(num_cpus=2)``.

    Raises TypeError for what is neither and ValueError for unknown options.
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
    """Raise now for options that neither a function nor a class can have."""
    try:
        _DEFAULT.changed(options)
    except (TypeError, ValueError):
        if not all(name in ACTOR_NAMES for name in options):
            raise
        ActorOptions().changed(options)


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


__all__ = ["ObjectRef", "RemoteFunction", "remote"]
