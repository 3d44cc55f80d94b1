"""A message that cannot travel: what it was about fails, and nothing else.

Mostly it is longer than any may be; one that holds what has no encoding is treated
alike. The world does not send it, logs one line and tells its sender, by `TooLong`. The
sender ends what the message belonged to with an error that says so:

============================ ====================================================
from                         what becomes of it
============================ ====================================================
a client: its tasks          they end with the error, as if they had run
a node: calls of an actor    the same
a node: tasks for a worker   that worker is ended: the tasks use up their retries
a node: results              errors take their place
a node: an actor's lineage   the actor ends for good
the GCS: an actor's lineage  the same
a worker: results            it ends: its tasks use up their retries
============================ ====================================================

Whatever else it may be is lost, as with a receiver that has just died.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.call_batches import singles
from raytwin.runtime.control.core.failed_values import failed_result
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorLineage,
    LogCalls,
    RangeResult,
    RestoreActor,
    RunTasks,
    SaveActor,
    StreamItems,
    SubmitTasks,
    TaskResults,
    TasksDone,
    TaskSpec,
    TooLong,
)
from raytwin.runtime.control.messages.errors import Unsendable


def too_long(to: str, message: Any, reason: str) -> TooLong | None:
    """Return what the sender of such a message is told; None: there is nothing to end."""
    told = TooLong(to, type(message).__name__, reason, [])
    if isinstance(message, SubmitTasks):
        told.tasks = message.tasks
    elif isinstance(message, ActorCalls):
        told.tasks = [*message.tasks, *message.probes]
    elif isinstance(message, RunTasks):
        told.tasks = [assignment.spec for assignment in message.tasks]
    elif isinstance(message, LogCalls | ActorLineage | SaveActor):
        told.actor, told.incarnation = message.actor, message.incarnation
    elif isinstance(message, TaskResults):
        told.owner = message.owner
        told.results = [_error(told, r, message.results[0].node) for r in message.results]
    elif not isinstance(message, RestoreActor | TasksDone | StreamItems):
        return None
    return told


def results_of(told: TooLong, node: int) -> list[RangeResult]:
    """Return the results of the tasks that were in the message."""
    return [_error(told, task, node) for task in singles(told.tasks)]


def _error(told: TooLong, of: TaskSpec | RangeResult, node: int) -> RangeResult:
    return failed_result(of, unsendable(told), node)


def unsendable(told: TooLong) -> Unsendable:
    """Return the error of what the message was about."""
    return Unsendable(told.kind, told.reason)
