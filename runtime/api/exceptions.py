"""The exceptions that a program may see; names and meaning are Ray's."""

from __future__ import annotations

import inspect
import logging
from contextlib import suppress
from types import BuiltinFunctionType
from typing import Any

from raytwin.runtime.api.modules import refuser
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, Failure

log = logging.getLogger("raytwin")

__getattr__ = refuser("exceptions")


class RayError(Exception):
    """Base of all errors that do not come from the calling code itself."""

    failure: Failure | None = None
    """The cause and its object, task or actor as data, if the control plane found the error."""


class RaySystemError(RayError):
    """The system failed, or the call cannot be served."""


class WorkerCrashedError(RayError):
    """The worker died while it ran the task, more often than retries allow."""


class NodeDiedError(RayError):
    """The node died that the call depends on."""


class LocalRayletDiedError(RayError):
    """The program's own node died."""


class TaskCancelledError(RayError):
    """The task was cancelled before it was done."""

    task_id: Any = None
    """The ID of the task whose value was asked for, where it is known."""

    @property
    def error_message(self) -> str:
        """What the error says."""
        return str(self)


class TaskUnschedulableError(RayError):
    """The task cannot run anywhere, and never will."""


class TaskPlacementGroupRemoved(RayError):
    """The placement group was removed that the task was to run in."""


class RuntimeEnvSetupError(RayError):
    """A task's ``runtime_env`` could not be set up."""


class ObjectLostError(RayError):
    """No copy of the object is left."""

    object_ref_hex: str = ""
    """The ID of the object that was asked for, where it is known."""
    owner_address: bytes | None = None
    """Never known."""
    call_site: str = ""
    """Where its reference was made: never recorded."""


class ObjectFetchTimedOutError(ObjectLostError):
    """A copy exists, and could not be brought here."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The object was lost, and its task cannot make it again."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """The object was released while a reference to it was alive."""


class ObjectFreedError(ObjectLostError):
    """The object was released on request."""


class OwnerDiedError(ObjectLostError):
    """The driver or worker died that owned the object."""


class ObjectStoreFullError(RayError):
    """The object store has no room for the object."""


class OutOfDiskError(RayError):
    """The disk has no room for an object that was to move there."""


class OutOfMemoryError(RayError):
    """The node had no memory left for the worker."""


class PlasmaObjectNotAvailable(RayError):
    """The object was not in the store in time."""


class ObjectRefStreamEndOfStreamError(RayError):
    """The stream has no item of this number."""


class GetTimeoutError(RayError, TimeoutError):
    """`get` did not have all values in time."""


class PendingCallsLimitExceeded(RayError):
    """The actor has as many calls pending as it may have."""


class UserCodeException(RayError):
    """Code of the program raised where the system had called it."""


class CrossLanguageError(RayError):
    """Code in another language failed."""


class AsyncioActorExit(RayError):
    """The actor leaves on its own account."""


class RayActorError(RayError):
    """The actor cannot serve the call: it died, or is not there for now."""

    actor_id: str | None = None
    """The actor's ID in hexadecimal, where it is known."""
    preempted = False

    @property
    def error_msg(self) -> str:
        """What the error says."""
        return str(self)

    @property
    def actor_init_failed(self) -> bool:
        """Whether its constructor raised."""
        death = self.failure
        return isinstance(death, ActorDeath) and death.cause is DeathCause.CONSTRUCTOR_RAISED


class ActorDiedError(RayActorError):
    """The actor died, and will not come back."""


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached; the call may or may not have been served."""


class ActorUnschedulableError(RayError):
    """The actor cannot be created anywhere, and never will."""


class ActorPlacementGroupRemoved(RayError):
    """The placement group was removed that the actor was to live in."""


class ActorAlreadyExistsError(ValueError, RayError):
    """Another actor has the name."""


class ActorHandleNotFoundError(ValueError, RayError):
    """No actor of this cluster has the handle's ID."""


class UnserializableException(RayError):
    """A task's exception could not be loaded here; its traceback is the text."""


class OufOfBandObjectRefSerializationException(RayError):
    """A reference was pickled where it is not counted; raytwin pins it instead."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """A generator that ran again has yielded another number of items."""


class RayDirectTransportError(RaySystemError):
    """A transfer between GPUs failed."""


class RayChannelError(RaySystemError):
    """A channel of a compiled graph failed."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """A channel of a compiled graph did not answer in time."""


class RayCgraphCapacityExceeded(RaySystemError):
    """A compiled graph has as many calls pending as it may have."""


class RpcError(RayError):
    """Two processes of the cluster could not speak to each other."""


class AuthenticationError(RayError):
    """A process could not prove that it belongs to the cluster."""


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

    def as_instanceof_cause(self) -> RayTaskError:
        """Return an error like this that is an instance of the cause's class too."""
        return make_task_error(self.function_name, self.traceback_str, self.cause)

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
                {"__init__": RayTaskError.__init__, "__new__": _unmade, "__module__": __name__},
            )
            dual(function_name, traceback_str, root)
        except Exception as why:
            # The class cannot be a base: it is final, or its layout conflicts.
            log.warning("%s is raised as a plain RayTaskError: %s", cls.__qualname__, why)
            dual = RayTaskError
        _DUAL[cls] = dual
    error = dual(function_name, traceback_str, root)
    if type(error) is not RayTaskError:
        # As Ray's; the class may have a property of this name.
        BaseException.args.__set__(error, (root,))  # type: ignore[attr-defined]
    for name, value in getattr(root, "__dict__", {}).items():
        error.__dict__.setdefault(name, value)
    if dual is not RayTaskError:
        _copy_members(root, error)
    assert isinstance(error, RayTaskError)
    return error


def _unmade(dual: type, function_name: str, traceback_str: str, root: BaseException) -> Any:
    """Return an instance of which nothing but its class is set.

    As the ``__new__`` of these classes: the cause's own may want arguments that nobody
    has here, and what it sets is copied from the cause. The built-in one is called.
    """
    natives = (vars(cls).get("__new__") for cls in type(root).__mro__)
    native = next(found for found in natives if isinstance(found, BuiltinFunctionType))
    if isinstance(root, BaseExceptionGroup):
        return native(dual, root.message, root.exceptions)
    return native(dual)


def _copy_members(source: BaseException, target: BaseException) -> None:
    """Copy what built-in exceptions keep outside of their ``__dict__``, as ``errno``."""
    for cls in type(source).__mro__:
        for name, member in vars(cls).items():
            of_c = inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member)
            if of_c and name != "args" and not name.startswith("_"):
                value = getattr(source, name, None)
                if value is not None:
                    # Some cannot be set; `cause` has their values too.
                    with suppress(AttributeError, TypeError):
                        setattr(target, name, value)
