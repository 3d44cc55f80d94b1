"""Streams: tasks whose values become objects one by one, while they run.

The task of a stream is element 0 of its array, as ever. Item i that it yields
is element ``STREAM_BASE + i`` of the same array: the array is owned, found,
copied and released as one, and a stream needs no table of its own::

    worker ──StreamItems──> node ──TaskResults──> owner      an item at a time
    worker ──TasksDone────> node ──TaskResults──> owner      the number of items

Items come before the end, since both go the same way. An exception of the
task's own is its last item; a failure of the system is the result of element 0.
A task that runs again yields the same items again; the owner keeps the first.
An owner that runs again on another node asks for the same stream. The node of a task has
its items and passes on what there is and what comes (`ForwardResults`); that of an actor,
whose call does not run again, remembers them for it (`reply_cache`).
An item whose every copy is gone is made again by running its task again, all of
it; one that this run has not yielded is lost.
All items live until no reference to any of them is left.
"""

from __future__ import annotations

from raytwin.runtime.control.core.ids import STREAM_BASE, object_id


def item_id(array: bytes, index: int) -> bytes:
    """Return the object ID of item `index` of a stream."""
    return object_id(array, STREAM_BASE + index, 0)
