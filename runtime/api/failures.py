"""Turns a failure of the system into an exception with its text.

The control plane's `errors` name the causes as data; only this module has the
texts, with one function per failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    ObjectLostError,
    ObjectStoreFullError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
    make_task_error,
)
from raytwin.runtime.api.ids import TaskID
from raytwin.runtime.control.core.ids import TASK_BYTES
from raytwin.runtime.control.messages import errors
from raytwin.runtime.control.messages.errors import (
    DeathCause,
    Failure,
    LossCause,
    Refusal,
)

LOSSES = {
    LossCause.NODE_DIED: "the only copy was on node {0.node}, which died",
    LossCause.COPY_MISSING: "the only copy was on node {0.node}, which does not have it any more",
    LossCause.UNREPORTED: "the only copy was on a node that died",
    LossCause.MAKER_DIED: "the node died that was to make it",
    LossCause.OWNER_DIED: "its owner has died",
    LossCause.RELEASED: "its owner has died or released it",
    LossCause.FREED: "its owner has released it",
    LossCause.JOB_ENDED: "its job has ended",
    LossCause.EARLIER_RUN: "it was made for an earlier run of its caller, which has released it",
    LossCause.FORGOTTEN: (
        "its call took effect for an earlier run of its caller, and so many came since that its"
        " result is not remembered"
    ),
}
"""The reasons why no copy is left."""

REFUSALS = {
    Refusal.PUT: "it was put, so no task makes it again",
    Refusal.ACTOR_WENT_ON: "the actor that made it has gone on since",
    Refusal.NO_RECORD: "the record of its task is gone",
    Refusal.NO_RETRIES: "{0.task} has no retries left",
    Refusal.INPUT_LOST: "{0.task} needs an input that is lost",
    Refusal.NOT_YIELDED: "{0.task} has not yielded it again",
}
"""The reasons why a lost object cannot be reconstructed."""

DEATHS = {
    DeathCause.CONSTRUCTOR_RAISED: "{0.name} died: its constructor raised\n{0.detail}",
    DeathCause.ARGUMENT_RAISED: (
        "{0.name} did not start: an argument of its constructor is a task's error"
    ),
    DeathCause.WORKER_DIED: "{0.name} died: its worker ended: {0.detail}",
    DeathCause.NODE_DIED: "{0.name} died: its node died: {0.detail}",
    DeathCause.KILLED: "{0.name} was killed by kill()",
    DeathCause.EXITED: "{0.name} has ended: exit_actor() was called",
    DeathCause.TERMINATED: "{0.name} has ended: it was asked to terminate",
    DeathCause.RESTORE_RAISED: "{0.name} has ended: its __ray_restore__ raised\n{0.detail}",
    DeathCause.NO_OWNER: "{0.name} has ended: no handle of it is left, or its owner has died",
    DeathCause.OWNERS_NODE_DIED: "{0.name} has ended: its owner's node died",
    DeathCause.JOB_ENDED: "{0.name} has ended: its job has",
    DeathCause.REPLAY_INPUT_FAILED: "{0.name} cannot be rebuilt: an input of a call is an error",
    DeathCause.REPLAY_DIVERGED: (
        "{0.name} cannot be rebuilt: {0.detail} raised when it was repeated, which it had not"
        " done before: what it needs is gone, or it does not do the same every time"
    ),
}
"""The reasons why an actor is dead."""

OUTGROWN = (
    "; it does not start again: its log of calls outgrew actor_log_bytes_max, which all actors"
    " share, and was given up; with checkpoints (checkpoint_interval) it stays short"
)


def exception_of(failure: Failure, oid: bytes = b"") -> RayError:
    """Return the exception of a failure; `oid` is the object that the program asked for, if any."""
    error = _MAKERS[type(failure)](failure, oid)
    error.failure = failure
    return error


def error_text(failure: Failure) -> str:
    """Return a failure as text, for use within the text of another failure."""
    error = exception_of(failure)
    return f"{type(error).__name__}: {error}"


def _lost(loss: errors.Loss, oid: bytes) -> RayError:
    why = LOSSES[loss.cause].format(loss)
    if loss.detail:
        why += f": {loss.detail}"
    if loss.refusal is not None:
        why += f", and {REFUSALS[loss.refusal].format(loss)}"
    if loss.root is not None:
        why += f": {error_text(loss.root)}"
    lost = loss.object or oid
    what = f"object {lost.hex()}" if lost else f"what {loss.task} made"
    kind = OwnerDiedError if loss.cause is LossCause.OWNER_DIED else ObjectLostError
    error = kind(f"{what} is lost: {why}")
    error.object_ref_hex = (oid or loss.object).hex()
    return error


def _cancelled(failure: errors.Cancellation, oid: bytes) -> RayError:
    text = f"{failure.task} was cancelled{' while it ran' if failure.begun else ''}"
    error = TaskCancelledError(text)
    error.failure = failure
    error.task_id = TaskID(oid[:TASK_BYTES]) if oid else None
    if failure.interrupted:
        return make_task_error(failure.task, f"TaskCancelledError: {text}\n", error)
    return error


def _crashed(crash: errors.WorkerCrash, oid: bytes) -> RayError:
    if crash.worker:
        text = f"{crash.worker} died while it ran {crash.task}"
    else:
        text = f"the node that ran {crash.task} died"
    return WorkerCrashedError(f"{text}: {crash.detail}")


def _of_actor(error: RayActorError, actor: bytes) -> RayError:
    error.actor_id = actor.hex() or None
    return error


def _dead(death: errors.ActorDeath, oid: bytes) -> RayError:
    text = DEATHS[death.cause].format(death)
    if death.root is not None:
        text += f": {error_text(death.root)}"
    if death.outgrown:
        text += OUTGROWN
    return _of_actor(ActorDiedError(text), death.actor)


def _unavailable(failure: errors.ActorUnavailable, oid: bytes) -> RayError:
    text = (
        f"{failure.call}: the actor restarts before the call's result came, and the call, which may"
        " or may not have taken effect, has no retries left (max_task_retries)"
    )
    return _of_actor(ActorUnavailableError(text), failure.actor)


def _unschedulable(failure: errors.Unschedulable, oid: bytes) -> RayError:
    kind = ActorUnschedulableError if failure.actor else TaskUnschedulableError
    return kind(f"{failure.name} cannot be scheduled: {failure.detail}")


def _removed(failure: errors.GroupRemoved, oid: bytes) -> RayError:
    kind = ActorPlacementGroupRemoved if failure.actor else TaskPlacementGroupRemoved
    return kind(f"{failure.name} was in placement group {failure.group}, which is gone")


def _full(failure: errors.StoreFull, oid: bytes) -> RayError:
    return ObjectStoreFullError(
        f"no room for {failure.size:,} bytes in the object store of {failure.capacity:,}, and what"
        f" does not fit cannot be written to disk: {failure.detail}; start the cluster with a"
        " larger object_store_memory, or drop references"
    )


def _unsendable(failure: errors.Unsendable, oid: bytes) -> RayError:
    return RaySystemError(f"{failure.task} could not be sent: {failure.detail}")


_MAKERS: dict[type, Callable[[Any, bytes], RayError]] = {
    errors.Loss: _lost,
    errors.Cancellation: _cancelled,
    errors.WorkerCrash: _crashed,
    errors.ActorDeath: _dead,
    errors.ActorUnavailable: _unavailable,
    errors.Unschedulable: _unschedulable,
    errors.GroupRemoved: _removed,
    errors.StoreFull: _full,
    errors.Unsendable: _unsendable,
}
