"""The references of one process: when they are counted, and which value or task brought them.

The garbage collector drops references at any moment and on any thread. A dropped reference
is queued; the next call of the API counts it (`collect`), and `on_drop` is called for a
process that makes no calls.

A reference that is unpickled announces itself when it is made (`ref_received`), on the thread
that unpickles; that thread then names the value or arguments which it was part of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from raytwin.runtime.api.backend import ObjectRef, any_closed, counted_ref
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core.ids import ARRAY_BYTES, FIRST, object_id
from raytwin.runtime.control.messages import ResultRefs
from raytwin.runtime.session.wait_group import WaitGroup
from raytwin.runtime.session.world import World

GONE = "the cluster is gone: shut down"


class SessionReferences:
    """Counts references; every `ObjectRef` of the process has this as its holder."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client
        self.client.references.collect = self.collect
        self.closed = False
        """Whether the cluster has ended, and every value with it."""
        self.dropped: deque[bytes] = deque()
        """References that the collector has dropped and no call has counted yet."""
        self.unviewed: deque[bytes] = deque()
        """Large values without a view any more; their pins are to be released."""
        self.inputs_done: deque[bytes] = deque()
        """Large inputs of tasks without a view any more."""
        self.received: deque[tuple[int, bytes]] = deque()
        """Threads, and arrays of references that they have unpickled just now."""
        self.on_drop: Callable[[], None] | None = None
        """Called at each drop, at any moment and on any thread."""
        self.wait_group: WaitGroup | None = None
        """The references that the last `wait` returned as not ready."""

    def ref_added(self, oid: bytes) -> None:
        with self.world:
            self.client.references.add_ref(oid)

    def ref_dropped(self, oid: bytes) -> None:
        self.dropped.append(oid)
        if self.on_drop is not None:
            self.on_drop()

    def ref_sent(self, ref: ObjectRef) -> str:
        if self.closed:
            raise RaySystemError(GONE)
        array = ref.binary()[:ARRAY_BYTES]
        sink = self.world.sink.get()
        with self.world:
            if sink is not None:
                sink.append(ref)
            else:
                self.client.references.counter.pin(array)
            return self.client.references.counter.owner_of(array)

    def ref_received(self, oid: bytes, owner: str) -> None:
        array = oid[:ARRAY_BYTES]
        with self.world:
            self.client.references.counter.receive(array, owner)
        self.received.append((get_ident(), array))

    def _take_received(self) -> list[bytes]:
        """Return the arrays of the references that this thread has just unpickled."""
        me = get_ident()
        mine = []
        for _ in range(len(self.received)):
            pair = self.received.popleft()
            if pair[0] == me:
                mine.append(pair[1])
            else:
                self.received.append(pair)
        return mine

    def came_in_value(self, oid: bytes) -> None:
        """Register the references that an object's value had inside."""
        with self.world:
            self.client.references.counter.came_in_value(oid[:ARRAY_BYTES], self._take_received())

    def came_in_arguments(self, task: bytes) -> None:
        """Register the references that a task's arguments had inside."""
        with self.world:
            self.client.references.counter.came_in_arguments(task, self._take_received())

    def hand_over(self, array: bytes, contained: Sequence[ObjectRef]) -> ResultRefs:
        """Pin the references inside a value for the array that contains it; in a turn."""
        arrays = [inside for inside in arrays_of(contained) if inside != array]
        return ResultRefs(
            (),
            self.client.references.counter.hand_over(arrays),
            self.client.references.counter.keeper,
        )

    def dumps(self, value: Any) -> bytes:
        """Serialize a value that no object or task keeps; pin the references inside."""
        serialized = self.world.serialize(value)
        if serialized.contained:
            with self.world:
                for array in arrays_of(serialized.contained):
                    self.client.references.counter.pin(array)
        return serialized.to_bytes()

    def dumps_lasting(self, value: Any) -> bytes:
        """Serialize a value that outlives this process; pin the references inside.

        Raises ValueError if this process owns one of those objects: they end with their owner.
        """
        serialized = self.world.serialize(value)
        if serialized.contained:
            borrowing = self.client.references.counter
            with self.world:
                arrays = arrays_of(serialized.contained)
                own = [each for each in arrays if borrowing.owner_of(each) == self.client.address]
                if own:
                    raise ValueError(
                        f"it holds {len(own)} references to what its own worker has put or"
                        " submitted, which end with that: hold the values"
                    )
                for array in arrays:
                    borrowing.pin(array)
        return serialized.to_bytes()

    def collect(self) -> None:
        """Count the references that the garbage collector has dropped; in a turn."""
        if self.wait_group is not None and self.wait_group.abandoned():
            self.keep_group(None)
        dropped, unviewed = self.dropped, self.unviewed
        if dropped:
            self.client.references.drop_refs(dropped)
        while unviewed:
            self.client.pins.drop_view(unviewed.popleft())
        while self.inputs_done:
            self.client.buffer.unpin(self.inputs_done.popleft())

    def has_drops(self) -> bool:
        """Whether `tidy` would release anything."""
        return bool(self.dropped or self.unviewed) or self.wait_group is not None

    def tidy(self) -> None:
        """Count dropped references while the program makes no calls; in a turn.

        The wait group is dissolved: keeping it pays only within a loop of `wait`.
        """
        self.keep_group(None)
        self.collect()

    def keep_group(self, group: WaitGroup | None) -> None:
        """Keep the group that the next `wait` is likely to be given; dissolve the one before."""
        before, self.wait_group = self.wait_group, group if group else None
        if before is not None:
            before.dissolve()

    def check_open(self, refs: Sequence[ObjectRef] = ()) -> None:
        """Raise RaySystemError if the cluster of this session or of a reference is gone."""
        if self.closed or (refs and any_closed(refs)):
            raise RaySystemError(GONE)

    def refs_to(self, entry: Entry) -> list[ObjectRef]:
        """Return a reference to each value of a single task; call it in a turn."""
        entry.refs += entry.returns
        if entry.returns == 1:
            return [counted_ref(entry.array + FIRST, self)]
        return [counted_ref(object_id(entry.array, 0, ret), self) for ret in range(entry.returns)]


def arrays_of(refs: Sequence[ObjectRef]) -> tuple[bytes, ...]:
    """Return the arrays that references belong to, each once."""
    return tuple(dict.fromkeys(ref.binary()[:ARRAY_BYTES] for ref in refs))
