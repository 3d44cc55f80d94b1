"""The GCS's task and object tables at work: what it does with news and questions.

Nodes say what they accepted, ended, copied and released (`TaskUpdates`), and ask
where objects are (`LocateObjects`). Rows and their states are in `tables`; what is
made again, and what is kept for that, follows the rules in `lineage`. All that is
made again goes through `_place`:

* a run that a dead node had not ended, and maybe not begun, if its owner lives:
  ``task_retried``;
* an element whose values are lost, when somebody asks for it or waits for it:
  ``task_reconstructed``;
* an element whose result was on its way to its owner from a node that died
  (the owner's node says what it misses): ``task_reconstructed``.

What is lost is made again as `remaking` says, what is let go of ends as `releasing` says.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, job_of
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import attempt_of, needs_of, part_of
from raytwin.runtime.control.gcs.array_row import JOB_ENDED, LOST_S, ORPHANED_S
from raytwin.runtime.control.gcs.job_table import without_ended
from raytwin.runtime.control.gcs.row_release import Releasing
from raytwin.runtime.control.gcs.task_object_table import Done, inside_of
from raytwin.runtime.control.messages import (
    NOWHERE,
    ClaimTasks,
    ForwardResults,
    FreeObjects,
    LocateObjects,
    Location,
    ObjectLocations,
    ObjectsMissing,
    OwnersFound,
    SeekOwners,
    TasksClaimed,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Unmade

Ended = tuple[bytes, int, int, tuple[int, ...]]
"""array, start, count, sizes"""


class ArrayTable(Releasing):
    """The tables: news and questions."""

    def on_updates(self, source: str, message: TaskUpdates) -> None:
        """A node's, or the global scheduler's, rows of the task and object tables."""
        node = message.node
        alive = node in self._alive and message.incarnation in (0, self._nodes[node].incarnation)
        if source == f"node:{node}" and not alive:
            return  # it was declared dead, and what it had is done elsewhere
        message = without_ended(message, self._ended)
        for spec in message.added:
            moved = message.left >= 0 and self._leave(spec, message.left)
            self._accept(spec, node, alive, moved)
        for array, size in message.puts:
            row = self._row(array)
            row.put = True
            self._adopt(array, row, f"node:{node}")
            row.finish(Done(0, 1, node, (size,) if size else ()))
            self._on_made(array, row, 0, 1)
        late: set[bytes] = set()
        for array, owner, actor in message.calls:
            if self._is_late(array, owner) and not self._is_dead(owner):
                # Its owner had it and let go: an actor that is rebuilt has made it again.
                # Where the owner has died since, its task may run again and ask for it.
                late.add(array)
                self._ctx.send(f"node:{node}", FreeObjects([array]))
                continue
            row = self._row(array)
            # Small items of a stream its owner's node tells of, which need not know who made them.
            row.actor = actor or row.actor or b""
            self._adopt(array, row, owner)
        for array, why in message.barren:
            if array in self.rows:
                self.rows[array].barren = why
        holding = frozenset(message.holding)
        for array, start, count, sizes in _items_first(message.done):
            if array in late:
                continue
            if array in self.tombstones:
                # The items of a stream are results, but their task goes on.
                if start < STREAM_BASE:
                    self._bury(array, node, count)
                if array not in self.rows:
                    continue
            if array not in self.rows:
                # Its log entry is late, or its row was dropped before its time.
                self._ctx.after(ORPHANED_S, partial(self._drop_orphans, [array]))
            row = self._row(array)
            row.finish(Done(start, count, node, sizes))
            if array in holding:
                row.inner = inside_of(row)
            self._on_made(array, row, start, count)
        for oid, size in message.copies:
            copied = self.rows.get(oid[:ARRAY_BYTES])
            if copied is None or self._is_void(oid[:ARRAY_BYTES], copied):
                # Released while the copy was on its way.
                self._ctx.send(f"node:{node}", FreeObjects([oid[:ARRAY_BYTES]]))
            else:
                copied.copied(oid, node, size)
                if oid in self.waited.get(oid[:ARRAY_BYTES], ()):
                    # All others were lost when it was asked for.
                    location = copied.locate(oid, self._alive)
                    if location is not None and location.nodes:
                        self._tell(oid, location)
        bereaved = frozenset(message.bereaved)
        for array in message.released:
            self._release(array, node, array in bereaved)
        for array in message.handed:
            self._hand_over(array, node)
        for array in self.lineage.overweight():
            self._drop(array, -1)

    def _leave(self, spec: TaskSpec, node: int) -> bool:
        """A range has left a node where it waited; return whether it was known to be there."""
        array = spec.array
        row = self.rows.get(array)
        if row is not None and row.leave(spec, node):
            if node not in row.holders() and node not in row.owners and node in self._alive:
                self._ctx.send(f"node:{node}", FreeObjects([array]))
            return True
        if node in self.tombstones.get(array, ()):
            self._bury(array, node, spec.count)
        return False

    def _accept(self, spec: TaskSpec, node: int, alive: bool, moved: bool = False) -> None:
        array = spec.array
        row = self.rows.get(array)
        if row is None and (attempt_of(spec) or self._was_released(spec.array, spec.owner)):
            # Placed again while its result was on its way: nobody waits for this run.
            if alive:
                left = self.tombstones.setdefault(array, {})
                left[node] = left.get(node, 0) + spec.count
            self.lineage.refuse(spec, ARRAY_BYTES)
            return
        row = self._row(array)
        if spec.deps or spec.extra is not None:
            self.lineage.use(array, row, needs_of(spec), ARRAY_BYTES)
        late = row.released and spec.owner == row.former
        if not attempt_of(spec) and not late and not moved:
            self._adopt(array, row, spec.owner)
        owner = self._owner_left(row)
        if alive:
            row.accept(spec, node)
            heirs = [owner] if owner and self._is_dead(spec.owner) else []
            if moved or attempt_of(spec):
                # Who has claimed it since had asked the node where it was; and what is placed
                # again is so for one owner, who may die before the others.
                heirs = list(row.owners.values())
            for heir in heirs:
                if heir != spec.owner:
                    asked = ForwardResults(array, spec.start, spec.count, heir)
                    self._ctx.send(f"node:{node}", asked)
                    row.asked += (node,) if moved and node not in row.asked else ()
            return
        row.outdated(spec)
        row.lineage.append(spec)
        if row.again is not None:
            row.again.remove(spec.start, spec.count)
        reason = self._nodes[node].reason if node in self._nodes else "it never joined"
        if owner:
            self._run_again(array, row, spec, spec.start, spec.count, owner, reason)
        self._seek(array, row, self._waited_for(array))
        self._settle(array, row)

    def end_job(self, job: bytes) -> None:
        """Forget all rows of a job, whose values the nodes drop by themselves."""
        self._ended.add(job)
        for array, row in [item for item in self.rows.items() if job_of(item[0]) == job]:
            if self._history is not None and (row.accepted or row.lineage):
                self._history.add(array, row)
            row.accepted, row.done, row.copies = [], [], {}
            if array in self.rows:
                self._drop(array, -1)
        for array in [array for array in self.waited if job_of(array) == job]:
            for oid in self._waited_for(array):
                self._tell(oid, Location(oid, (), 0, lost=JOB_ENDED))
        for table in (self.tombstones, self._released, self._early):
            for array in [array for array in table if job_of(array) == job]:
                del table[array]

    def on_node_died(self, node: int, reason: str) -> None:
        """Place again what it had not ended; what it held is lost, if it was all there was."""
        for array in [a for a, left in self.tombstones.items() if node in left]:
            self._bury(array, node, self.tombstones[array][node])
        for oid in [oid for oids in self.waited.values() for oid in oids]:
            if not self._pubsub.has(oid):
                self._unwait(oid)  # only the dead node waited for it
        self.unheard.on_node_died(node)
        orphans = []
        lost: dict[int, list[bytes]] = {}
        """By their owners' nodes: what calls have made."""
        why = Loss(LossCause.NODE_DIED, node, reason)
        for array, row in list(self.rows.items()):
            unfinished = row.lose_node(node, why)
            if node in row.owners:
                row.former = row.owners.pop(node)
                if not row.owners:
                    orphans.append(array)
            if row.actor is not None and any(done.lost == why for done in row.done):
                for at in row.owners:
                    lost.setdefault(at, []).append(array)
            owner = self._owner_left(row)
            for spec, gaps in unfinished:
                for start, count in gaps:
                    if row.again is not None:
                        row.again.remove(start, count)
                    if owner:
                        self._rerun(array, row, spec, start, count, owner, reason)
                    elif row.released:
                        why_not = Loss(LossCause.MAKER_DIED, node, reason)
                        row.finish(Done(start, count, node, (), why_not))
            self._seek(array, row, self._waited_for(array))
            self._settle(array, row)
        if orphans:
            self._ctx.after(ORPHANED_S, partial(self._drop_orphans, orphans))
        for at, arrays in lost.items():
            # An actor that was rebuilt there may have made again what its owner had let go of
            # before, and died on its way what would have told the owner's node.
            self._ctx.send(f"node:{at}", SeekOwners([], arrays))

    def on_owners_found(self, source: str, message: OwnersFound) -> None:
        """A node says which arrays are its clients', and which are not any more."""
        for array, owner, sizes in message.kept:
            if job_of(array) in self._ended:
                continue
            row = self.rows.get(array)
            if row is None:
                self._made_in_part(array, owner, sizes)
            elif not row.released and message.node not in row.owners:
                # Another node has said so before, where its caller ran at first.
                self._adopt(array, row, owner)
        for array in message.gone:
            self._made_unheard(array, Loss(LossCause.UNTOLD))
        # Of what has a row its owner has told all there is to tell.
        told = [array for array in message.owned if array in self.rows]
        if told:
            owned = [array for array in message.owned if array not in self.rows]
            message = replace(message, owned=owned, others=message.others + told)
        self.unheard.on_found(source, message)
        for array in message.let_go:
            row = self.rows.get(array)
            if row is not None and all(done.lost for done in row.done):
                self._release(array, message.node, False)

    def _made_in_part(self, array: bytes, owner: str, sizes: tuple[int, ...]) -> None:
        """What a call made was large and small, and the node died that should have said so.

        The small values are where its owner is, the large ones nowhere.
        """
        row = self._row(array)
        row.actor = b""
        self._adopt(array, row, owner)
        row.finish(Done(0, 1, NOWHERE, sizes, Loss(LossCause.UNTOLD)))
        self._on_made(array, row, 0, 1)
        self._seek(array, row, self._waited_for(array))

    def _made_unheard(self, array: bytes, why: Loss) -> None:
        """What was made is gone, and there is no row of it.

        A call's, whose node died before it said what it had made: a task's has a row before it
        ends where somebody else can hear of it. Who asks is told, as of a row that was dropped,
        when no actor is being rebuilt that makes it again.
        """
        if array not in self.rows:
            gone_on = replace(why, unmade=Unmade.ACTOR_WENT_ON)
            self._released.setdefault(array, ("", -1, gone_on))

    def on_objects_missing(self, source: str, message: ObjectsMissing) -> None:
        """A node does not have what the table says it has."""
        why = Loss(LossCause.COPY_MISSING, message.node, message.reason)
        for oid in message.objects:
            row = self.rows.get(oid[:ARRAY_BYTES])
            if row is None:
                self._made_unheard(oid[:ARRAY_BYTES], why)
            elif message.node in self._alive:
                # An owner's node has it until that lets go, of which we are yet to hear.
                let_go = message.node in row.owners and not message.reason
                row.lose_object(oid, message.node, Loss(LossCause.LET_GO) if let_go else why)

    def on_claim(self, source: str, message: ClaimTasks) -> None:
        """A task that was placed again submits: what is there is not made twice."""
        run: list[TaskSpec] = []
        for spec in message.tasks:
            if job_of(spec.array) in self._ended:
                continue
            row = self.rows.get(spec.array)
            if row is None or row.released:
                # An earlier owner on this node let go of it; the new one has not.
                self._early.pop(spec.array, None)
                self._released.pop(spec.array, None)
                self._bereaved.pop(spec.array, None)
                if row is not None:
                    row.former = ""
                run.append(spec)
                continue
            if row.barren:
                # It lacked an input, which its owner's task has put or made again by now.
                self._free_values(spec.array, row, -1)
            self._adopt(spec.array, row, spec.owner)
            there = Ranges()
            end = spec.start + spec.count
            ranges = [(d.start, d.count, d.node) for d in row.done if not d.lost]
            ranges += [(s.start, s.count, at) for s, at in row.accepted]
            at_nodes: dict[int, None] = {}
            for start, count, node in ranges:
                if node in self._alive and start < end and spec.start < start + count:
                    there.add(start, count)
                    at_nodes[node] = None
            for start, count in row.again or ():
                there.add(start, count)
            heir = ForwardResults(spec.array, spec.start, spec.count, spec.owner)
            for node in at_nodes:
                self._ctx.send(f"node:{node}", heir)
            row.asked += tuple(node for node in at_nodes if node not in row.asked)
            gaps = there.missing(spec.start, spec.count)
            run += [part_of(spec, start, count) for start, count in gaps]
        if run:
            self._ctx.send(source, TasksClaimed(run))

    def on_locate(self, source: str, message: LocateObjects) -> None:
        """Say where objects are; what is lost is made again for those who wait."""
        found: list[Location] = []
        absent: dict[bytes, list[bytes]] = {}
        for oid in message.objects:
            array = oid[:ARRAY_BYTES]
            row = self.rows.get(array)
            location = row.locate(oid, self._alive) if row is not None else None
            if location is not None and (location.nodes or not message.subscribe):
                found.append(location)
            elif not message.subscribe:
                found.append(Location(oid, (), 0))
            elif job_of(array) in self._ended:
                found.append(Location(oid, (), 0, lost=JOB_ENDED))
            elif row is not None and self._is_void(array, row):
                found.append(Location(oid, (), 0, lost=self._why_released(array)))
            else:
                self._pubsub.subscribe(oid, source)
                self.waited.setdefault(array, {})[oid] = None
                absent.setdefault(array, []).append(oid)
        if found:
            self._ctx.send(source, ObjectLocations(found))
        for array, oids in absent.items():
            row = self.rows.get(array)
            if row is not None:
                self._seek(array, row, oids)
            else:
                self._await_row(array)

    def _await_row(self, array: bytes) -> None:
        if self._was_put(array):
            self.unheard.ask(array)
        elif self._is_gone(array):
            self._ctx.after(LOST_S, partial(self.unheard.ask, array))
        else:
            self.unheard.watch([array])


def _items_first(done: list[Ended]) -> list[Ended]:
    """Return what has ended, the items of streams before the ends of their tasks.

    A task that has ended without an item will not yield it any more.
    """
    if any(start >= STREAM_BASE for _, start, _, _ in done):
        return sorted(done, key=lambda row: row[1] < STREAM_BASE)
    return done
