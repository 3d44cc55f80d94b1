"""Failures of the system, as data: the cause, the task or object that failed, and the first cause.

One of these, packed, is the payload of every result or object of status SYSTEM_ERROR.
Messages about lost objects and dead actors contain them unpacked::

    GCS or node ──> Loss(NODE_DIED, node=1) ──> refusal: refusal=NO_RETRIES, task="f"
                                                        │ packed, in messages
    a program's `get` <── ObjectLostError and its text <── raytwin.runtime.api.failures

The control plane compares causes and makes no text: the API makes the text of an error. A
``detail`` is text from the world or a program (an exit code, a traceback); it is only shown,
and never parsed.

Enums are numbers in messages: no member's number ever changes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from msgspec import Struct, msgpack


class LossCause(IntEnum):
    """Why no copy of an object is left."""

    NODE_DIED = 1
    """The only copy was on `Loss.node`, which died."""
    COPY_MISSING = 2
    """The only copy was on `Loss.node`, which does not have it any more."""
    UNREPORTED = 3
    """The only copy was on a node that died before it had reported it to the GCS."""
    MAKER_DIED = 4
    """The node that ran its task, for the first time or again, died."""
    OWNER_DIED = 5
    RELEASED = 6
    """The owner has died or released it; the GCS cannot distinguish which."""
    FREED = 7
    """The owner has released it. It was not lost by a fault, so its task may run again."""
    JOB_ENDED = 8
    EARLIER_RUN = 9
    """A call made it for an earlier run of its caller, which has released it."""
    FORGOTTEN = 10
    """Its call took effect for an earlier run of its caller, and later calls have displaced the
    result from the bounded reply cache."""


class Refusal(IntEnum):
    """Why the GCS refuses to reconstruct a lost object."""

    PUT = 1
    """A client put it: no task makes it."""
    ACTOR_WENT_ON = 2
    """An actor's call made it, and the actor's state has changed since."""
    NO_RECORD = 3
    """The GCS has dropped the record of its task."""
    NO_RETRIES = 4
    """Its task has no retries left."""
    INPUT_LOST = 5
    """Its task needs an input that is lost: `Loss.root`."""
    NOT_YIELDED = 6
    """Its task has run again without yielding it; `Loss.root`: the error of that run, if any."""


class Loss(Struct, array_like=True, frozen=True, tag=1, gc=False):
    """An object, or a task's result, is lost."""

    cause: LossCause
    node: int = -1
    detail: str = ""
    refusal: Refusal | None = None
    """None: no component has tried to reconstruct it."""
    task: str = ""
    """The name of the task that makes it, if known."""
    root: Failure | None = None
    object: bytes = b""
    """Empty: every object of the result with this error."""


class Cancellation(Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A task or call was cancelled.

    =========================== ==================================================
    not begun                   TaskCancelledError
    begun and ``interrupted``   RayTaskError(TaskCancelledError), as for any error
                                that the task raises
    begun, and run to its end   TaskCancelledError; it may have had effects
    =========================== ==================================================
    """

    task: str
    begun: bool = False
    interrupted: bool = False


class WorkerCrash(Struct, array_like=True, frozen=True, tag=3, gc=False):
    """A worker died while it ran a task that has no retries left."""

    task: str
    worker: str = ""
    """Its address; empty: its whole node died."""
    detail: str = ""


class DeathCause(IntEnum):
    """Why an actor is dead, or restarts."""

    CONSTRUCTOR_RAISED = 1
    """``detail``: the traceback."""
    ARGUMENT_RAISED = 2
    """An argument of its constructor is a task's error."""
    WORKER_DIED = 3
    NODE_DIED = 4
    KILLED = 5
    """By `kill`."""
    EXITED = 6
    """By `exit_actor`."""
    TERMINATED = 7
    """By its own ``__ray_terminate__``."""
    RESTORE_RAISED = 8
    """``detail``: the traceback."""
    NO_OWNER = 9
    """No handle of it is left, or its owner has died."""
    OWNERS_NODE_DIED = 10
    JOB_ENDED = 11
    REPLAY_INPUT_FAILED = 13
    """An input of a call that was to be replayed failed, with ``root``, or with the error of a
    task if ``root`` is None."""
    REPLAY_DIVERGED = 14
    """The call named in ``detail`` raised when it was replayed, but not when it ran first."""


class ActorDeath(Struct, array_like=True, frozen=True, tag=4, gc=False):
    """An actor is dead, or restarts."""

    cause: DeathCause
    name: str = ""
    actor: bytes = b""
    detail: str = ""
    root: Failure | None = None
    outgrown: bool = False
    """Whether it cannot restart because its log of calls was dropped at the memory limit."""


class ActorUnavailable(Struct, array_like=True, frozen=True, tag=5, gc=False):
    """An actor restarts before a call's result came, and the call has no retries left."""

    call: str
    actor: bytes


class Unschedulable(Struct, array_like=True, frozen=True, tag=6, gc=False):
    """No node will ever run a task or an actor."""

    name: str
    detail: str
    actor: bool = False


class GroupRemoved(Struct, array_like=True, frozen=True, tag=7, gc=False):
    """The placement group of a task or actor was removed."""

    name: str
    group: str
    actor: bool = False


class StoreFull(Struct, array_like=True, frozen=True, tag=8, gc=False):
    """A node's object store of ``capacity`` bytes has no room for ``size`` more, and its disk none
    for what is in it, for the reason `detail`."""

    size: int
    capacity: int
    detail: str = ""


class Unsendable(Struct, array_like=True, frozen=True, tag=12, gc=False):
    """A client's task is too long for a message."""

    task: str
    detail: str


Failure = (
    Loss
    | Cancellation
    | WorkerCrash
    | ActorDeath
    | ActorUnavailable
    | Unschedulable
    | GroupRemoved
    | StoreFull
    | Unsendable
)

pack = msgpack.Encoder().encode
"""Return a failure as the payload of a SYSTEM_ERROR."""
_decoder: msgpack.Decoder[Any] = msgpack.Decoder(Failure)


def unpack(payload: bytes) -> Failure:
    """Return the failure in the payload of a SYSTEM_ERROR."""
    failure: Failure = _decoder.decode(payload)
    return failure


def root_of(failure: Failure) -> Failure:
    """Return the first failure in a chain of inputs that were lost because of one another."""
    while isinstance(failure, Loss) and failure.refusal is Refusal.INPUT_LOST and failure.root:
        failure = failure.root
    return failure


def brief(failure: Failure) -> str:
    """Return a failure as text for the event log: the causes by name, and the detail."""
    words = [type(failure).__name__]
    for field in failure.__struct_fields__:
        value = getattr(failure, field)
        if isinstance(value, IntEnum):
            words.append(value.name)
        elif isinstance(value, Struct):
            words.append(f"({brief(value)})")  # type: ignore[arg-type]
    detail = getattr(failure, "detail", "")
    return " ".join(words) + (f": {detail}" if detail else "")
