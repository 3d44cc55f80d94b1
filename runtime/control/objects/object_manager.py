"""The messages of clients, other nodes and the GCS about a node's objects.

::

    PutObjects ──────────> the client owns the value, and its node stores it
    WantObjects ─────────> ObjectsReady, when the value is here; a large one is pinned for
         │                 the client until Unpin
         └─ another job's: ObjectsReady at once, with an error
    RefUpdates ──────────> forwarded to the owner; if it is here, its array is lent
    PullObject ──────────> ObjectPayload to another node, when the value or an error is here
    ObjectPayload ───────> to clients that wait for it, and to the owner, if it is here
    ObjectLocations ─────> the places to pull objects from
    SeekOwners ──────────> OwnersFound: the arrays whose results clients here await
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.messages import (
    ObjectLocations,
    ObjectPayload,
    ObjectsReady,
    ObjectValue,
    OwnersFound,
    PullObject,
    PutObjects,
    RefUpdates,
    SeekOwners,
    TaskResults,
    Unpin,
    WantObjects,
)
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.ownership.contained_references import ContainedReferences


class ObjectManager:
    """Serves the objects of one node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        objects: NodeObjects,
        log: GcsWriteLog,
        contained_references: ContainedReferences,
        lives: Callable[[str], bool],
    ) -> None:
        """`lives` returns whether a client of this node lives."""
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._log = log
        self._contained_references = contained_references
        self._lives = lives

    def handlers(self) -> Handlers:
        return {
            PutObjects: self.on_put,
            WantObjects: self.on_want,
            Unpin: self.on_unpin,
            RefUpdates: self._contained_references.on_updates,
            PullObject: self.on_pull,
            ObjectPayload: self.on_payload,
            ObjectLocations: self.on_locations,
            SeekOwners: self.on_seek_owners,
        }

    # -- clients -----------------------------------------------------------------

    def on_put(self, source: str, message: PutObjects) -> None:
        """A client puts values."""
        for result in message.results:
            self._objects.owners.own(result.array, source)
            self._objects.memory.seal(result)
            if result.refs is not None:
                self._contained_references.reported(source, result)
                self._contained_references.keep(result)
            self._objects.add(result)
            self._log.put(result.array, sum(result.sizes))

    def on_want(self, source: str, message: WantObjects) -> None:
        """A client waits for values."""

        def arrived(value: ObjectValue) -> None:
            if self._lives(source):
                if value.size:
                    self._objects.memory.pin(value.object, source)
                self._ctx.send(source, ObjectsReady([value]))

        for oid in message.objects:
            self._objects.pulls.want(oid, arrived)

    def on_unpin(self, source: str, message: Unpin) -> None:
        """A client ends its pins of objects."""
        for oid in message.objects:
            self._objects.memory.unpin(oid, source)

    # -- other nodes, and the GCS --------------------------------------------------

    def on_pull(self, source: str, message: PullObject) -> None:
        """Another node needs a value."""
        oid = message.object

        def push() -> None:
            found = self._objects.results.small(oid) or self._objects.results.end_instead_of(oid)
            self._ctx.send(source, ObjectPayload(oid, found))

        if self._objects.is_expected(oid) and self._objects.results.end_instead_of(oid) is None:
            self._objects.pulls.want(oid, lambda _: push())
        else:
            push()

    def on_payload(self, source: str, message: ObjectPayload) -> None:
        """Another node has sent a value that was pulled."""
        came = message.result
        # The node has delivered a value that is no longer wanted to its owner before.
        if not self._objects.on_payload(message) or came is None:
            return
        if came.array in self._objects.owners:
            copies = self._objects.copies(came.array, came.start, came.count)
            for owner in self._objects.owners.owners_of(came.array) if copies else ():
                self._ctx.send(owner, TaskResults(owner, copies))

    def on_locations(self, source: str, message: ObjectLocations) -> None:
        """The GCS names the nodes that have wanted objects."""
        for location in message.locations:
            self._objects.pulls.on_location(location)

    def on_seek_owners(self, source: str, message: SeekOwners) -> None:
        """The GCS asks for the arrays whose results clients here await or have lost."""
        if message.arrays:
            self._log.flush()  # rows of these arrays go before the reply
        owned: list[bytes] = []
        others: list[bytes] = []
        for array in message.arrays:
            (owned if self._objects.will_report(array) else others).append(array)
        released = []
        for array in message.lost:
            if array in self._objects.owners:
                # The GCS has a row of the array, though its result may not have arrived here.
                self._log.made_elsewhere(array)
            else:
                released.append(array)
        if owned or others or released:
            gone = [array for array in others if self._objects.has_lost(array)]
            kept = [
                (array, self._objects.owners[array] or f"node:{self._node}", sizes)
                for array in gone
                if (sizes := self._objects.results.sizes_kept(array))
            ]
            for array, _, _ in kept:
                self._log.made_elsewhere(array)  # this answer adds a row at the GCS
            self._ctx.send("gcs", OwnersFound(self._node, owned, others, released, gone, kept))
