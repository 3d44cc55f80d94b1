"""Objects: requests for them, their locations, their borrowers, their release.

The messages that allocate room in the arena and move large objects are in `storage`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import ObjectValue, RangeResult
from raytwin.runtime.control.messages.errors import Loss, StoreFull


class WantObjects(Struct, array_like=True, tag=5):
    """A client asks for these objects; answered by `ObjectsReady` when they are on its node."""

    objects: list[bytes]


class ObjectsReady(Struct, array_like=True, tag=6):
    values: list[ObjectValue]


class PutObjects(Struct, array_like=True, tag=7):
    """New objects of this client, as if a task had made them."""

    results: list[RangeResult]


class AllocateObject(Struct, array_like=True, tag=8):
    """Allocate room in the arena; answered by `ObjectAllocated`."""

    object: bytes
    size: int


class ObjectAllocated(Struct, array_like=True, tag=9):
    """``offset`` < 0: the store is full."""

    object: bytes
    offset: int
    full: Union[StoreFull, None] = None


class AbandonObject(Struct, array_like=True, tag=10):
    """Free room that was allocated and will not be used."""

    object: bytes


class Release(Struct, array_like=True, tag=11):
    """The owner of these arrays releases them."""

    arrays: list[bytes]


class Unpin(Struct, array_like=True, tag=12):
    """The client no longer reads these large objects."""

    objects: list[bytes]


class GiveBack(Struct, array_like=True, tag=56):
    """Something is scarce: the client must unpin objects that it does not read, and send its
    dropped references."""

    cycles: bool = False
    """Whether resources are scarce that actors have: the client has its garbage collector look for
    handles of actors in reference cycles as well. Else the arena is full."""


class LocateObjects(Struct, array_like=True, tag=36):
    """A node asks for locations; the GCS answers at once, and again when they change."""

    objects: list[bytes]
    subscribe: bool = True


class Location(Struct, array_like=True, gc=False):
    object: bytes
    nodes: tuple[int, ...]
    """Nodes that have a copy; empty: none yet, or, if ``lost``, none any more."""
    size: int
    """0: the value is small, and travels in messages."""
    lost: Union[Loss, None] = None
    """Why it is lost."""
    ended: int = -1
    """For a lost item that the task's new run has not yielded: the node with the task's result."""


class ObjectLocations(Struct, array_like=True, tag=37):
    locations: list[Location]


class FreeObjects(Struct, array_like=True, tag=38):
    """Drop your copies of every object of these arrays."""

    arrays: list[bytes]


class Missing(IntEnum):
    """Why a node does not have an object that it should have."""

    ABSENT = 0
    NODE_DIED = 1
    UNREADABLE = 2
    """Its file in the spill directory cannot be read."""
    INPUTS_MADE_AGAIN = 3
    """The node had the error of a task whose input was lost; the owner makes that input again."""


class ObjectsMissing(Struct, array_like=True, tag=44):
    """The object table is wrong: ``node`` does not have these objects."""

    node: int
    objects: list[bytes]
    why: Missing = Missing.ABSENT
    detail: str = ""


class SeekOwners(Struct, array_like=True, tag=147):
    """The GCS asks every node which of these arrays its clients own: nodes wait for them, and no
    node has reported them. A node sends all its buffered `TaskUpdates` before it answers.

    ``lost``: lost results of calls: do clients of the node, their reported owners, own them still?
    """

    arrays: list[bytes]
    lost: list[bytes] = []


class OwnersFound(Struct, array_like=True, tag=148):
    """The answer to `SeekOwners`: the arrays with an owner on ``node``, and the others.

    ``unowned``: the arrays of `SeekOwners.lost` without an owner on ``node``. ``gone``: arrays
    that calls on dead nodes have made, as their owners on ``node`` know. ``kept``: those of
    ``gone`` whose result had small values, which are on ``node``: (array, owner, sizes), as in
    `TaskUpdates`.
    """

    node: int
    owned: list[bytes]
    others: list[bytes]
    unowned: list[bytes] = []
    gone: list[bytes] = []
    kept: list[tuple[bytes, str, tuple[int, ...]]] = []


class Probe(Struct, array_like=True, tag=199):
    """A node sends this to find out whether it reaches another one: the answer is the channel's
    acknowledgement."""


class PullObject(Struct, array_like=True, tag=50):
    """A node asks another one for a small object; answered by `ObjectPayload`."""

    object: bytes


class ObjectPayload(Struct, array_like=True, tag=51):
    """The range that the object is part of; None: not here (any more)."""

    object: bytes
    result: Union[RangeResult, None]


class RefUpdates(Struct, array_like=True, tag=145):
    """To an owner, by way of its node: borrowers register and deregister.

    Each is a `reference_counter.Update`: (array, borrower, loan number, code). The owner's answer
    to a borrower has the same form.
    """

    owner: str
    updates: list[tuple[bytes, str, int, int]]


class BorrowersGone(Struct, array_like=True, tag=146):
    """An incarnation of a node has died: neither it nor its clients borrow anything any more."""

    node: int
    incarnation: int


ObjectMessage = Union[
    WantObjects, ObjectsReady, PutObjects, AllocateObject, ObjectAllocated, AbandonObject,
    Release, Unpin, GiveBack, LocateObjects, ObjectLocations, FreeObjects, ObjectsMissing,
    SeekOwners, OwnersFound, Probe, PullObject, ObjectPayload, RefUpdates, BorrowersGone,
]  # fmt: skip
