"""The GCS's task and object tables: updates by nodes, and their requests.

Nodes report ranges that they accepted and finished, copies, and releases (`TaskUpdates`), and ask
where objects are (`LocateObjects`). `array_store` has the rows and the waiting nodes;
`object_reconstruction` has these placed again:

* a run that a dead node had not ended, if its owner lives and has no result of it: event
  ``task_retried``;
* an element whose values are lost, once a node waits for it: ``task_reconstructed``;
* an element whose result was on its way to its owner from a node that died
  (the owner's node reports the gap): ``task_reconstructed``.

A node reports an array as released once its owner holds no reference. A run may still be
outstanding then: the *tombstone* of the dropped row waits for its end, to free its values too. A
row whose owner has died with its node is kept for `ORPHANED_S`: the owner's task may run again and
take it over. What still runs then is cancelled, at once if nothing of the dead node runs again.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from msgspec.structs import fields, replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import ARRAY_BYTES, ELEMENTS_MAX, STREAM_BASE, job_of
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import array_of, attempt_of, needs_of, part_of
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done, inside_of
from raytwin.runtime.control.gcs.array_store import ORPHANED_S, ArrayStore, ObjectWaiters
from raytwin.runtime.control.gcs.event_log import Log
from raytwin.runtime.control.gcs.object_reconstruction import ActorReplays, Reconstruction
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.messages import (
    NOWHERE,
    CancelTask,
    ClaimTasks,
    ForwardResults,
    LocateObjects,
    Location,
    Missing,
    ObjectLocations,
    ObjectsMissing,
    OwnersFound,
    SeekOwners,
    TasksClaimed,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal
from raytwin.runtime.control.ownership.owner_table import NOBODY

JOB_ENDED = Loss(LossCause.JOB_ENDED)

UPDATES = tuple(
    f.name for f in fields(TaskUpdates) if f.name not in ("node", "incarnation", "left")
)
"""The fields of `TaskUpdates` that are lists of rows."""

Ended = tuple[bytes, int, int, tuple[int, ...]]
"""array, start, count, sizes"""


class TaskObjectTable:
    """The task and object tables of the GCS, or of one shard of it."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        store: ArrayStore,
        pubsub: PubSub,
        actors: ActorReplays,
        log: Log,
        ended: Set[bytes],
        history: TaskHistory | None = None,
    ) -> None:
        """`ended`: the jobs that have ended; late updates about them are ignored.

        `history` keeps the rows of arrays that lose their last owner.
        """
        self.store = store
        self.waiters = ObjectWaiters(ctx, pubsub)
        self.reconstruction = Reconstruction(ctx, config, store, self.waiters, actors, log)
        self._ctx = ctx
        self._ended = ended
        self._history = history

    def sizes(self) -> dict[str, int]:
        """Return the number of rows in the tables; orphans wait `ORPHANED_S` for a new owner."""
        rows = self.store.rows
        orphans = sum(not row.released and not row.owners for row in rows.values())
        return {
            "arrays": len(rows) - orphans,
            "orphans": orphans,
            "awaited": len(self.waiters.arrays),
            "unheard": len(self.reconstruction.lookup),
            "tombstones": len(self.store.tombstones),
        }

    # -- updates ---------------------------------------------------------------

    def on_updates(self, source: str, message: TaskUpdates) -> None:
        """Enter rows that a node, or the global scheduler, reports."""
        node, store = message.node, self.store
        current = (0, store.incarnation(node)) if node in store.alive else ()
        alive = message.incarnation in current
        if source == f"node:{node}" and not alive:
            return  # it was declared dead, and its tasks run elsewhere
        if self._ended:
            message = self._without_ended(message)
        for spec in message.added:
            if source == "global" and not attempt_of(spec):
                store.released.placed(spec.array, spec.owner)
            moved = message.left >= 0 and self._leave(spec, message.left)
            self._accept(spec, node, alive, moved)
        for array, size in message.puts:
            row = store.row(array)
            row.put = True
            self.adopt(array, row, f"node:{node}")
            row.finish(Done(0, 1, node, (size,) if size else ()))
            self.reconstruction.on_made(array, row, 0, 1)
        late = self._add_calls(node, message.calls)
        for array, why in message.unreconstructable:
            if array in store.rows:
                store.rows[array].unreconstructable = why
        self._add_done(node, message.done, frozenset(message.with_references), late)
        for oid, size in message.copies:
            self._add_copy(node, oid, size)
        owner_died = frozenset(message.owner_died)
        for array in message.released:
            self.release(array, node, array in owner_died)
        for array in store.lineage.over_limit():
            self.drop(array, -1)

    def _without_ended(self, message: TaskUpdates) -> TaskUpdates:
        """Leave the rows of jobs that have ended out of a message.

        Copies stay in it: one that was on its way when the node dropped the job's values is freed.
        """
        rows = {
            name: [
                row for row in getattr(message, name) if job_of(array_of(row)) not in self._ended
            ]
            for name in UPDATES
            if name != "copies"
        }
        return replace(message, **rows)

    def _add_calls(self, node: int, calls: list[tuple[bytes, str, bytes]]) -> set[bytes]:
        """Give rows to actors' calls; return those whose owner has released them already."""
        late: set[bytes] = set()
        for array, owner, actor in calls:
            if owner == NOBODY or (
                self.store.was_released_by(array, owner) and not self.store.is_dead(owner)
            ):
                # A rebuilt actor has replayed the call. If the owner has died its task may run
                # again and ask for the result: then the row is kept.
                replayed = self.store.rows.get(array)
                if replayed is None or self.store.is_void(array, replayed):
                    late.add(array)
                    self.store.free_at(array, node)
                continue
            row = self.store.row(array)
            # The owner's node reports small items of a stream, and may not know the actor.
            row.actor = actor or row.actor or b""
            self.adopt(array, row, owner)
        return late

    def _add_done(
        self, node: int, done: list[Ended], with_references: frozenset[bytes], late: set[bytes]
    ) -> None:
        """Enter ranges that have ended; values in `with_references` contain references."""
        store = self.store
        for array, start, count, sizes in _items_first(done):
            if array in late:
                continue
            if array in store.tombstones:
                # The items of a stream are results, but their task goes on.
                if start < STREAM_BASE:
                    store.end_tombstone(array, node, count)
                if array not in store.rows:
                    continue
            if array not in store.rows:
                # The report of its acceptance is late, or its row was dropped too early.
                self._ctx.after(ORPHANED_S, partial(self.drop_orphans, [array]))
            row = store.row(array)
            row.finish(Done(start, count, node, sizes))
            if array in with_references:
                row.inner = inside_of(row)
            self.reconstruction.on_made(array, row, start, count)

    def _add_copy(self, node: int, oid: bytes, size: int) -> None:
        """Enter a copy of an object, or that a node has dropped its copy."""
        array = oid[:ARRAY_BYTES]
        row = self.store.rows.get(array)
        if row is None or self.store.is_void(array, row):
            # Released while the copy was on its way.
            self.store.free_at(array, node)
            return
        row.copied(oid, node, size)
        if self.waiters.has(oid):
            # Every other copy was lost when a node asked for the object.
            location = row.locate(oid, self.store.alive)
            if location is not None and location.nodes:
                self.waiters.notify(location)

    def _leave(self, spec: TaskSpec, node: int) -> bool:
        """A queued range has left a node; return whether the table knew that it was there."""
        array = spec.array
        row = self.store.rows.get(array)
        if row is not None and row.leave(spec, node):
            if node not in row.holders() and node not in row.owners and node in self.store.alive:
                self.store.free_at(array, node)
            return True
        if node in self.store.tombstones.get(array, ()):
            self.store.end_tombstone(array, node, spec.count)
        return False

    def _accept(self, spec: TaskSpec, node: int, alive: bool, moved: bool) -> None:
        """Enter a range that a node accepted; a dead node's runs again."""
        array = spec.array
        row = self.store.rows.get(array)
        released = self.store.released.was_released_by(array, spec.owner)
        if row is None and (attempt_of(spec) or released):
            # Resubmitted while its result was on its way: no owner waits for this run.
            if alive:
                left = self.store.tombstones.setdefault(array, {})
                left[node] = left.get(node, 0) + spec.count
            self.store.lineage.refuse(spec, ARRAY_BYTES)
            return
        row = self.store.row(array)
        if spec.deps or spec.extra is not None:
            self.store.lineage.use(array, row, needs_of(spec), ARRAY_BYTES)
        released = released or (row.released and spec.owner == row.former)
        if not attempt_of(spec) and not released and not moved:
            self.adopt(array, row, spec.owner)
        owner = self.store.owner_of(row)
        if attempt_of(spec):
            row.placed(spec)
        if alive:
            row.accept(spec, node)
            claimants = [owner] if owner and self.store.is_dead(spec.owner) else []
            if moved or attempt_of(spec):
                # The GCS forwarded the claim of a later owner to the range's former node; and it
                # resubmits a range for one owner, which may die before the others.
                claimants = list(row.owners.values())
            for claimant in claimants:
                if claimant != spec.owner:
                    asked = ForwardResults(array, spec.start, spec.count, claimant)
                    self._ctx.send(f"node:{node}", asked)
                    row.asked += (node,) if moved and node not in row.asked else ()
            return
        row.outdated(spec)
        row.lineage.append(spec)
        if row.resubmitted is not None:
            row.resubmitted.remove(spec.start, spec.count)
        if owner:
            reason = self.store.death_of(node)
            self.reconstruction.run_again(array, row, spec, spec.start, spec.count, owner, reason)
        self.reconstruction.reconstruct(array, row, self.waiters.of(array))
        self.reconstruction.settle(array, row)

    def end_job(self, job: bytes) -> None:
        """Forget all rows of a job that has ended; the nodes drop its values by themselves."""
        for array, row in [item for item in self.store.rows.items() if job_of(item[0]) == job]:
            if self._history is not None and (row.accepted or row.lineage):
                self._history.add(array, row)
            row.accepted, row.done, row.copies = [], [], {}
            if array in self.store.rows:
                self.drop(array, -1)
        for array in [array for array in self.waiters.arrays if job_of(array) == job]:
            self.waiters.notify_lost(array, JOB_ENDED)
        for array in [array for array in self.store.tombstones if job_of(array) == job]:
            del self.store.tombstones[array]
        self.store.released.end_job(job)

    def nodes_with(self, array: bytes) -> tuple[int, ...]:
        """Return the living nodes that may run elements of an array, or have an owner of it."""
        row = self.store.rows.get(array)
        nodes = dict.fromkeys(self.store.tombstones.get(array, ()))
        if row is not None:
            nodes.update(dict.fromkeys([*(node for _, node in row.accepted), *row.owners]))
        return tuple(node for node in nodes if node in self.store.alive)

    def on_node_died(self, node: int, reason: str, runs_again: bool = True) -> None:
        """Place the node's unfinished ranges again; the values that only it held are lost.

        `runs_again`: whether an actor of the node may restart. If none does, and no task of the
        node runs again, none will take over the tasks that its clients submitted.
        """
        for array in [a for a, left in self.store.tombstones.items() if node in left]:
            self.store.end_tombstone(array, node, self.store.tombstones[array][node])
        self.waiters.drop_unsubscribed()
        self.reconstruction.lookup.on_node_died(node)
        orphans = []
        lost: dict[int, list[bytes]] = {}
        """By owner's node: results of calls whose large values were on the dead node."""
        why = Loss(LossCause.NODE_DIED, node, reason)
        for array, row in list(self.store.rows.items()):
            unfinished = row.lose_node(node, why)
            if node in row.owners:
                row.former = row.owners.pop(node)
                if not row.owners:
                    orphans.append(array)
            if row.actor is not None and any(done.lost == why for done in row.done):
                for at in row.owners:
                    lost.setdefault(at, []).append(array)
            owner = self.store.owner_of(row)
            for spec, gaps in unfinished:
                runs_again = runs_again or (bool(owner) and spec.retries != 0)
                for start, count in gaps:
                    if row.resubmitted is not None:
                        row.resubmitted.remove(start, count)
                    if owner:
                        self.reconstruction.rerun(array, row, spec, start, count, owner, reason)
                    elif row.released:
                        why_not = Loss(LossCause.MAKER_DIED, node, reason)
                        row.finish(Done(start, count, node, (), why_not))
            self.reconstruction.reconstruct(array, row, self.waiters.of(array))
            self.reconstruction.settle(array, row)
        self.reconstruction.follow_replays()
        if not runs_again:
            rows = self.store.rows
            self.drop_orphans([a for a in orphans if a in rows and rows[a].outstanding()])
        if orphans:
            self._ctx.after(ORPHANED_S, partial(self.drop_orphans, orphans))
        for at, arrays in lost.items():
            # An actor rebuilt on the dead node may have replayed calls whose results their owners
            # had released before, and the node died before it could find that out.
            self._ctx.send(f"node:{at}", SeekOwners([], arrays))

    def on_owners_found(self, source: str, message: OwnersFound) -> None:
        """A node answers which arrays its clients own, and which they do not own any more."""
        for array, owner, sizes in message.kept:
            if job_of(array) in self._ended:
                continue
            row = self.store.rows.get(array)
            if row is None:
                self._add_partial_result(array, owner, sizes)
            elif not row.released and message.node not in row.owners:
                # The caller ran on another node first, which has reported the array, too.
                self.adopt(array, row, owner)
        for array in message.gone:
            self._note_gone(array, Loss(LossCause.UNREPORTED))
        # The owner's node has reported everything about an array that has a row.
        reported = [array for array in message.owned if array in self.store.rows]
        if reported:
            owned = [array for array in message.owned if array not in self.store.rows]
            message = replace(message, owned=owned, others=message.others + reported)
        self.reconstruction.lookup.on_found(source, message)
        for array in message.unowned:
            row = self.store.rows.get(array)
            if row is not None and all(done.lost for done in row.done):
                self.release(array, message.node, False)

    def _add_partial_result(self, array: bytes, owner: str, sizes: tuple[int, ...]) -> None:
        """Enter a call's results after the death of the node that should have reported them.

        The owner has the small values; the large ones are lost.
        """
        row = self.store.row(array)
        row.actor = b""
        self.adopt(array, row, owner)
        row.finish(Done(0, 1, NOWHERE, sizes, Loss(LossCause.UNREPORTED)))
        self.reconstruction.on_made(array, row, 0, 1)
        self.reconstruction.reconstruct(array, row, self.waiters.of(array))

    def _note_gone(self, array: bytes, why: Loss) -> None:
        """Note that a call's result is lost: its node died before it could report it.

        A task's array has a row before another node can know of it. A `get` of the lost result
        raises, as that of a dropped row does, unless an actor that is being rebuilt replays it.
        """
        if array not in self.store.rows:
            gone_on = replace(why, refusal=Refusal.ACTOR_WENT_ON)
            self.store.released.note_gone(array, gone_on)

    def on_objects_missing(self, source: str, message: ObjectsMissing) -> None:
        """A node lacks objects that the table has as its own."""
        died = message.why is Missing.NODE_DIED
        cause = LossCause.NODE_DIED if died else LossCause.COPY_MISSING
        why = Loss(cause, message.node, message.detail)
        for oid in message.objects:
            row = self.store.rows.get(oid[:ARRAY_BYTES])
            if row is None:
                self._note_gone(oid[:ARRAY_BYTES], why)
            elif message.node in self.store.alive:
                if message.why is Missing.INPUTS_MADE_AGAIN:
                    row.unreconstructable = None
                # An owner's node has the object until the owner releases it; the report of that
                # is on its way.
                freed = message.node in row.owners and message.why is Missing.ABSENT
                row.lose_object(oid, message.node, Loss(LossCause.FREED) if freed else why)

    def on_claim(self, source: str, message: ClaimTasks) -> None:
        """A task that runs again submits its children: those that exist do not run twice."""
        run: list[TaskSpec] = []
        for spec in message.tasks:
            if job_of(spec.array) in self._ended:
                continue
            self.store.released.claimed(spec.array, spec.owner)
            row = self.store.row(spec.array)
            if row.unreconstructable:
                # Its lost input has been put or submitted again by its owner's task.
                self.store.free_values(spec.array, row, -1)
            was_released = row.released
            # Before the claimed range is placed: its owner may release it earlier.
            self.adopt(spec.array, row, spec.owner)
            if was_released:
                run.append(spec)
                continue
            there = Ranges()
            end = spec.start + spec.count
            ranges = [(d.start, d.count, d.node) for d in row.done if not d.lost]
            ranges += [(s.start, s.count, at) for s, at in row.accepted]
            at_nodes: dict[int, None] = {}
            for start, count, node in ranges:
                if node in self.store.alive and start < end and spec.start < start + count:
                    there.add(start, count)
                    at_nodes[node] = None
            for start, count in row.resubmitted or ():
                there.add(start, count)
            claimant = ForwardResults(spec.array, spec.start, spec.count, spec.owner)
            for node in at_nodes:
                self._ctx.send(f"node:{node}", claimant)
            row.asked += tuple(node for node in at_nodes if node not in row.asked)
            gaps = there.missing(spec.start, spec.count)
            run += [part_of(spec, start, count) for start, count in gaps]
        if run:
            self._ctx.send(source, TasksClaimed(run))

    def on_locate(self, source: str, message: LocateObjects) -> None:
        """Answer where objects are; lost ones are reconstructed for nodes that subscribe."""
        found: list[Location] = []
        absent: dict[bytes, list[bytes]] = {}
        for oid in message.objects:
            array = oid[:ARRAY_BYTES]
            row = self.store.rows.get(array)
            location = row.locate(oid, self.store.alive) if row is not None else None
            if location is not None and (location.nodes or not message.subscribe):
                found.append(location)
            elif not message.subscribe:
                found.append(Location(oid, (), 0))
            elif job_of(array) in self._ended:
                found.append(Location(oid, (), 0, lost=JOB_ENDED))
            elif row is not None and self.store.is_void(array, row):
                found.append(Location(oid, (), 0, lost=self.store.released.why(array)))
            else:
                self.waiters.add(oid, source)
                absent.setdefault(array, []).append(oid)
        if found:
            self._ctx.send(source, ObjectLocations(found))
        for array, oids in absent.items():
            row = self.store.rows.get(array)
            if row is not None:
                self.reconstruction.reconstruct(array, row, oids)
            else:
                self.reconstruction.await_row(array)

    # -- owners of rows, and how rows end ----------------------------------------

    def adopt(self, array: bytes, row: ArrayRow, owner: str) -> None:
        """Make a client an owner: it waits for the array's results, or has put it."""
        row.unreconstructable = None  # its owner's task puts and submits its inputs again
        if row.released:
            row.released = False
            self.store.released.owned_again(array)
            self.store.lineage.end_keep(array)
        node = node_of(owner)
        if not self.store.is_dead(owner):
            row.owners.pop(node, None)
            row.owners[node] = owner
        elif not row.owners:
            row.former = owner
            self._ctx.after(ORPHANED_S, partial(self.drop_orphans, [array]))

    def release(self, array: bytes, node: int, died: bool) -> None:
        """An owner on that node has released the array, or has died."""
        row = self.store.rows.get(array)
        if row is None:
            # The array is a large result of an actor's call, not reported yet.
            self.store.released.release_early(array, node)
            if died:
                self.store.released.note_owner_died(array)
        if row is None or row.released:
            return
        orphaned = row.actor is None and row.former and self.store.is_dead(row.former)
        if node not in row.owners and (orphaned or row.live_owner(self.store.alive)):
            # The node has no owner any more. It keeps the values for a living owner, or for
            # the dead owner's task, which may run again.
            return
        row.former = row.owners.pop(node, row.former)
        owner = row.live_owner(self.store.alive)
        if owner:
            # The placement for the owner that has left may come after this.
            self.store.released.drop(array, row.former, node, self.store.released.why(array))
            # The node has freed its values, and another owner may wait for them.
            for spec, gaps in row.forget_node(node):
                for index in [i for start, count in gaps for i in range(start, start + count)]:
                    made = any(not done.lost for done in row.ended(index))
                    if not made and not row.pending(index, self.store.alive):
                        why = "its first owner has released it"
                        self.reconstruction.run_again(array, row, spec, index, 1, owner, why)
            if node in row.asked:
                # The node may have freed a result before it received the request to forward it;
                # the other owner's node knows whether the result has arrived.
                for done in row.done:
                    if done.lost:
                        claimant = ForwardResults(array, done.start, done.count, owner)
                        self._ctx.send(f"node:{node_of(owner)}", claimant)
        else:
            if died:
                self.store.released.note_owner_died(array)
            self._release_last(array, row, node)

    def drop_orphans(self, arrays: list[bytes]) -> None:
        """Release those of the arrays that have no living owner, and end their tasks."""
        for array in arrays:
            row = self.store.rows.get(array)
            if row is not None and not row.released and not row.live_owner(self.store.alive):
                if row.former and self.store.is_dead(row.former):
                    self.store.released.note_owner_died(array)
                self._release_last(array, row, -1)
                for node in self.nodes_with(array):
                    end = CancelTask(array, 0, ELEMENTS_MAX, True, False)
                    self._ctx.send(f"node:{node}", end)

    def _release_last(self, array: bytes, row: ArrayRow, node: int) -> None:
        """The last owner has released the array or died: free the values, keep needed specs."""
        row.owners = {}
        if self._history is not None and (row.accepted or row.lineage):
            self._history.add(array, row)
        if array not in self.store.lineage.uses or row.put:
            self.drop(array, node)
            return
        row.released = True
        if array not in self.store.lineage.needed:
            self.waiters.notify_lost(array, self.store.released.why(array))
            self.store.free_values(array, row, node)
        else:
            row.forget_node(node)
            self.store.lineage.hold(array, row.inner)
            self.reconstruction.reconstruct(array, row, self.waiters.of(array))
        self.store.lineage.keep(array, row)

    def drop(self, array: bytes, node: int) -> None:
        """Forget a row, and every released row that was kept only as its lineage.

        `node`: that of the last owner, which has freed its values itself; -1 for none.
        """
        pending = [(array, node)]
        while pending:
            array, node = pending.pop()
            row = self.store.rows.pop(array, None)
            if row is None:
                continue
            self.store.lineage.end_keep(array)
            why = self.store.released.why(array)
            if row.put:
                why = replace(why, refusal=Refusal.PUT)
            elif array in self.store.lineage.uses:
                why = replace(why, refusal=Refusal.NO_RECORD)
            # A later `get` raises the loss once no actor can replay the call: a checkpoint
            # contains it, or the actor is dead.
            later = why
            if row.actor is not None and not row.put:
                later = replace(why, refusal=Refusal.ACTOR_WENT_ON)
            self.store.released.drop(array, row.former, node, later)
            self.waiters.notify_lost(array, why)
            holders = row.holders() - {node}
            row.forget_values(self.store.alive, node)
            left = row.outstanding()
            if left:
                self.store.tombstones[array] = left
            for holder in sorted(holders):
                if holder in self.store.alive and holder not in left:
                    self.store.free_at(array, holder)
            self.reconstruction.end_need(array, row)
            for dep in row.deps:
                if self.store.lineage.end_use(array, dep):
                    freed = self.store.rows.get(dep)
                    if freed is not None and freed.released:
                        pending.append((dep, -1))


def _items_first(done: list[Ended]) -> list[Ended]:
    """Return the ranges that have ended, items of streams before the ends of their tasks.

    A task that has ended without an item will not yield it any more.
    """
    if any(start >= STREAM_BASE for _, start, _, _ in done):
        return sorted(done, key=lambda row: row[1] < STREAM_BASE)
    return done
