"""The exceptions that a program may see; names and meaning are Ray's."""

from __future__ import annotations

import inspect
import logging
from contextlib import suppress
from types import BuiltinFunctionType
from typing import Any

from raytwin.runtime.api.modules import missing_names
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, Failure

log = logging.getLogger("raytwin")

__getattr__ = missing_names("exceptions")


class RayError(Exception):
    """Base of all errors that do not come from the calling code itself."""

    failure: Failure | None = None
    """The cause as data, with its object, task or actor, if the control plane found the error."""


class RaySystemError(RayError):
    """The system failed, or the call cannot be served."""


class WorkerCrashedError(RayError):
    """The worker died while it ran the task, more often than retries allow."""


class NodeDiedError(RayError):
    """The node has died on which the call depends."""


class LocalRayletDiedError(RayError):
    """The program's own node died."""


class TaskCancelledError(RayError):
    """The task was cancelled before it was done."""

    task_id: Any = None
    """The ID of the task whose value the program asked for, if known."""

    @property
    def error_message(self) -> str:
        """The text of the error."""
        return str(self)


class TaskUnschedulableError(RayError):
    """The task cannot run anywhere, and never will."""


class TaskPlacementGroupRemoved(RayError):
    """The task's placement group was removed."""


class RuntimeEnvSetupError(RayError):
    """A task's ``runtime_env`` could not be set up."""


class ObjectLostError(RayError):
    """No copy of the object is left."""

    object_ref_hex: str = ""
    """The ID of the object that the program asked for, if known."""
    owner_address: bytes | None = None
    """Always None, as the owner's address is not recorded."""
    call_site: str = ""
    """Always empty, as the place that made the reference is not recorded."""


class ObjectFetchTimedOutError(ObjectLostError):
    """A copy exists, but the node could not fetch it."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The object was lost, and its task cannot reconstruct it."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """The object was released while a reference to it was alive."""


class ObjectFreedError(ObjectLostError):
    """The program has freed the object."""


class OwnerDiedError(ObjectLostError):
    """The object's owner, a driver or worker, has died."""


class ObjectStoreFullError(RayError):
    """The object store has no room for the object."""


class OutOfDiskError(RayError):
    """The disk has no room for an object that the node spills."""


class OutOfMemoryError(RayError):
    """The node had no memory left for the worker."""


class PlasmaObjectNotAvailable(RayError):
    """The object was not in the store in time."""


class ObjectRefStreamEndOfStreamError(RayError):
    """The stream has no item of this number."""


class GetTimeoutError(RayError, TimeoutError):
    """`get` did not have all values in time."""


class PendingCallsLimitExceeded(RayError):
    """The actor already has ``max_pending_calls`` pending calls of this caller."""


class UserCodeException(RayError):
    """User code that the system had called raised."""


class CrossLanguageError(RayError):
    """Code in another language failed."""


class AsyncioActorExit(RayError):
    """The actor ends itself."""


class RayActorError(RayError):
    """The actor cannot serve the call: it died, or is not available for now."""

    actor_id: str | None = None
    """The actor's ID in hexadecimal, if known."""
    preempted = False

    @property
    def error_msg(self) -> str:
        """The text of the error."""
        return str(self)

    @property
    def actor_init_failed(self) -> bool:
        """Whether the actor's constructor raised."""
        death = self.failure
        return isinstance(death, ActorDeath) and death.cause is DeathCause.CONSTRUCTOR_RAISED


class ActorDiedError(RayActorError):
    """The actor died, and will not come back."""


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached; the call may or may not have been served."""


class ActorUnschedulableError(RayError):
    """The actor cannot be created anywhere, and never will."""


class ActorPlacementGroupRemoved(RayError):
    """The actor's placement group was removed."""


class ActorAlreadyExistsError(ValueError, RayError):
    """Another actor has the name."""


class ActorHandleNotFoundError(ValueError, RayError):
    """No actor of this cluster has the handle's ID."""


