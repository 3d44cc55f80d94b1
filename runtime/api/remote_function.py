"""Functions that run as tasks: what ``@remote`` makes of a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from runtime.api.options import TaskOptions
from runtime.api.refs import ObjectRef, ObjectRefArray
from runtime.api.state import current

_DEFAULT = TaskOptions()


class RemoteFunction:
    """A function whose calls are tasks: ``f.remote(x)`` instead of ``f(x)``."""

    def __init__(self, function: Callable[..., Any], options: TaskOptions = _DEFAULT) -> None:
        self.function = function
        self.task_options = options
        self.function_name = getattr(function, "__qualname__", repr(function))
        self.exported: tuple[bytes, bytes] | None = None
        """(ID, serialized form), made by the first session that needs it."""
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"a remote function is not called directly: use {self.function_name}.remote()"
        )

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a task; return its `ObjectRef`.

        A list of them for ``num_returns`` > 1, None for 0. An `ObjectRef` among
        the arguments is replaced by its value before the task starts.
        """
        refs = current().submit(self, args, kwargs, self.task_options)
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


@overload
def remote(function: Callable[..., Any], /) -> RemoteFunction: ...
@overload
def remote(**options: Any) -> Callable[[Callable[..., Any]], RemoteFunction]: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function remote: ``@remote`` or ``@remote(num_cpus=2, ...)``.

    Raises TypeError for what is not a function (actors are not there yet) and
    ValueError for unknown options.
    """
    if args and options:
        raise TypeError("use @remote or @remote(option=value), not both at once")
    if len(args) > 1:
        raise TypeError("@remote takes one function")
    if args:
        return _make(args[0], _DEFAULT)
    checked = _DEFAULT.changed(options)
    return lambda function: _make(function, checked)


def _make(function: Any, options: TaskOptions) -> RemoteFunction:
    if isinstance(function, type):
        raise TypeError("raytwin has no actors yet: @remote takes functions, not classes")
    if isinstance(function, RemoteFunction) or not callable(function):
        raise TypeError(f"@remote takes a function, not {function!r}")
    return RemoteFunction(function, options)


__all__ = ["ObjectRef", "RemoteFunction", "remote"]
