"""Ranges of tasks: splitting them, and facts read from a `TaskSpec`.

A `TaskSpec` is a range: ``count`` elements of a task array from ``start`` on; a single task is a
range of one. The functions here split a range to assign, cancel or place a part of it.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, job_id, job_number, job_of
from raytwin.runtime.control.messages import CancelTask, TaskSpec


def part_of(spec: TaskSpec, start: int, count: int) -> TaskSpec:
    """Return elements ``start .. start + count`` of a range as a range."""
    assert spec.start <= start and start + count <= spec.start + spec.count and count > 0
    return TaskSpec(
        spec.array, start, count, spec.function, spec.args, spec.owner, spec.demand,
        spec.deps, spec.returns, spec.retries, spec.first, spec.name, spec.extra, spec.depth,
    )  # fmt: skip


def cut(
    spec: TaskSpec, message: CancelTask, claimant: str = ""
) -> tuple[list[TaskSpec], TaskSpec | None]:
    """Split a range into the parts that stay and the part that the message cancels, or None.

    `claimant`: the client that has taken the range over from the owner in its spec.
    """
    if spec.array != message.array if message.array else is_of_actor(spec):
        return [spec], None
    if message.owners and (claimant or spec.owner) not in message.owners:
        return [spec], None
    end = spec.start + spec.count
    first = max(spec.start, message.start)
    last = min(end, message.start + message.count)
    if first >= last:
        return [spec], None
    kept = [
        part_of(spec, start, stop - start)
        for start, stop in ((spec.start, first), (last, end))
        if start < stop
    ]
    return kept, part_of(spec, first, last - first)


def without(spec: TaskSpec, gone: TaskSpec) -> list[TaskSpec]:
    """Return the parts of a range that are not in another range of its array."""
    low = min(max(spec.start, gone.start), spec.start + spec.count)
    high = max(min(spec.start + spec.count, gone.start + gone.count), low)
    ends = ((spec.start, low), (high, spec.start + spec.count))
    return [part_of(spec, start, stop - start) for start, stop in ends if start < stop]


def needs_of(spec: TaskSpec) -> tuple[bytes, ...]:
    """Return the inputs of a range, and the arrays with references inside its arguments."""
    extra = spec.extra
    return spec.deps if extra is None or not extra.inside else (*spec.deps, *extra.inside)


def array_of(row: Any) -> bytes:
    """Return the array of a row in a message to the GCS.

    Such a row is a range, an array, an object, or a tuple that begins with an array or object.
    """
    if type(row) is TaskSpec:
        return row.array
    oid: bytes = row if type(row) is bytes else row[0]
    return oid[:ARRAY_BYTES]


def attempt_of(spec: TaskSpec) -> int:
    """Return how often the GCS has placed the range again."""
    return spec.extra.attempt if spec.extra is not None else 0


def is_of_actor(spec: TaskSpec) -> bool:
    """Whether a range creates an actor, or is a call of one."""
    extra = spec.extra
    return extra is not None and (extra.actor is not None or bool(extra.call))


def is_crash_loop(crashes: int) -> bool:
    """Whether to warn of what has crashed so often: at 3, 6, 12, 24 times and so on."""
    times, rest = divmod(crashes, 3)
    return not rest and times.bit_count() == 1


def task_of(index: int) -> int:
    """Return the element of the task that makes an element: 0 for all items of a stream."""
    return 0 if index >= STREAM_BASE else index


def job_of_task(spec: TaskSpec) -> bytes:
    """Return the job with which a task ends, and to which its worker belongs.

    The creation of a detached actor belongs to the actor's branch.
    """
    actor = spec.extra.actor if spec.extra is not None else None
    branch = actor.branch if actor is not None else 0
    return job_id(job_number(spec.array), branch) if branch else job_of(spec.array)