class UnserializableException(RayError):
    """A task's exception could not be loaded here; its traceback is the text."""


class OufOfBandObjectRefSerializationException(RayError):
    """The program pickled a reference where Ray does not count it; raytwin pins it instead."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """A generator that ran again has yielded a different number of items."""


class RayDirectTransportError(RaySystemError):
    """A transfer between GPUs failed."""


class RayChannelError(RaySystemError):
    """A channel of a compiled graph failed."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """A channel of a compiled graph did not answer in time."""


class RayCgraphCapacityExceeded(RaySystemError):
    """A compiled graph has reached its limit of pending calls."""


class RpcError(RayError):
    """Two processes of the cluster could not communicate."""


class AuthenticationError(RayError):
    """A process could not prove that it belongs to the cluster."""


class RayTaskError(RayError):
    """A task raised; the exception is also an instance of the cause's class.

    `cause` is the original exception, or a plain RayError if it could not be serialized;
    `traceback_str` is the remote traceback.
    """

    def __init__(self, function_name: str, traceback_str: str, cause: Any = None) -> None:
        # Not super(): in the classes of `make_task_error` that is the cause's class,
        # whose constructor takes other arguments.
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


_DUAL_CLASSES: dict[type, type] = {}


def make_task_error(function_name: str, traceback_str: str, cause: Any) -> RayTaskError:
    """Return a `RayTaskError` that can be caught as the cause's class too."""
    root = cause.cause if isinstance(cause, RayTaskError) else cause
    cls = type(root)
    if root is None or issubclass(RayTaskError, cls):
        return RayTaskError(function_name, traceback_str, root)
    dual = _DUAL_CLASSES.get(cls)
    if dual is None:
        try:
            dual = type(
                f"RayTaskError({cls.__name__})",
                (RayTaskError, cls),
                {
                    "__init__": RayTaskError.__init__,
                    "__new__": _bare,
                    "__module__": __name__,
                },
            )
            dual(function_name, traceback_str, root)
        except Exception as why:
            # The cause's class cannot be a base: it is final, or its layout conflicts.
            log.warning("%s is raised as a plain RayTaskError: %s", cls.__qualname__, why)
            dual = RayTaskError
        _DUAL_CLASSES[cls] = dual
    error = dual(function_name, traceback_str, root)
    if type(error) is not RayTaskError:
        # As in Ray. By the descriptor, since the class may have a property of this name.
        BaseException.args.__set__(error, (root,))  # type: ignore[attr-defined]
    for name, value in getattr(root, "__dict__", {}).items():
        error.__dict__.setdefault(name, value)
    if dual is not RayTaskError:
        _copy_builtin_attributes(root, error)
    assert isinstance(error, RayTaskError)
    return error


def _bare(dual: type, function_name: str, traceback_str: str, root: BaseException) -> Any:
    """Return an instance with no attribute set; the ``__new__`` of the dual classes.

    It calls the built-in ``__new__``: the cause's own may take arguments that are unknown
    here, and its attributes are copied from the cause anyway.
    """
    natives = (vars(cls).get("__new__") for cls in type(root).__mro__)
    native = next(found for found in natives if isinstance(found, BuiltinFunctionType))
    if isinstance(root, BaseExceptionGroup):
        return native(dual, root.message, root.exceptions)
    return native(dual)


def _copy_builtin_attributes(source: BaseException, target: BaseException) -> None:
    """Copy attributes that built-in exceptions have outside of ``__dict__``, such as ``errno``."""
    for cls in type(source).__mro__:
        for name, member in vars(cls).items():
            of_c = inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member)
            if of_c and name != "args" and not name.startswith("_"):
                value = getattr(source, name, None)
                if value is not None:
                    # Some attributes are read-only; `cause` has their values too.
                    with suppress(AttributeError, TypeError):
                        setattr(target, name, value)
