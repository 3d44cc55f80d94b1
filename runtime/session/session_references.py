"""The references of one process: when they are counted, and which value or task contained them.

The garbage collector drops references at any moment and on any thread. So the session queues a
dropped reference, and the next call of the API counts it (`collect`). `on_drop` has the world
count it if the process makes no calls.

Unpickling a reference calls `ref_received` on the unpickling thread; that thread then names the
value or the arguments that contained the reference.
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
    """Counts references; it is the holder of every `ObjectRef` of the process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client
        self.client.references.collect = self.collect
        self.client.references.collect_cycles = world.collect_cycles
        self.closed = False
        """Whether the cluster has ended, and every value with it."""
        self.dropped: deque[bytes] = deque()
        """References that the garbage collector has dropped and no call has counted yet."""
        self.released_values: deque[bytes] = deque()
        """Large values that no view reads any more; `collect` releases their pins."""
        self.released_inputs: deque[bytes] = deque()
        """Large inputs of tasks that no view reads any more."""
        self.received: deque[tuple[int, bytes]] = deque()
        """(thread, array of a reference that it has just unpickled)."""
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
            self.client.direct.share(array)
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

    def weak(self, oid: bytes) -> ObjectRef:
        """Return a reference that does not keep its value."""
        return counted_ref(oid, WeakReferences(self))

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

    def contained_in_value(self, oid: bytes) -> None:
        """Register the references that an object's value contained."""
        with self.world:
            self.client.references.counter.contained_in_value(
                oid[:ARRAY_BYTES], self._take_received()
            )

    def contained_in_arguments(self, task: bytes) -> None:
        """Register the references that a task's arguments contained."""
        with self.world:
            self.client.references.counter.contained_in_arguments(task, self._take_received())

    def pin_contained(self, array: bytes, contained: Sequence[ObjectRef]) -> ResultRefs:
        """Pin the references inside a value for the array that contains it; in a turn."""
        arrays = [inside for inside in arrays_of(contained) if inside != array]
        return ResultRefs(
            (),
            self.client.references.counter.pin_contained(arrays),
            self.client.references.counter.keeper,
        )

    def dumps(self, value: Any) -> bytes:
        """Serialize a value that belongs to no object or task; pin the references inside."""
        serialized = self.world.serialize(value)
        if serialized.contained:
            with self.world:
                for array in arrays_of(serialized.contained):
                    self.client.references.counter.pin(array)
        return serialized.to_bytes()

    def dumps_lasting(self, value: Any) -> bytes:
        """Serialize a value that outlives this process; pin the references inside.

        Raises ValueError if this process owns one of their objects: objects end with their owner.
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
        dropped, released_values = self.dropped, self.released_values
        if dropped:
            self.client.references.drop_refs(dropped)
        while released_values:
            self.client.pins.drop_view(released_values.popleft())
        while self.released_inputs:
            self.client.buffer.unpin(self.released_inputs.popleft())

    def has_drops(self) -> bool:
        """Whether `tidy` would release anything."""
        return bool(self.dropped or self.released_values) or self.wait_group is not None

    def tidy(self) -> None:
        """Count dropped references while the program makes no calls; in a turn.

        The wait group is dissolved: keeping it pays only within a loop of `wait`.
        """
        self.keep_group(None)
        self.collect()

    def keep_group(self, group: WaitGroup | None) -> None:
        """Keep a group for the next `wait`, which probably gets its list; dissolve the last one."""
        before, self.wait_group = self.wait_group, group if group else None
        if before is not None:
            before.dissolve()

    def check_open(self, refs: Sequence[ObjectRef] = ()) -> None:
        """Raise RaySystemError if the cluster of this session or of a reference is gone."""
        if self.closed or (refs and any_closed(refs)):
            raise RaySystemError(GONE)

    def refs_to(self, entry: Entry) -> list[ObjectRef]:
        """Return a reference to each value of a single task; in a turn."""
        entry.refs += entry.returns
        if entry.returns == 1:
            return [counted_ref(entry.array + FIRST, self)]
        return [counted_ref(object_id(entry.array, 0, ret), self) for ret in range(entry.returns)]


def arrays_of(refs: Sequence[ObjectRef]) -> tuple[bytes, ...]:
    """Return the arrays to which references belong, each once."""
    return tuple(dict.fromkeys(ref.binary()[:ARRAY_BYTES] for ref in refs))


class WeakReferences:
    """The holder of references that are not counted: those of handles of actors found by name."""

    def __init__(self, references: SessionReferences) -> None:
        self._references = references

    @property
    def closed(self) -> bool:
        """Whether the session's cluster is gone."""
        return self._references.closed

    def ref_added(self, oid: bytes) -> None:
        """Count nothing."""

    def ref_dropped(self, oid: bytes) -> None:
        """Count nothing."""

    def ref_sent(self, ref: ObjectRef) -> str:
        """Name no owner: the receiver registers with none."""
        if self.closed:
            raise RaySystemError(GONE)
        return ""

    def ref_received(self, oid: bytes, owner: str) -> None:
        raise TypeError("references that arrive are counted")
