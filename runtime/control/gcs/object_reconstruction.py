"""Reconstruction: which lost elements run again, by which spec, and which cannot.

::

    lost, and a node waits ──> running? ──yes──> wait for it
             ↑                    │ no
             │               by its spec ──none, or no retries left──> lost for good
             │                    │
             └──its node dies── placed again ──> done ──> the waiting nodes are notified

An element is placed once at a time, however many nodes ask: `ArrayRow.resubmitted` has it until
its end. The GCS does not place the calls of an actor that is being rebuilt: the actor replays them.
What descends from these calls is placed without a node that waits (`follow_replays`).

A dead node may have sent a result to its owner, and not have reported it to the GCS. The owner has
released the inputs then, so that another run would fail. So the owner's node gets unfinished
elements with inputs first, as if it had accepted them: it reports those whose results it has, and
spills the others (`Submission.on_place`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import failed_result
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, object_id, split_object_id
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import needs_of, task_of
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done
from raytwin.runtime.control.gcs.array_store import LOST_S, ArrayStore, ObjectWaiters
from raytwin.runtime.control.gcs.event_log import Log
from raytwin.runtime.control.gcs.lineage import by_spec, refusal, resubmission
from raytwin.runtime.control.gcs.owner_lookup import OwnerLookup
from raytwin.runtime.control.messages import (
    DROPPED,
    NOWHERE,
    ForwardResults,
    Location,
    PlaceTasks,
    ResultsMissing,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import (
    Failure,
    Loss,
    LossCause,
    Refusal,
    WorkerCrash,
    brief,
)

UNREPORTED_TIMEOUTS = 2.0
"""How many heartbeat timeouts the GCS waits for an array that has no row: its owner's
node may be slow to report it, or may have died before it did."""


class ActorReplays(Protocol):
    """The queries of reconstruction to the actor table."""

    def replays(self, actor: bytes, call: bytes) -> bool:
        """Whether an actor is being rebuilt, and replays that call."""

    def may_replay(self, call: bytes) -> bool:
        """Whether any actor is being rebuilt that replays that call."""


class Reconstruction:
    """Places lost elements again, and notifies the nodes that wait for objects."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        store: ArrayStore,
        waiters: ObjectWaiters,
        actors: ActorReplays,
        log: Log,
    ) -> None:
        self._ctx = ctx
        self._store = store
        self._waiters = waiters
        self._actors = actors
        self._log = log
        self._lineage = store.lineage
        wait_s = max(LOST_S, UNREPORTED_TIMEOUTS * config.heartbeat_timeout_s)
        self.lookup = OwnerLookup(ctx, store.alive, wait_s, self._is_missing, self._has_no_owner)

    def reconstruct(self, array: bytes, row: ArrayRow, oids: Iterable[bytes]) -> None:
        """Reconstruct the objects that are lost and not under way; if that is impossible, notify
        the nodes that wait for them."""
        absent: dict[int, list[bytes]] = {}
        unreported = False
        if row.actor and self._actors.replays(row.actor, array):
            return
        for oid in oids:
            if row.is_unreported(oid, self._store.alive):
                unreported = True
                continue
            index = split_object_id(oid)[1]
            location = row.locate(oid, self._store.alive)
            there = location is not None and bool(location.nodes)
            if not there and not row.pending(index, self._store.alive):
                absent.setdefault(index, []).append(oid)
        if unreported:
            if not row.actor and self._actors.may_replay(array):
                self._ctx.after(LOST_S, partial(self._reconstruct_again, array))
            else:
                self.lookup.ask_all(array)
        for spec, start, count in by_spec(row, list(absent)):
            lost = next((done.lost for done in row.ended(start)), None)
            under_way = not row.released and not any(row.ended(0))
            if start >= STREAM_BASE and row.actor is not None and under_way:
                # Items arrive before their call is logged. The call still runs, or runs again: it
                # yields them again, or its end shows that it does not.
                continue
            if spec is None and not lost:
                if row.actor is None or not row.released:
                    continue  # its log entry is on its way
                if not row.actor and self._actors.may_replay(array):
                    self._ctx.after(LOST_S, partial(self._reconstruct_again, array))
                    continue
                lost = self._store.released.why(array)
            elif (
                lost is not None
                and lost.cause is LossCause.UNREPORTED
                and start < STREAM_BASE
                and not row.actor
                and self._actors.may_replay(array)
            ):
                # The owner's node does not know the actor that made it.
                self._ctx.after(LOST_S, partial(self._reconstruct_again, array))
                continue
            if lost is None and row.released:
                lost = self._store.released.why(array)
            lost = lost or Loss(LossCause.MAKER_DIED)
            why = refusal(row, spec, lost, row.was_freed(start))
            not_rerun = row.put or row.actor is not None
            orphaned = not row.owners and row.former and self._store.is_dead(row.former)
            if why is not None and not_rerun and orphaned:
                # A put or a call's result shares its owner's fate: the owner's node had the only
                # copy of a small value.
                why = Loss(LossCause.OWNER_DIED, refusal=why.refusal)
            ended = -1
            if start >= STREAM_BASE and row.actor is not None:
                # If the item's call has ended in an error, this explains the missing item.
                ended = row.end_of_task(start, self._store.alive)
            elif not why and row.not_yielded(start):
                assert spec is not None
                why = replace(lost, refusal=Refusal.NOT_YIELDED, task=spec.name)
                ended = row.end_of_task(start, self._store.alive)
            if not why:
                assert spec is not None
                if start < STREAM_BASE:
                    self._place(array, row, spec, start, count, brief(lost))
                elif not row.pending(start, self._store.alive):
                    self._place(array, row, spec, task_of(start), 1, brief(lost))
                continue
            name = spec.name if spec is not None else array.hex()
            self._log("object_lost", name, brief(why), count)
            for index in range(start, start + count):
                for oid in filter(self._waiters.has, absent[index]):
                    self._waiters.notify(Location(oid, (), 0, lost=why, ended=ended))

    def _place(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, detail: str,
        maybe_made: bool = False,
    ) -> None:  # fmt: skip
        """Send elements to the global scheduler to be placed again.

        `maybe_made`: their owner may have their results; see this module's docstring.
        """
        freed = row.was_freed(start)
        part = resubmission(spec, start, count, row.live_owner(self._store.alive), freed)
        made = any(row.ended(start))
        if row.resubmitted is None:
            row.resubmitted = Ranges()
        row.resubmitted.add(start, count)
        self._lineage.need(array, row)
        self._log("task_reconstructed" if made else "task_retried", spec.name, detail, count)
        home = node_of(part.owner)
        if maybe_made and needs_of(part) and home in self._store.alive:
            row.accept(part, home)
            self._ctx.send(f"node:{home}", PlaceTasks([part]))
        else:
            self._ctx.send("global", PlaceTasks([part]))

    def await_row(self, array: bytes) -> None:
        """A node waits for an array that has no row: look up its owner, at once or later."""
        if self._store.released.was_put(array):
            self.lookup.ask(array)
        elif array in self._store.released:
            self._ctx.after(LOST_S, partial(self.lookup.ask, array))
        else:
            self.lookup.watch([array])

    def _give_up(self, oids: list[bytes]) -> None:
        """Notify the waiting nodes that objects without a row are lost, unless an actor replays
        them."""
        for oid in oids:
            array = oid[:ARRAY_BYTES]
            if array not in self._store.rows and self._waiters.has(oid):
                # A replay keeps no value that its owner has released.
                if not self._store.released.by_owner(array) and self._actors.may_replay(array):
                    self._ctx.after(LOST_S, partial(self._give_up, [oid]))
                    continue
                why = self._store.released.loss_of(array)
                self._waiters.notify(Location(oid, (), 0, lost=why))

    def _is_missing(self, array: bytes) -> bool:
        """Whether a node waits for an array without a row, or for an item its row lacks."""
        row = self._store.rows.get(array)
        if row is None:
            return array in self._waiters.arrays
        return any(row.is_unreported(oid, self._store.alive) for oid in self._waiters.of(array))

    def _has_no_owner(self, array: bytes) -> None:
        """No living node will report the awaited array, or items of a call: they are lost."""
        row = self._store.rows.get(array)
        if row is None:
            self._give_up(self._waiters.of(array))
            return
        for oid in self._waiters.of(array):
            if row.is_unreported(oid, self._store.alive):
                unreported = Loss(LossCause.UNREPORTED)
                row.finish(Done(split_object_id(oid)[1], 1, NOWHERE, (), unreported))
                for node in row.owners:
                    row.copied(oid, node, DROPPED)  # a small one would have been reported
        self.reconstruct(array, row, self._waiters.of(array))

    def _reconstruct_again(self, array: bytes) -> None:
        row = self._store.rows.get(array)
        if row is not None:
            self.reconstruct(array, row, self._waiters.of(array))

    def reconstruct_calls_of(self, actor: bytes) -> None:
        """Look again for the awaited results of an actor's calls."""
        for array in list(self._waiters.arrays):
            row = self._store.rows.get(array)
            if row is not None and row.actor == actor:
                self.reconstruct(array, row, self._waiters.of(array))

    def follow_replays(self) -> None:
        """Reconstruct the lost values that descend from calls which actors replay now.

        Later nobody makes these calls' results again, so this does not wait for a client that
        needs the values: the results may have been released, or may be by then.
        """
        others: set[bytes] = set()
        for array, row in list(self._store.rows.items()):
            gone = [done for done in row.done if done.lost]
            if gone and row.owners and self._descends_from_replay(row, others):
                lost = [
                    object_id(array, index, 0)
                    for done in gone
                    for index in range(done.start, done.start + done.count)
                ]
                self.reconstruct(array, row, lost)

    def _descends_from_replay(self, row: ArrayRow, others: set[bytes]) -> bool:
        """Whether a call that an actor replays is among a row's inputs, or among theirs.

        `others` are arrays that are known to be no such call, nor to descend from one.
        """
        pending, seen = list(row.deps), set[bytes]()
        while pending:
            array = pending.pop()
            if array in others or array in seen:
                continue
            seen.add(array)
            source = self._store.rows.get(array)
            if source is not None and source.actor is None:
                pending += source.deps
            elif self._actors.may_replay(array):  # Its row may be in another shard.
                return True
        others |= seen
        return False

    def on_actor_settled(self, actor: bytes) -> None:
        """An actor is rebuilt, or dead: results that it has not made again are lost."""
        # Reports of its results may arrive after the report of the actor.
        self._ctx.after(LOST_S, partial(self.reconstruct_calls_of, actor))

    def rerun(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        reason: str,
    ) -> None:  # fmt: skip
        """Run a dead node's unfinished range again, if a client waits for its results."""
        if not self._store.is_dead(spec.owner):
            self.run_again(array, row, spec, start, count, owner, reason)
            return
        # The owner of this run has died. The array's present owner may have runs of its own.
        for index in range(start, start + count):
            made = any(not done.lost for done in row.ended(index))
            if not made and not row.pending(index, self._store.alive):
                self.run_again(array, row, spec, index, 1, owner, reason)

    def run_again(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        reason: str,
    ) -> None:  # fmt: skip
        lost = next((done.lost for done in row.ended(start)), None)
        died = Loss(LossCause.MAKER_DIED, detail=reason)
        why = refusal(row, spec, lost or died, row.was_freed(start))
        if why is None:
            detail = reason if lost is None else brief(lost)
            self._place(array, row, spec, start, count, detail, maybe_made=True)
        elif lost is not None or row.unreconstructable is not None:
            error = replace(why, task=spec.name)
            self._fail(array, row, spec, start, count, owner, error)
        else:
            crash = WorkerCrash(spec.name, detail=reason)
            self._fail(array, row, spec, start, count, owner, crash)

    def on_results_missing(self, source: str, message: ResultsMissing) -> None:
        """A node died while its clients' results were on their way from it."""
        for array, start, count in message.ranges:
            row = self._store.rows.get(array)
            owner = row.owners.get(message.node) if row is not None else None
            if row is None or owner is None or row.actor is not None:
                continue  # a call: its caller's node repeats it
            indices = {
                index
                for done in row.done
                if done.lost
                for index in range(
                    max(start, done.start), min(start + count, done.start + done.count)
                )
            }
            gone = [
                index
                for index in indices
                if all(done.lost for done in row.ended(index))
                and not row.pending(index, self._store.alive)
            ]
            for index in sorted(indices.difference(gone)):
                for done in row.ended(index):
                    if not done.lost and done.node in self._store.alive:
                        # It was made there too, for a former owner, who has died.
                        self._ctx.send(f"node:{done.node}", ForwardResults(array, index, 1, owner))
            for spec, first, length in by_spec(row, gone):
                lost = next(done.lost for done in row.ended(first))
                assert lost is not None
                why = refusal(row, spec, lost)
                if why is not None:
                    name = spec.name if spec is not None else array.hex()
                    returns = spec or TaskSpec(array, first, length, b"", b"", owner)
                    error = replace(why, task=name)
                    self._fail(array, row, returns, first, length, owner, error)
                else:
                    assert spec is not None
                    self._place(array, row, spec, first, length, brief(lost))

    def _fail(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        error: Failure,
    ) -> None:  # fmt: skip
        """Elements will never be made: send their owners an error in place of the value."""
        result = replace(failed_result(spec, error, -1), start=start, count=count)
        # The array's other owners may wait for the same run.
        others = (other for other in row.owners.values() if not self._store.is_dead(other))
        for each in dict.fromkeys((owner, *others)):
            self._ctx.send(f"node:{node_of(each)}", TaskResults(each, [result]))
        self._log("object_lost", spec.name, brief(error), count)
        row.finish(Done(start, count, node_of(owner), ()))
        self.on_made(array, row, start, count)

    def on_made(self, array: bytes, row: ArrayRow, start: int, count: int) -> None:
        """Elements have ended: notify the waiting nodes, free inputs that only they needed."""
        if row.resubmitted is not None:
            row.resubmitted.remove(start, count)
        waited = self._waiters.of(array)
        if waited:
            low, high = object_id(array, start, 0), object_id(array, start + count, 0)
            for oid in waited:
                if low <= oid < high:
                    location = row.locate(oid, self._store.alive)
                    if location is not None and location.nodes:
                        self._waiters.notify(location)
            if start == 0:
                # Items of a stream may have been lost while its task went on.
                items = [oid for oid in self._waiters.of(array) if _is_item(oid)]
                if items:
                    self.reconstruct(array, row, items)
        self.settle(array, row)
        if self._store.is_void(array, row):
            self._store.free_values(array, row, -1)

    def settle(self, array: bytes, row: ArrayRow) -> None:
        """If no element of an array is being reconstructed any more, its inputs are not needed."""
        if row.resubmitted is not None and not row.resubmitted.size:
            row.resubmitted = None
            needed = row.released and array in self._lineage.needed
            self.end_need(array, row, row.inner if needed else ())

    def end_need(self, array: bytes, row: ArrayRow, but: tuple[bytes, ...] = ()) -> None:
        for dep in self._lineage.end_need(array, row, but):
            self.unneeded(dep)

    def unneeded(self, array: bytes) -> None:
        """No array that is being reconstructed has the array as an input any more."""
        pending = [array]
        while pending:
            array = pending.pop()
            row = self._store.rows.get(array)
            if row is None:
                continue
            if row.released:
                self._store.free_values(array, row, -1)
            if row.inner and row.resubmitted is None:
                pending += self._lineage.end_need(array, row)


def _is_item(oid: bytes) -> bool:
    return split_object_id(oid)[1] >= STREAM_BASE
