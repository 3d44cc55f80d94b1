"""An array that a client owns, and the waiters for it."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from msgspec import Struct

from raytwin.runtime.control.core.ids import split_object_id
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.messages import OK, RangeResult
from raytwin.runtime.control.ownership.reference_counter import Borrowers

by_start = attrgetter("start")


class Waiter:
    """Counts the awaited objects, or replies, that are still missing."""

    __slots__ = ("arrived", "failed", "fetch", "missing")

    def __init__(self, fetch: bool = True) -> None:
        self.missing = 0
        self.fetch = fetch
        """Whether to fetch large values to this node; else it is enough that they exist."""
        self.arrived: list[bytes] | None = None
        """If not None: the missing objects that have arrived since."""
        self.failed = False
        """Whether a missing object has turned out to be an error; `fail_early` finds errors among
        the others."""


class Entry(Struct, eq=False, gc=False):
    """An array that this client owns."""

    array: bytes
    count: int
    returns: int
    missing: int
    """Elements whose result has not arrived."""
    result: RangeResult | None = None
    """The result of an array of one."""
    results: list[RangeResult] | None = None
    """The results of a longer array, by start; later ones may overlap."""
    covered: Ranges | None = None
    items: dict[int, RangeResult] | None = None
    """For a stream: its items so far, by element; see `ids`."""
    refs: int = 0
    """The number of live `ObjectRef`s."""
    holds: int = 0
    """The number of unfinished tasks that have it as input, and of values that contain it."""
    is_call: bool = False
    """Whether it is the result of a call of an actor."""
    worker: str = ""
    """The worker to which its call was sent directly."""
    shared: bool = False
    """Whether another client may have a reference to it: one was serialized."""
    private: bool = False
    """Whether the node does not know of that call."""
    position: int = 0
    """For an array of one: the position of its first value in the result's payload."""
    borrowers: Borrowers | None = None
    """Other clients with references to it."""
    deps: tuple[bytes, ...] = ()
    """Inputs that the client keeps until the array is done, and arrays inside arguments."""
    keeper: bytes = b""
    """The actor that may be rebuilt with these inputs: see `Submitter.submit`. Of an actor: itself,
    as long as it may restart."""
    kept: dict[bytes, None] | None = None
    """For such an actor: the inputs that the client keeps as long as the actor lives. For any
    array: the arrays with references inside its values."""
    waiters: dict[int, list[tuple[bytes, Waiter]]] | None = None
    """Waiters for an element, by index."""
    all_waiters: list[Waiter] | None = None
    local: list[bytes] | None = None
    """Its large objects that the node has pinned for this client."""

    def is_whole_in_messages(self, oid: bytes) -> bool:
        """Whether messages have all of an object's value: it is small and refers to no other."""
        result = self.find(split_object_id(oid)[1])
        return (
            result is not None
            and not any(result.sizes)
            and (result.refs is None or not result.refs.contained)
        )

    def is_small(self) -> bool:
        """Whether an array of one with a result has all its values in the result."""
        result = self.result
        return result is not None and (result.status != OK or not result.sizes)

    def find(self, index: int) -> RangeResult | None:
        """Return the result that covers an element."""
        if self.count == 1:
            if self.items is not None and index:
                return self.items.get(index)
            return self.result
        if self.covered is None or index not in self.covered:
            return None
        assert self.results is not None
        at = bisect_right(self.results, index, key=by_start)
        for result in reversed(self.results[:at]):
            if index < result.start + result.count:
                return result
        raise AssertionError("a covered element has no result")
