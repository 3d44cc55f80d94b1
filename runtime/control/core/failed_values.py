"""Values that stand for a failure of the system: `get` raises them as errors."""

from __future__ import annotations

from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    CancelTask,
    ObjectValue,
    RangeResult,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import (
    Cancellation,
    Failure,
    Loss,
    LossCause,
    pack,
    unpack,
)


def failed_value(failure: Failure, oid: bytes = b"") -> ObjectValue:
    """Return an object that stands for a failure; without an ID: any result of a failed task."""
    return ObjectValue(oid, SYSTEM_ERROR, pack(failure))


def failed_result(of: TaskSpec | RangeResult, failure: Failure, node: int) -> RangeResult:
    """Return the result of a range that has ended in a failure."""
    return RangeResult(of.array, of.start, of.count, SYSTEM_ERROR, pack(failure), node, of.returns)


def call_failed(spec: TaskSpec, failure: Failure, node: int) -> RangeResult:
    """Return the result of one call of an actor that has ended in a failure."""
    return RangeResult(spec.array, 0, 1, SYSTEM_ERROR, pack(failure), node, spec.returns)


def cancelled_result(spec: TaskSpec, node: int) -> RangeResult:
    """Return the result of elements that were cancelled before they had begun."""
    return failed_result(spec, Cancellation(spec.name), node)


def end_of(spec: TaskSpec, request: CancelTask) -> Failure:
    """Return the failure of elements that a request ends before they have begun, or with their
    worker: children of a worker that has died are lost with it, as all that it owned."""
    if request.owners:
        oid = object_id(spec.array, spec.start, 0)
        return Loss(LossCause.OWNER_DIED, task=spec.name, object=oid)
    return Cancellation(spec.name)


def is_lost(result: RangeResult | ObjectValue) -> bool:
    """Whether it is the error of a lost object: the object's, or that of a task that needs it."""
    return result.status == SYSTEM_ERROR and isinstance(unpack(result.payload), Loss)


def forgotten(spec: TaskSpec, node: int) -> RangeResult:
    """Return the error of a call that took effect, but whose result is no longer remembered."""
    loss = Loss(LossCause.FORGOTTEN, object=object_id(spec.array, 0, 0))
    return call_failed(spec, loss, node)
