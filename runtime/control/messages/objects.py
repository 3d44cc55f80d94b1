"""Objects: who wants which, where they are, who refers to them, when they go.

What moves large ones, room in the arena included, is in `storage`.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import ObjectValue, RangeResult
from raytwin.runtime.control.messages.errors import Loss, StoreFull


class WantObjects(Struct, array_like=True, tag=5):
    """Bring these objects to my node and tell me their values."""

    objects: list[bytes]


class ObjectsReady(Struct, array_like=True, tag=6):
    values: list[ObjectValue]


class PutObjects(Struct, array_like=True, tag=7):
    """New objects of this client, as if a task had made them."""

    results: list[RangeResult]


class AllocateObject(Struct, array_like=True, tag=8):
    """Give me room in the arena; answered by `ObjectAllocated`."""

    object: bytes
    size: int


class ObjectAllocated(Struct, array_like=True, tag=9):
    """``offset`` < 0: the store is full."""

    object: bytes
    offset: int
    full: Union[StoreFull, None] = None


class AbandonObject(Struct, array_like=True, tag=10):
    """Take back room that was allocated and will not be sealed."""

    object: bytes


class Release(Struct, array_like=True, tag=11):
    """Their owner holds no reference to these arrays any more."""

    arrays: list[bytes]


class Unpin(Struct, array_like=True, tag=12):
    """This client has no view of these large objects any more."""

    objects: list[bytes]


class GiveBack(Struct, array_like=True, tag=56):
    """The arena is full: unpin what you do not look at, say what you have dropped."""


class LocateObjects(Struct, array_like=True, tag=36):
    """Where are these? Answered at once, and again when that changes."""

    objects: list[bytes]
    subscribe: bool = True


class Location(Struct, array_like=True, gc=False):
    object: bytes
    nodes: tuple[int, ...]
    """Nodes that hold a copy; empty: none yet, or for ``lost`` none any more."""
    size: int
    """0: it is small and rides in messages."""
    lost: Union[Loss, None] = None
    """Why it is lost."""
    ended: int = -1
    """For a lost item that its task has not yielded again: the node with the task's end."""


class ObjectLocations(Struct, array_like=True, tag=37):
    locations: list[Location]


class FreeObjects(Struct, array_like=True, tag=38):
    """Drop your copies of every object of these arrays."""

    arrays: list[bytes]


class ObjectsMissing(Struct, array_like=True, tag=44):
    """The table is wrong: ``node`` was asked for these and does not have them."""

    node: int
    objects: list[bytes]
    reason: str = ""
    """Why, where that is known."""


class SeekOwners(Struct, array_like=True, tag=147):
    """Which of these arrays are clients' of yours? The table has not heard that what is awaited
    of them was made. Before its answer a node tells all that it knows.

    ``lost``: calls' results that were lost, said to be clients' of yours; are they still?
    """

    arrays: list[bytes]
    lost: list[bytes] = []


class OwnersFound(Struct, array_like=True, tag=148):
    """The answer: those that have an owner on ``node``, and the others that were asked for.

    ``unowned``: those of `SeekOwners.lost` that have none there. ``gone``: those of the others
    whose owners there know that they were made, by calls on nodes that have died. ``kept``:
    those of ``gone`` of which small values came with the result, and are on ``node``:
    (array, owner, sizes), as in `TaskUpdates`.
    """

    node: int
    owned: list[bytes]
    others: list[bytes]
    unowned: list[bytes] = []
    gone: list[bytes] = []
    kept: list[tuple[bytes, str, tuple[int, ...]]] = []


class PullObject(Struct, array_like=True, tag=50):
    """Send me this small object; answered by `ObjectPayload`."""

    object: bytes


class ObjectPayload(Struct, array_like=True, tag=51):
    """The range that the object is part of; None: not here (any more)."""

    object: bytes
    result: Union[RangeResult, None]


class RefUpdates(Struct, array_like=True, tag=145):
    """To an owner, by way of its node: who has references to its arrays.

    Each is a `ref_book.Update`: (array, borrower, epoch, what to do). The answer to a
    borrower is one too.
    """

    owner: str
    updates: list[tuple[bytes, str, int, int]]


class BorrowersGone(Struct, array_like=True, tag=146):
    """A node's life is over: neither it nor its clients have references any more."""

    node: int
    incarnation: int


ObjectMessage = Union[
    WantObjects, ObjectsReady, PutObjects, AllocateObject, ObjectAllocated, AbandonObject,
    Release, Unpin, GiveBack, LocateObjects, ObjectLocations, FreeObjects, ObjectsMissing,
    SeekOwners, OwnersFound, PullObject, ObjectPayload, RefUpdates, BorrowersGone,
]  # fmt: skip
