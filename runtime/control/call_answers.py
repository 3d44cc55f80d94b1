"""What a call is answered with that comes again: the result that it had, as far as it is there.

A result is remembered with the places of its large values (`call_memory`, the actor's
log), and these are somebody's only until he lets go of them. So of one that comes again::

    small values ────────────────────────────────> the same
    large ones, here ────────────────────────────> the same, where they are by now
    large ones that were made here, gone ────────> ObjectLostError
    large ones that were made elsewhere ─────────> the same: who fetches them finds out
    the items of a stream, remembered ───────────> the same, as a result of their kind is
    the items of a stream, not known here ───────> ObjectLostError
    not remembered, but that it took effect ─────> ObjectLostError

The call does not run again for it: its actor has gone on since. One that is being rebuilt
makes the large values again that nobody living has let go of (`Results.replayed`).
"""

from __future__ import annotations

from msgspec.structs import replace

from runtime.control.ids import object_id
from runtime.control.lost import lost_error
from runtime.control.messages import OK, SYSTEM_ERROR, RangeResult, TaskSpec
from runtime.control.objects import ObjectDirectory

LET_GO = (
    "it was made for an earlier run of its caller, which has let go of it, and the actor that"
    " made it has gone on since"
)

FORGOTTEN = (
    "its call took effect for an earlier run of its caller, and so many came since that its"
    " result is not remembered"
)


def as_it_is(result: RangeResult, objects: ObjectDirectory, node: int) -> RangeResult:
    """Return a remembered result with its large values where they are on this node, or the
    error that they are lost."""
    large = [
        (ret, object_id(result.array, result.start, ret))
        for ret, size in enumerate(result.sizes)
        if size
    ]
    if not large:
        return result
    offsets = [-1] * len(result.sizes)
    for ret, oid in large:
        value = objects.lookup(oid)
        if value is not None and value.size:
            offsets[ret] = value.offset
        elif oid not in objects.eviction.on_disk:
            return result if result.node != node else lost(result, oid, node)
    return replace(result, node=node, offsets=tuple(offsets))


def lost(result: RangeResult, oid: bytes, node: int) -> RangeResult:
    """Return what a call ends with if what it made is gone."""
    error = lost_error(oid, LET_GO).encode()
    return RangeResult(result.array, result.start, 1, SYSTEM_ERROR, error, node, result.returns)


def forgotten(spec: TaskSpec, node: int) -> RangeResult:
    """Return what a call ends with that took effect, and whose result is not known any more."""
    error = lost_error(object_id(spec.array, 0, 0), FORGOTTEN).encode()
    return RangeResult(spec.array, 0, 1, SYSTEM_ERROR, error, node, spec.returns)


def lacks_items(spec: TaskSpec, result: RangeResult) -> bool:
    """Whether a result is the end of a stream, of which an owner that comes later has nothing."""
    return is_stream(spec) and result.status == OK


def is_stream(spec: TaskSpec) -> bool:
    """Whether a call yields items, which go to its owner before its result."""
    return spec.extra is not None and bool(spec.extra.stream)
