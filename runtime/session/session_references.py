"""What a session knows of its references, and when they are counted.

References are dropped by the garbage collector, at any moment and on any
thread: they are noted in a queue and counted at the next call (`collect`), or
by whoever `on_drop` tells.

References inside of what is unpickled are found the other way round: each says
so when it is made (`ref_received`), on the thread that unpickles, and whoever
has unpickled says what it was a part of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from raytwin.runtime.api.backend import World
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.init_context import ClusterContext
from raytwin.runtime.api.refs import ObjectRef, any_closed, counted_ref
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core.ids import ARRAY_BYTES, FIRST, object_id
from raytwin.runtime.control.messages import ResultRefs
from raytwin.runtime.session.wait_group import WaitGroup

GONE = "the cluster is gone: shut down"


class References(ClusterContext):
    """The references of one process: added, dropped, sent and received ones."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client
        self.client.references.collect = self.collect
        self.closed = False
        self._dropped: deque[bytes] = deque()
        self.uncounted = self._dropped
        """References that were dropped and that no call has counted yet."""
        self._unviewed: deque[bytes] = deque()
        self.received: deque[tuple[int, bytes]] = deque()
        """Threads, and arrays of references that they have unpickled just now."""
        self._inputs_done: deque[bytes] = deque()
        self.on_drop: Callable[[], None] | None = None
        """Called by whoever drops a reference, at any moment and on any thread."""
        self._group: WaitGroup | None = None
        """What was waited for last, and is left."""

    def ref_added(self, oid: bytes) -> None:
        with self.world:
            self.client.references.add_ref(oid)

    def ref_dropped(self, oid: bytes) -> None:
        self._dropped.append(oid)
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
        """An object's value was unpickled that had references inside."""
        with self.world:
            self.client.references.counter.came_in_value(oid[:ARRAY_BYTES], self._take_received())

    def came_in_arguments(self, task: bytes) -> None:
        """A task's arguments were unpickled, and references were inside."""
        with self.world:
            self.client.references.counter.came_in_arguments(task, self._take_received())

    def hand_over(self, array: bytes, contained: Sequence[ObjectRef]) -> ResultRefs:
        """References are inside a value of an array that goes to this node; in a turn."""
        arrays = [inside for inside in arrays_of(contained) if inside != array]
        return ResultRefs(
            (),
            self.client.references.counter.hand_over(arrays),
            self.client.references.counter.keeper,
        )

    def dumps(self, value: Any) -> bytes:
        """Serialize what nobody looks after: the references inside are pinned."""
        serialized = self.world.serialize(value)
        if serialized.contained:
            with self.world:
                for array in arrays_of(serialized.contained):
                    self.client.references.counter.pin(array)
        return serialized.to_bytes()

    def dumps_lasting(self, value: Any) -> bytes:
        """Serialize what is to outlive this process; the references inside are pinned.

        Raises ValueError if this process owns what one of them leads to, which ends with it.
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
        """Count what the garbage collector has dropped; call it within a turn."""
        if self._group is not None and self._group.abandoned():
            self._keep(None)
        dropped, unviewed = self._dropped, self._unviewed
        if dropped:
            self.client.references.drop_refs(dropped)
        while unviewed:
            self.client.pins.drop_view(unviewed.popleft())
        while self._inputs_done:
            self.client.buffer.unpin(self._inputs_done.popleft())

    def has_drops(self) -> bool:
        """Whether something is to be counted that no call has counted yet."""
        return bool(self._dropped or self._unviewed) or self._group is not None

    def tidy(self) -> None:
        """Count what was dropped, while the program makes no calls; in a turn.

        What is waited for is forgotten: it is cheap to remember only for a loop.
        """
        self._keep(None)
        self.collect()

    def _keep(self, group: WaitGroup | None) -> None:
        """Remember what is likely to be waited for next, in place of what was."""
        before, self._group = self._group, group if group else None
        if before is not None:
            before.dissolve()

    def _check_open(self, refs: Sequence[ObjectRef] = ()) -> None:
        """Raise RaySystemError if the cluster of this session or of a reference is gone."""
        if self.closed or (refs and any_closed(refs)):
            raise RaySystemError(GONE)

    def _refs_to(self, entry: Entry) -> list[ObjectRef]:
        """Return a reference to each value of a single task; call it in a turn."""
        entry.refs += entry.returns
        if entry.returns == 1:
            return [counted_ref(entry.array + FIRST, self)]
        return [counted_ref(object_id(entry.array, 0, ret), self) for ret in range(entry.returns)]


def arrays_of(refs: Sequence[ObjectRef]) -> tuple[bytes, ...]:
    """Return the arrays that references belong to, each once."""
    return tuple(dict.fromkeys(ref.binary()[:ARRAY_BYTES] for ref in refs))
