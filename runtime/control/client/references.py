"""The reasons to keep an array: references, unfinished tasks, and borrowers.

The owner releases an array when no `ObjectRef` to it is alive (`Entry.refs`), no unfinished
task has it as input and no value contains it (`Entry.holds`), its tasks have ended
(`Entry.missing`), and no other client has borrowed it (`Entry.borrowers`). For arrays of other
owners the client counts its own references, and deregisters as borrower (`ReferenceCounter`).

An actor that may restart keeps the inputs of its constructor and some of its calls', until its
node reports that it is dead for good, or its handles are gone (`Entry.kept`). A detached actor
outlives its handles: while it has inputs, its array is one of them, and so keeps itself. It
outlives its owner as well, whose values end with it: then it restarts without them, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from raytwin.runtime.control.client.direct_calls import DirectCalls
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages import ObjectValue
from raytwin.runtime.control.ownership.reference_counter import ReferenceCounter


class Pins:
    """The objects that the node has delivered to a client: large, borrowed or lost ones.

    The node pins a large object for the client to which it delivers the object. The client ends
    the pin when it releases the array, unless the program still has a **view**: a value that
    shares the arena's memory, or a `get` under way that awaits the object. Then the end of the
    last view ends the pin.
    """

    def __init__(self, buffer: SendBuffer) -> None:
        self._buffer = buffer
        self.objects: dict[bytes, ObjectValue] = {}
        self._views: dict[bytes, int] = {}
        """How many views each object has."""
        self._awaited: list[frozenset[bytes]] = []
        """The objects that each `get` under way awaits."""
        self._unpin_later: set[bytes] = set()
        """Pinned objects that are released and still have views."""

    def add(self, value: ObjectValue) -> None:
        """The node has delivered an object, and pinned a large one."""
        oid = value.object
        if value.size and oid in self._unpin_later:
            # The object is still pinned; one pin is enough.
            self._unpin_later.discard(oid)
            self._buffer.unpin(oid)
        self.objects[oid] = value

    def drop(self, oid: bytes) -> None:
        """Forget an object; its pin ends with its last view."""
        value = self.objects.pop(oid, None)
        if value is None or not value.size:
            return
        if self._in_view(oid):
            self._unpin_later.add(oid)
        else:
            self._buffer.unpin(oid)

    def drop_idle(self) -> list[bytes]:
        """Unpin and return the large objects without a view; a later `get` fetches them again."""
        idle = [oid for oid, value in self.objects.items() if value.size and not self._in_view(oid)]
        for oid in idle:
            self.drop(oid)
        return idle

    def add_view(self, oid: bytes) -> None:
        """A value shares the object's memory."""
        self._views[oid] = self._views.get(oid, 0) + 1

    def drop_view(self, oid: bytes) -> None:
        """A value that shared the object's memory was dropped."""
        self._views[oid] -= 1
        if not self._views[oid]:
            del self._views[oid]
            self._unpin_if_unseen(oid)

    def begin_get(self, oids: Iterable[bytes]) -> frozenset[bytes]:
        """A `get` awaits these objects: each has a view until `end_get`."""
        awaited = frozenset(oids)
        self._awaited.append(awaited)
        return awaited

    def end_get(self, awaited: frozenset[bytes]) -> None:
        """The `get` is over; the values that it returned have views of their own."""
        self._awaited.remove(awaited)
        for oid in awaited & self._unpin_later:
            self._unpin_if_unseen(oid)

    def _in_view(self, oid: bytes) -> bool:
        return oid in self._views or any(oid in awaited for awaited in self._awaited)

    def _unpin_if_unseen(self, oid: bytes) -> None:
        if oid in self._unpin_later and not self._in_view(oid):
            self._unpin_later.discard(oid)
            self._buffer.unpin(oid)


