"""An actor's methods: their names, their options (``@method(...)``, ``.options``), their calls."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from raytwin.runtime.api.options.checks import integer, text
from raytwin.runtime.api.options.task_options import (
    EVER,
    exception_classes,
    options_given,
    returns,
)
from raytwin.runtime.control.core.ids import RETURNS_MAX
from raytwin.runtime.control.messages import STREAM, TaskExtra

NAMES = ("num_returns", "name", "max_task_retries", "retry_exceptions")

STREAMING = "streaming"
NO_GENERATOR = (
    "num_returns 'streaming' and 'dynamic' are for generator functions, and {} is none: it has to"
    " yield its items"
)


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return checked options, ready to be sent; a value of None means the default.

    Raises ValueError for an unknown name or an impossible value, TypeError
    for a value of the wrong type.
    """
    options = options_given("method ", NAMES, given)
    if "num_returns" in options:
        options["num_returns"] = _returns(options["num_returns"])
    if "name" in options:
        options["name"] = text("name", options["name"])
        if not options["name"]:
            del options["name"]
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
    """Return the functions of a class that a `handle` of its actors can call.

    As in Ray, these include special methods such as ``__len__`` that the program has defined,
    unless handles have their own.
    """
    taken = {name for base in handle.__mro__ for name in vars(base)}
    return {
        name: function
        for name, function in inspect.getmembers(cls, callable)
        if not name.startswith("__")
        or name == "__call__"
        or (name not in taken and hasattr(function, "__code__"))
    }


def options_by_kind(function: Any) -> dict[str, Any]:
    """Return the default options of a method: a generator is streaming."""
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return {"num_returns": STREAMING} if generates else {}


@dataclass(slots=True)
class ActorCall:
    """A call of an actor's method without its arguments, which a handle describes."""

    actor: bytes
    hold: bytes
    """The object whose references keep the actor alive."""
    method: str
    name: str
    restartable: bool
    """Whether the actor may restart, and then needs the call's inputs once more."""
    pending_max: int
    """The most pending calls of one caller; 0: any number."""
    max_task_retries: int
    num_returns: int | str = 1
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    extra: TaskExtra = field(init=False)
    """The part of the specification that all calls of the method share."""
    returns: int = field(init=False)
    """The number of values of the call itself, besides the items of a stream."""
    limited: bool = field(init=False)
    """Whether the caller must check the pending calls, or send the errors of retries."""

    def __post_init__(self) -> None:
        stream = STREAM if self.num_returns == STREAMING else 0
        self.extra = TaskExtra(call=self.actor, method=self.method, stream=stream)
        self.returns = self.num_returns if isinstance(self.num_returns, int) else 1
        self.limited = bool(self.pending_max or self.retry_exceptions)
