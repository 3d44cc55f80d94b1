"""What a cancelled task or call ends with.

====================================== ===========================================
what had not begun                     TaskCancelledError
what was interrupted, or had to end    RayTaskError(TaskCancelledError), as of any
for it: a task, a coroutine            error that is raised where it runs
a call that has gone on to its end     TaskCancelledError
====================================== ===========================================

Of what had begun the text says so: it may have had effects.
"""

from __future__ import annotations

from runtime.control.messages import SYSTEM_ERROR, ObjectValue, RangeResult, TaskSpec

INTERRUPTED = "RayTaskError(TaskCancelledError)"
"""The name of the error where it was raised in what was cancelled."""
WHILE_IT_RAN = " was cancelled while it ran"


def cancelled_error(name: str) -> ObjectValue:
    """Return what becomes of a task that had not begun."""
    return ObjectValue(b"", SYSTEM_ERROR, f"TaskCancelledError: {name} was cancelled".encode())


def cancelled_midway(name: str, interrupted: bool) -> ObjectValue:
    """Return what becomes of a task or call that had begun."""
    kind = INTERRUPTED if interrupted else "TaskCancelledError"
    return ObjectValue(b"", SYSTEM_ERROR, f"{kind}: {name}{WHILE_IT_RAN}".encode())


def cancelled_result(spec: TaskSpec, node: int) -> RangeResult:
    """Return the result of elements that had not begun."""
    error = cancelled_error(spec.name)
    return RangeResult(
        spec.array, spec.start, spec.count, error.status, error.payload, node, spec.returns
    )