class References:
    """Counts one client's references, and releases arrays that nothing keeps."""

    def __init__(
        self,
        ctx: Context,
        address: str,
        node: str,
        entries: dict[bytes, Entry],
        pins: Pins,
        buffer: SendBuffer,
        direct: DirectCalls,
    ) -> None:
        """`entries` are the arrays that the client owns."""
        self._entries = entries
        self._pins = pins
        self._buffer = buffer
        self._direct = direct
        self.borrowed: dict[bytes, int] = {}
        """The number of live references to each object of other owners."""
        self.counter = ReferenceCounter(
            ctx, address, node, entries, self.end_hold, self._release_array
        )
        self.collect: Callable[[], None] = _nothing
        """Drops the references that the garbage collector has found since the last turn."""
        self.collect_cycles: Callable[[], None] = _nothing
        """Runs the garbage collector."""

    # -- ObjectRefs --------------------------------------------------------------

    def add_ref(self, oid: bytes) -> None:
        """The program has a new `ObjectRef` to the object."""
        entry = self._entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            entry.refs += 1
        else:
            self.borrowed[oid] = self.borrowed.get(oid, 0) + 1
            self.counter.add(oid[:ARRAY_BYTES])

    def drop_refs(self, oids: deque[bytes]) -> None:
        """Drop a reference to each of these objects, also to those added meanwhile."""
        entries = self._entries
        while oids:
            oid = oids.popleft()
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None:
                self.drop_ref(oid)
                continue
            entry.refs -= 1
            if not (entry.refs or entry.missing or entry.holds or entry.borrowers):
                self.release_if_free(entry)

    def drop_ref(self, oid: bytes) -> None:
        """The program has dropped an `ObjectRef` to the object."""
        entry = self._entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            entry.refs -= 1
            if not entry.refs:
                self.release_if_free(entry)
        elif oid in self.borrowed:
            self.borrowed[oid] -= 1
            if not self.borrowed[oid]:
                del self.borrowed[oid]
                self._pins.drop(oid)
            self.counter.drop(oid[:ARRAY_BYTES])

    def own(self, entry: Entry) -> Entry:
        """Begin to own an array; the client may have borrowed it before."""
        self._entries[entry.array] = entry
        if entry.array in self.counter.loans:
            mine = [oid for oid in self.borrowed if oid[:ARRAY_BYTES] == entry.array]
            refs = sum(self.borrowed.pop(oid) for oid in mine)
            entry.refs += refs
            entry.holds += self.counter.own(entry.array) - refs
            here = [oid for oid in mine if oid in self._pins.objects]
            entry.local = here if entry.local is None else entry.local + here
        return entry

    # -- inputs, and references inside of values ----------------------------------

    def hold(self, array: bytes) -> None:
        """Keep an array, own or borrowed, until `end_hold`."""
        held = self._entries.get(array)
        if held is not None:
            held.holds += 1
            if held.private:
                self._direct.publish(held)
        else:
            self.counter.add(array)

    def hold_inputs(self, entry: Entry, oids: tuple[bytes, ...]) -> None:
        """Keep the inputs of an array's tasks until these have ended."""
        entry.deps += oids
        for oid in oids:
            self.hold(oid[:ARRAY_BYTES])

    def hold_inputs_of_actor(self, entry: Entry, oids: tuple[bytes, ...], detached: bool) -> None:
        """Keep the inputs of an actor's constructor: see this module's docstring."""
        if oids:
            self.hold_inputs(entry, (*oids, entry.array) if detached else oids)

    def end_inputs(self, entry: Entry) -> None:
        """An array's tasks have ended: release their inputs, or keep them for an actor."""
        deps, entry.deps = entry.deps, ()
        for oid in deps:
            if entry.keeper and self._rebuilds_with(entry, oid):
                self._keep(entry.keeper, oid)
            elif oid == entry.array:
                entry.holds -= 1  # the caller releases the entry
            else:
                self.end_hold(oid)

    def _rebuilds_with(self, entry: Entry, oid: bytes) -> bool:
        """Whether the actor may be rebuilt with this input, and has no copy in its lineage."""
        if entry.array == entry.keeper:
            return True  # an input of the constructor, which is in no log
        array = oid[:ARRAY_BYTES]
        if array == entry.keeper:
            return False  # the actor itself
        held = self._entries.get(array)
        is_array = len(oid) == ARRAY_BYTES
        return is_array or (held is not None and not held.is_whole_in_messages(oid))

    def _keep(self, keeper: bytes, oid: bytes) -> None:
        """Keep an input as long as the actor that may be rebuilt with it."""
        actor = self._entries.get(keeper)
        if actor is None:
            # Another client owns the actor, and this one does not learn when it ends.
            self.counter.pin(oid[:ARRAY_BYTES])
            self.end_hold(oid)
            return
        if not actor.keeper:
            self.end_hold(oid)  # the actor is dead
            return
        if actor.kept is None:
            actor.kept = {}
        if oid in actor.kept:
            self.end_hold(oid)
        actor.kept[oid] = None

    def end_actor(self, actor: bytes) -> None:
        """Release what is kept for an actor that is dead for good, or was not created at all."""
        entry = self._entries.get(actor)
        if entry is None:
            return
        entry.keeper = b""
        entry.deps += tuple(entry.kept or ())
        entry.kept = None
        entry.holds += 1  # an input may be what keeps the actor
        self.end_inputs(entry)
        self._end_hold(entry)

    def end_hold(self, oid: bytes) -> None:
        """End one `hold` of an array, named by its ID or an object's."""
        held = self._entries.get(oid[:ARRAY_BYTES])
        if held is not None:
            self._end_hold(held)
        else:
            self.counter.drop(oid[:ARRAY_BYTES])

    def _end_hold(self, held: Entry) -> None:
        held.holds -= 1
        if not held.holds:
            self.release_if_free(held)

    # -- release -----------------------------------------------------------------

    def release_if_free(self, entry: Entry) -> None:
        """Release an array that nothing keeps."""
        if entry.refs or entry.missing or entry.holds or entry.borrowers:
            return
        del self._entries[entry.array]
        for oid in entry.local or ():
            self._pins.drop(oid)
        # Before the arrays inside its values: a borrower of the array needs them, too.
        if not entry.private:
            self._buffer.release(entry.array)
        if entry.deps or entry.kept:
            for oid in (*entry.deps, *(entry.kept or ())):
                self.end_hold(oid)
        if not entry.private:
            self._buffer.release_soon()

    def _release_array(self, array: bytes) -> None:
        entry = self._entries.get(array)
        if entry is not None:
            self.release_if_free(entry)

    def give_back(self) -> None:
        """Unpin large objects that the program does not read: the node's arena is full."""
        self.collect()
        for oid in self._pins.drop_idle():
            entry = self._entries.get(oid[:ARRAY_BYTES])
            if entry is not None:
                assert entry.local is not None
                entry.local.remove(oid)
        self._buffer.flush()


def _nothing() -> None:
    """Stand in for `References.collect` in a client without a garbage collector."""
