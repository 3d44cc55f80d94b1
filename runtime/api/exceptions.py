"""The exceptions that a program may see; names and meaning are Ray's."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any


class RayError(Exception):
    """Base of all errors that do not come from the calling code itself."""


class RaySystemError(RayError):
    """The system failed, or the call cannot be served."""


class WorkerCrashedError(RayError):
    """The worker died while it ran the task, more often than retries allow."""


class NodeDiedError(RayError):
    """The node died that the call depends on."""


class RayActorError(RayError):
    """The call could not be made, or not be answered, for the actor's sake."""


class ActorDiedError(RayActorError):
    """The actor is dead and will not start again."""


class ActorUnavailableError(RayActorError):
    """The actor started anew, and the call has no retries left."""


class ObjectLostError(RayError):
    """No copy of the object is left."""


class ObjectStoreFullError(RayError):
    """The object store has no room for the object."""


class GetTimeoutError(RayError, TimeoutError):
    """`get` did not have all values in time."""


class RayTaskError(RayError):
    """A task raised; the exception also is an instance of the cause's class.

    `cause` is the original exception (None if it could not be serialized),
    `traceback_str` the remote traceback.
    """

    def __init__(self, function_name: str, traceback_str: str, cause: Any = None) -> None:
        # Not super(): in `make_task_error`'s classes that is the cause's class,
        # whose constructor wants other arguments.
        Exception.__init__(self, function_name, traceback_str, cause)
        self.function_name = function_name
        self.traceback_str = traceback_str
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.function_name}() raised\n{self.traceback_str}"

    def __reduce__(self) -> Any:
        return make_task_error, (self.function_name, self.traceback_str, self.cause)


_DUAL: dict[type, type] = {}


def make_task_error(function_name: str, traceback_str: str, cause: Any) -> RayTaskError:
    """Return a `RayTaskError` that can be caught as the cause's class too."""
    root = cause.cause if isinstance(cause, RayTaskError) else cause
    if root is None:
        return RayTaskError(function_name, traceback_str, cause)
    cls = type(root)
    dual = _DUAL.get(cls)
    if dual is None:
        try:
            dual = type(
                f"RayTaskError({cls.__name__})",
                (RayTaskError, cls),
                {"__init__": RayTaskError.__init__, "__module__": __name__},
            )
        except TypeError:
            # The class cannot be a base (it is final, or its layout conflicts).
            dual = RayTaskError
        _DUAL[cls] = dual
    try:
        error = dual(function_name, traceback_str, root)
    except TypeError:
        # Its __new__ wants arguments of its own.
        error = RayTaskError(function_name, traceback_str, root)
    for name, value in getattr(root, "__dict__", {}).items():
        error.__dict__.setdefault(name, value)
    if dual is not RayTaskError:
        _copy_members(root, error)
    assert isinstance(error, RayTaskError)
    return error


def _copy_members(source: BaseException, target: BaseException) -> None:
    """Copy what built-in exceptions keep outside of their ``__dict__``, as ``errno``."""
    for cls in type(source).__mro__:
        for name, member in vars(cls).items():
            of_c = inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member)
            if of_c and name != "args" and not name.startswith("_"):
                value = getattr(source, name, None)
                if value is not None:
                    # Some cannot be set; what they tell is in `cause` too.
                    with suppress(AttributeError, TypeError):
                        setattr(target, name, value)


SYSTEM_ERRORS: dict[str, type[RayError]] = {
    cls.__name__: cls
    for cls in (
        RaySystemError,
        WorkerCrashedError,
        NodeDiedError,
        RayActorError,
        ActorDiedError,
        ActorUnavailableError,
        ObjectLostError,
        ObjectStoreFullError,
    )
}


def system_error(payload: bytes) -> RayError:
    """Return the exception that a SYSTEM_ERROR payload stands for."""
    name, _, text = payload.decode().partition(": ")
    return SYSTEM_ERRORS.get(name, RaySystemError)(text)
