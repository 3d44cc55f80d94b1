"""The result that a repeated call gets.

The reply cache and the actor's log have the result with the places of its large values. A place
may have another object once the value's owner has released it. So a repeated call gets::

    small values ────────────────────────────────> the same
    large ones, in memory here ──────────────────> the same, with their places of now
    large ones that were made here, gone ────────> ObjectLostError
    large ones that were made elsewhere ─────────> the same: a fetch finds out
    the items of a stream, cached ───────────────> each of them as above
    the items of a stream, not known here ───────> ObjectLostError
    a reply that made room in the cache ─────────> ObjectLostError

The call does not run again: its actor has gone on since. The replay of an actor that is being
reconstructed makes large values again whose owner lives (`ResultManager.replayed`).
"""

from __future__ import annotations

from msgspec.structs import replace

from raytwin.runtime.control.core.failed_values import failed_result
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import RangeResult, TaskSpec
from raytwin.runtime.control.messages.errors import Loss, LossCause, Unmade
from raytwin.runtime.control.objects.object_directory import ObjectDirectory


def as_it_is(result: RangeResult, objects: ObjectDirectory, node: int) -> RangeResult:
    """Return a result with the places that its large values have on this node now.

    If one of them is gone, return the error that it is lost.
    """
    large = [
        (ret, object_id(result.array, result.start, ret))
        for ret, size in enumerate(result.sizes)
        if size
    ]
    if not large:
        return result
    offsets = [-1] * len(result.sizes)
    for ret, oid in large:
        value = objects.local.lookup(oid)
        if value is not None and value.size:
            offsets[ret] = value.offset
        elif oid not in objects.local.on_disk:
            return result if result.node != node else lost(result, oid, node)
    return replace(result, node=node, offsets=tuple(offsets))


def lost(result: RangeResult, oid: bytes, node: int) -> RangeResult:
    """Return the result of a repeated call whose object is lost."""
    loss = Loss(LossCause.EARLIER_RUN, unmade=Unmade.ACTOR_WENT_ON, object=oid)
    return replace(failed_result(result, loss, node), count=1)


def is_stream(spec: TaskSpec) -> bool:
    """Whether a call yields items, which go to its owner before its result."""
    return spec.extra is not None and bool(spec.extra.stream)
