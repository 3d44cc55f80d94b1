"""What a cancelled task ends with."""

from __future__ import annotations

from runtime.control.messages import SYSTEM_ERROR, ObjectValue, RangeResult, TaskSpec


def cancelled_error(name: str) -> ObjectValue:
    """Return what becomes of a cancelled task."""
    return ObjectValue(b"", SYSTEM_ERROR, f"TaskCancelledError: {name} was cancelled".encode())


def cancelled_result(spec: TaskSpec, node: int) -> RangeResult:
    """Return the result of cancelled elements."""
    error = cancelled_error(spec.name)
    return RangeResult(
        spec.array, spec.start, spec.count, error.status, error.payload, node, spec.returns
    )
