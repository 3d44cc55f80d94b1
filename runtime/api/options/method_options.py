"""An actor's methods: which there are, what ``@method(...)`` and ``.options`` take, their calls."""

from __future__ import annotations

import inspect
from typing import Any

from raytwin.runtime.api.options.checks import integer, text
from raytwin.runtime.api.options.task_options import EVER, asks_nothing, exception_classes, returns
from raytwin.runtime.control.core.ids import RETURNS_MAX
from raytwin.runtime.control.messages import STREAM, TaskExtra

NAMES = ("num_returns", "name", "max_task_retries", "retry_exceptions")

ONLY_RAYS = {
    "concurrency_group": "a class has one max_concurrency for all of its methods",
    "enable_task_events": "there are no task events to turn off",
    "tensor_transport": "values go through the object store",
    "_generator_backpressure_num_objects": "a stream is not held back",
    "_num_objects_per_yield": "a yield makes one object",
}
"""Options of Ray that raytwin does not have, and what to know instead."""


STREAMING = "streaming"
NO_GENERATOR = (
    "num_returns 'streaming' and 'dynamic' are for generator functions, and {} is none: it has to"
    " yield its items"
)


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return options as they may travel; None means that it was not given.

    Raises ValueError for an unknown name or an impossible value, TypeError
    for a value of the wrong type.
    """
    given = {n: v for n, v in given.items() if n not in ONLY_RAYS or not asks_nothing(n, v)}
    for name in given:
        if name in ONLY_RAYS:
            raise ValueError(
                f"raytwin does not have Ray's method option {name!r}: {ONLY_RAYS[name]}"
                " (docs/api.md, Options of an actor)"
            )
        if name not in NAMES:
            raise ValueError(f"raytwin has no method option {name!r}: there are {', '.join(NAMES)}")
    options = {name: value for name, value in given.items() if value is not None}
    if "num_returns" in options:
        options["num_returns"] = _returns(options["num_returns"])
    if "name" in options:
        options["name"] = text("name", options["name"])
    if "max_task_retries" in options:
        name = "max_task_retries"
        options[name] = integer(name, options[name], -1, note=EVER)
    if "retry_exceptions" in options:
        options["retry_exceptions"] = exception_classes(options["retry_exceptions"])
    return options


def _returns(given: Any) -> int | str:
    if not isinstance(given, str):
        return returns(given)
    if given != STREAMING:
        raise ValueError(f"num_returns is 0 to {RETURNS_MAX} or {STREAMING!r}, not {given!r}")
    return STREAMING


def functions_of(cls: type, handle: type) -> dict[str, Any]:
    """Return the functions of a class that can be called by a handle of that class.

    As in Ray special ones are among them, as ``__len__``, if they are the program's own
    and handles have none of that name.
    """
    taken = {name for base in handle.__mro__ for name in vars(base)}
    return {
        name: function
        for name, function in inspect.getmembers(cls, callable)
        if not name.startswith("__")
        or name == "__call__"
        or (name not in taken and hasattr(function, "__code__"))
    }


def of_kind(function: Any) -> dict[str, Any]:
    """Return the options that a method has by its kind."""
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return {"num_returns": STREAMING} if generates else {}


class ActorCall:
    """A call of an actor's method without its arguments, as a handle knows it."""

    __slots__ = (
        "actor", "extra", "hold", "limited", "method", "name", "num_returns", "pending_max",
        "rebuilt", "retries", "retry_exceptions", "returns",
    )  # fmt: skip

    def __init__(
        self,
        actor: bytes,
        hold: bytes,
        method: str,
        name: str,
        num_returns: int | str,
        retries: int,
        rebuilt: bool,
        retry_exceptions: Any = False,
        pending_max: int = 0,
    ) -> None:
        self.actor = actor
        stream = STREAM if num_returns == STREAMING else 0
        self.extra = TaskExtra(call=actor, method=method, stream=stream)
        """The same for every call."""
        self.hold = hold
        """The object that stands for the actor being alive."""
        self.method = method
        self.name = name
        self.num_returns = num_returns
        self.returns = num_returns if isinstance(num_returns, int) else 1
        """How many values the call itself has, besides the items of a stream."""
        self.retries = retries
        self.rebuilt = rebuilt
        """The actor may restart, and then takes the call's inputs once more."""
        self.retry_exceptions = retry_exceptions
        self.pending_max = pending_max
        """How many calls of one caller may be pending; 0: any number."""
        self.limited = bool(pending_max or retry_exceptions)
        """Each call needs a look at the pending ones, or at the errors it is retried for."""
