"""The GCS's task and object tables at work: what it does with news and questions.

Nodes say what they accepted, ended, copied and released (`TaskUpdates`), and ask
where objects are (`LocateObjects`). Rows and their states are in `tables`; what is
made again, and what is kept for that, follows the rules in `lineage`. All that is
made again goes through `_place`:

* a run that a dead node had not ended, if its owner lives: ``task_retried``;
* an element whose values are lost, when somebody asks for it or waits for it:
  ``task_reconstructed``;
* an element whose result was on its way to its owner from a node that died
  (the owner's node says what it misses): ``task_reconstructed``.

An element is placed once at a time, whoever asks: `ArrayRow.again` has it until
it has ended.

Nodes release an array once its owner has let go. A run may still be outstanding
then: the *tombstone* of a dropped row waits for it, to free its values too. A row
that nobody owns, because its owner's node died, waits `ORPHANED_S` for the owner's
task to run again and claim it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from runtime.control.config import Config
from runtime.control.context import Context, incarnation_of, node_of
from runtime.control.flush import TaskHistory
from runtime.control.ids import ARRAY_BYTES, STREAM_BASE, job_of, object_id, split_object_id
from runtime.control.jobs import without_ended
from runtime.control.lineage import Lineage, by_recipe, placed_again, refusal
from runtime.control.lost import MADE_BY_ACTOR, OWNER_DIED, PUT, RELEASED
from runtime.control.messages import (
    SYSTEM_ERROR,
    ClaimTasks,
    ForwardResults,
    FreeObjects,
    LocateObjects,
    Location,
    NodeInfo,
    ObjectLocations,
    ObjectsMissing,
    PlaceTasks,
    RangeResult,
    ResultsMissing,
    TaskResults,
    TasksClaimed,
    TaskSpec,
    TaskUpdates,
)
from runtime.control.pubsub import PubSub
from runtime.control.ranges import Ranges
from runtime.control.ready_queue import part_of
from runtime.control.tables import ArrayRow, Done, attempt_of, needs_of, task_of
from runtime.control.unheard import Unheard

JOB_ENDED = "its job has ended"
RELEASED_MAX = 65_536
"""How many dropped rows are remembered, for messages that come late."""
LOST_S = 1.0
"""How long an array without a row is awaited: its owner's task may run again."""
UNHEARD_TIMEOUTS = 2.0
"""The same of one that was never heard of, in timeouts of heartbeats: its owner's node
may be slow to tell, or have died before it did."""
ORPHANED_S = 60.0
"""How long a row is kept that nobody owns: the same, on another node."""

Log = Callable[[str, str, str, int], None]
"""kind, subject, detail, how many"""


class ArrayTable:
    """The rows of all arrays that the GCS has heard of."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        nodes: Mapping[int, NodeInfo],
        alive: set[int],
        pubsub: PubSub,
        log: Log,
        history: TaskHistory | None = None,
    ) -> None:
        self.rows: dict[bytes, ArrayRow] = {}
        self.lineage = Lineage(config.lineage_bytes_max)
        self.tombstones: dict[bytes, dict[int, int]] = {}
        self.waited: dict[bytes, dict[bytes, None]] = {}
        """By array, the objects that somebody waits for."""
        self._released: dict[bytes, tuple[str, int, str]] = {}
        """The last dropped rows, oldest first: owner, if known, node that released it,
        and why it is lost for who asks."""
        self._early: dict[bytes, int] = {}
        """Arrays that were released before they were heard of, oldest first: by which node."""
        self._bereaved: dict[bytes, None] = {}
        """Released arrays whose owner has died, oldest first."""
        self.replays: Callable[[bytes, bytes], bool] = lambda actor, array: False
        """Whether an actor is being rebuilt, and makes that array again by it."""
        self.remakes: Callable[[bytes], bool] = lambda array: False
        """Whether any actor is being rebuilt that does."""
        self._ctx = ctx
        self._nodes = nodes
        self._alive = alive
        self._pubsub = pubsub
        self._log = log
        self._history = history
        self._ended: set[bytes] = set()
        """Jobs that are over: what still comes of them is ignored."""
        wait_s = max(LOST_S, UNHEARD_TIMEOUTS * config.heartbeat_timeout_s)
        self.unheard = Unheard(ctx, alive, wait_s, self._is_missing, self._has_no_owner)

    # -- news --------------------------------------------------------------------

    def on_updates(self, source: str, message: TaskUpdates) -> None:
        """A node's, or the global scheduler's, rows of the task and object tables."""
        node = message.node
        alive = node in self._alive and message.incarnation in (0, self._nodes[node].incarnation)
        if source == f"node:{node}" and not alive:
            return  # it was declared dead, and what it had is done elsewhere
        message = without_ended(message, self._ended)
        for spec in message.added:
            self._accept(spec, node, alive)
        for array, size in message.puts:
            row = self._row(array)
            row.put = True
            self._adopt(array, row, f"node:{node}")
            row.finish(Done(0, 1, node, (size,) if size else ()))
            self._on_made(array, row, 0, 1)
        late: set[bytes] = set()
        for array, owner, actor in message.calls:
            if self._is_late(array, owner):
                # Its owner had it and let go: an actor that is rebuilt has made it again.
                late.add(array)
                self._ctx.send(f"node:{node}", FreeObjects([array]))
                continue
            row = self._row(array)
            row.actor = actor
            self._adopt(array, row, owner)
        for array, start, count, sizes in message.done:
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
            self._on_made(array, row, start, count)
        for oid, size in message.copies:
            copied = self.rows.get(oid[:ARRAY_BYTES])
            if copied is None or self._is_void(oid[:ARRAY_BYTES], copied):
                # Released while the copy was on its way.
                self._ctx.send(f"node:{node}", FreeObjects([oid[:ARRAY_BYTES]]))
            else:
                copied.copied(oid, node, size)
        bereaved = frozenset(message.bereaved)
        for array in message.released:
            self._release(array, node, array in bereaved)
        for array in self.lineage.overweight():
            self._drop(array, -1)

    def _accept(self, spec: TaskSpec, node: int, alive: bool) -> None:
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
        if not attempt_of(spec) and not late:
            self._adopt(array, row, spec.owner)
        owner = row.live_owner(self._alive)
        if alive:
            row.accept(spec, node)
            if owner and owner != spec.owner and self._is_dead(spec.owner):
                heir = ForwardResults(array, spec.start, spec.count, owner)
                self._ctx.send(f"node:{node}", heir)
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

    def _adopt(self, array: bytes, row: ArrayRow, owner: str) -> None:
        """A client waits for the array's results, or has put it."""
        if row.released:
            row.released = False
            self._bereaved.pop(array, None)
            self.lineage.unkeep(array)
        node = node_of(owner)
        if not self._is_dead(owner):
            row.owners.pop(node, None)
            row.owners[node] = owner
        elif not row.owners:
            row.former = owner
            self._ctx.after(ORPHANED_S, partial(self._drop_orphans, [array]))

    def _on_made(self, array: bytes, row: ArrayRow, start: int, count: int) -> None:
        """Elements have ended: tell who waits, let go of what only they needed."""
        if row.again is not None:
            row.again.remove(start, count)
        waited = self._waited_for(array)
        if waited:
            low, high = object_id(array, start, 0), object_id(array, start + count, 0)
            for oid in waited:
                if low <= oid < high:
                    location = row.locate(oid, self._alive)
                    if location is not None and location.nodes:
                        self._tell(oid, location)
            if start == 0:
                # Items of a stream may have been lost while its task went on.
                items = [oid for oid in self._waited_for(array) if _is_item(oid)]
                if items:
                    self._seek(array, row, items)
        self._settle(array, row)
        if self._is_void(array, row):
            self._free_values(array, row, -1)

    def _settle(self, array: bytes, row: ArrayRow) -> None:
        """If nothing of it is being made again any more, its inputs are not needed."""
        if row.again is not None and not row.again.size:
            row.again = None
            self._unneed(array, row)

    def _unneed(self, array: bytes, row: ArrayRow) -> None:
        for dep in self.lineage.unneed(array, row):
            self.unneeded(dep)

    def unneeded(self, array: bytes) -> None:
        """Nothing that is being made again has the array as an input any more."""
        row = self.rows.get(array)
        if row is not None and row.released:
            self._free_values(array, row, -1)

    # -- the end of a job ----------------------------------------------------------

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

    # -- death -------------------------------------------------------------------

    def on_node_died(self, node: int, reason: str) -> None:
        """Place again what it had not ended; what it held is lost, if it was all there was."""
        for array in [a for a, left in self.tombstones.items() if node in left]:
            self._bury(array, node, self.tombstones[array][node])
        for oid in [oid for oids in self.waited.values() for oid in oids]:
            if not self._pubsub.has(oid):
                self._unwait(oid)  # only the dead node waited for it
        self.unheard.on_node_died(node)
        orphans = []
        why = f"the only copy was on node {node}, which died: {reason}"
        for array, row in list(self.rows.items()):
            unfinished = row.lose_node(node, why)
            if node in row.owners:
                row.former = row.owners.pop(node)
                if not row.owners:
                    orphans.append(array)
            owner = row.live_owner(self._alive)
            for spec, gaps in unfinished:
                for start, count in gaps:
                    if row.again is not None:
                        row.again.remove(start, count)
                    if owner:
                        self._rerun(array, row, spec, start, count, owner, reason)
            self._seek(array, row, self._waited_for(array))
            self._settle(array, row)
        if orphans:
            self._ctx.after(ORPHANED_S, partial(self._drop_orphans, orphans))

    def _rerun(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        reason: str,
    ) -> None:  # fmt: skip
        """Run a dead node's unfinished range again, if its results are waited for."""
        if not self._is_dead(spec.owner):
            self._run_again(array, row, spec, start, count, owner, reason)
            return
        # Its owner died. Who owns the array now may have runs of its own.
        for index in range(start, start + count):
            made = any(not done.lost for done in row.ended(index))
            if not made and not row.pending(index, self._alive):
                self._run_again(array, row, spec, index, 1, owner, reason)

    def _run_again(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        reason: str,
    ) -> None:  # fmt: skip
        lost = next((done.lost for done in row.ended(start)), "")
        if spec.retries:
            self._place(array, row, spec, start, count, lost or reason)
        elif lost:
            self._fail(
                array, row, spec, start, count, owner, _lost_text(spec.name, row, spec, lost)
            )
        else:
            text = f"WorkerCrashedError: the node that ran {spec.name} died: {reason}"
            self._fail(array, row, spec, start, count, owner, text)

    def on_results_missing(self, source: str, message: ResultsMissing) -> None:
        """A node died while its clients' results were on their way from it."""
        for array, start, count in message.ranges:
            row = self.rows.get(array)
            owner = row.owners.get(message.node) if row is not None else None
            if row is None or owner is None or row.actor is not None:
                continue  # a call: its caller's node asks the actor again
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
                and not row.pending(index, self._alive)
            ]
            for spec, first, length in by_recipe(row, gone):
                lost = next(done.lost for done in row.ended(first))
                why = refusal(row, spec, lost)
                if why:
                    name = spec.name if spec is not None else array.hex()
                    returns = spec or TaskSpec(array, first, length, b"", b"", owner)
                    text = _lost_text(name, row, spec, lost)
                    self._fail(array, row, returns, first, length, owner, text)
                else:
                    assert spec is not None
                    self._place(array, row, spec, first, length, lost)

    def on_objects_missing(self, source: str, message: ObjectsMissing) -> None:
        """A node does not have what the table says it has."""
        why = f"the only copy was on node {message.node}, which does not have it any more"
        if message.reason:
            why += f": {message.reason}"
        for oid in message.objects:
            row = self.rows.get(oid[:ARRAY_BYTES])
            if row is None:
                # Its node died before it said what it had made.
                self._released.setdefault(oid[:ARRAY_BYTES], ("", -1, why))
            elif message.node in self._alive:
                row.lose_object(oid, message.node, why)

    def _fail(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, owner: str,
        text: str,
    ) -> None:  # fmt: skip
        """Elements will never be made: their error is their value, at their owner."""
        node = node_of(owner)
        result = RangeResult(array, start, count, SYSTEM_ERROR, text.encode(), -1, spec.returns)
        self._ctx.send(f"node:{node}", TaskResults(owner, [result]))
        self._log("object_lost", spec.name, text, count)
        row.finish(Done(start, count, node, ()))
        self._on_made(array, row, start, count)

    # -- making again --------------------------------------------------------------

    def _seek(self, array: bytes, row: ArrayRow, oids: Iterable[bytes]) -> None:
        """Have those of the awaited objects made again that are lost and not under way."""
        absent: dict[int, list[bytes]] = {}
        if row.actor and self.replays(row.actor, array):
            return
        for oid in oids:
            index = split_object_id(oid)[1]
            location = row.locate(oid, self._alive)
            there = location is not None and bool(location.nodes)
            if not there and not row.pending(index, self._alive):
                absent.setdefault(index, []).append(oid)
        for spec, start, count in by_recipe(row, list(absent)):
            lost = next((done.lost for done in row.ended(start)), "")
            if spec is None and not lost:
                if not (row.actor and row.released):
                    continue  # its log entry is on its way
                lost = f"{MADE_BY_ACTOR}{self._why_released(array)}"
            lost = lost or "its owner and the node that was to make it died"
            why = refusal(row, spec, lost)
            if row.put and not row.owners and row.former and self._is_dead(row.former):
                why = f"{PUT}{OWNER_DIED}, and {lost}"
            if not why and row.unrepeated(start):
                assert spec is not None
                blame = self._lost_input(spec) or f"{spec.name} has not yielded it again"
                why = f"{lost}, and {blame}"
            if not why:
                assert spec is not None
                if start < STREAM_BASE:
                    self._place(array, row, spec, start, count, lost)
                elif not row.pending(start, self._alive):
                    self._place(array, row, spec, task_of(start), 1, lost)
                continue
            self._log("object_lost", spec.name if spec is not None else array.hex(), why, count)
            for index in range(start, start + count):
                for oid in absent[index]:
                    self._tell(oid, Location(oid, (), 0, lost=why))

    def _place(
        self, array: bytes, row: ArrayRow, spec: TaskSpec, start: int, count: int, detail: str
    ) -> None:
        """Have elements run again somewhere."""
        part = placed_again(spec, start, count, row.live_owner(self._alive))
        made = any(row.ended(start))
        if row.again is None:
            row.again = Ranges()
        row.again.add(start, count)
        self.lineage.need(array, row)
        self._log("task_reconstructed" if made else "task_retried", spec.name, detail, count)
        self._ctx.send("global", PlaceTasks([part]))

    def _lost_input(self, spec: TaskSpec) -> str:
        """Return which input of a task cannot be had any more, in words; "" if all can."""
        for need in needs_of(spec):
            array, index, _ = split_object_id(need)
            row = self.rows.get(array)
            if row is None:
                why = self._released[array][2] if array in self._released else ""
            else:
                at = row.locate(need, self._alive) if len(need) > ARRAY_BYTES else None
                lost = at.lost if at is not None else "nobody makes it"
                there = (at is not None and at.nodes) or row.pending(index, self._alive)
                why = "" if there else refusal(row, row.recipe(index), lost)
            if why:
                return f"its task needs {need.hex()}, which is lost: {why}"
        return ""

    def on_actor_settled(self, actor: bytes) -> None:
        """It is rebuilt, or dead: what it has not made again is lost."""
        # The news of what it made may come after those of itself.
        self._ctx.after(LOST_S, partial(self.seek_made_by, actor))

    def seek_made_by(self, actor: bytes) -> None:
        """Have made again what somebody waits for and an actor has made."""
        for array in list(self.waited):
            row = self.rows.get(array)
            if row is not None and row.actor == actor:
                self._seek(array, row, self._waited_for(array))

    def on_claim(self, source: str, message: ClaimTasks) -> None:
        """A task that was placed again submits: what is there is not made twice."""
        run: list[TaskSpec] = []
        for spec in message.tasks:
            if job_of(spec.array) in self._ended:
                continue
            row = self.rows.get(spec.array)
            if row is None or row.released:
                self._released.pop(spec.array, None)
                self._bereaved.pop(spec.array, None)
                if row is not None:
                    row.former = ""
                run.append(spec)
                continue
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

    # -- release -------------------------------------------------------------------

    def _release(self, array: bytes, node: int, died: bool) -> None:
        """An owner on that node has let go, or has died."""
        row = self.rows.get(array)
        if row is None:
            # A large result of an actor's call: the node that has it says so late.
            self._early[array] = node
            if len(self._early) > RELEASED_MAX:
                del self._early[next(iter(self._early))]
            if died:
                self._bereave(array)
        if row is None or row.released:
            return
        orphaned = row.actor is None and row.former and self._is_dead(row.former)
        if node not in row.owners and (orphaned or row.live_owner(self._alive)):
            # No owner there any more: what it has is for one who lives, or for the owner's
            # task when it has run again.
            return
        row.former = row.owners.pop(node, row.former)
        owner = row.live_owner(self._alive)
        if owner:
            # It has freed what it had, another owner has not, and may wait for it.
            for spec, gaps in row.forget_node(node):
                for index in [i for start, count in gaps for i in range(start, start + count)]:
                    made = any(not done.lost for done in row.ended(index))
                    if not made and not row.pending(index, self._alive):
                        why = "its first owner has let go of it"
                        self._run_again(array, row, spec, index, 1, owner, why)
            if node in row.asked:
                # It may have been asked for too late: the other owner's node knows.
                for done in row.done:
                    if done.lost:
                        heir = ForwardResults(array, done.start, done.count, owner)
                        self._ctx.send(f"node:{node_of(owner)}", heir)
        else:
            if died:
                self._bereave(array)
            self._let_go(array, row, node)

    def _bereave(self, array: bytes) -> None:
        """Whoever asks for the array is told that its owner has died."""
        self._bereaved[array] = None
        if len(self._bereaved) > RELEASED_MAX:
            del self._bereaved[next(iter(self._bereaved))]

    def _why_released(self, array: bytes) -> str:
        return OWNER_DIED if array in self._bereaved else RELEASED

    def _drop_orphans(self, arrays: list[bytes]) -> None:
        for array in arrays:
            row = self.rows.get(array)
            if row is not None and not row.released and not row.live_owner(self._alive):
                if row.former and self._is_dead(row.former):
                    self._bereave(array)
                self._let_go(array, row, -1)

    def overtaken(self, spec: TaskSpec) -> None:
        """A range comes that was placed: its owner's release may have come before it."""
        node = node_of(spec.owner)
        if spec.array not in self.rows and self._early.get(spec.array, -1) == node:
            del self._early[spec.array]
            self._released[spec.array] = (spec.owner, node, self._why_released(spec.array))

    def _let_go(self, array: bytes, row: ArrayRow, node: int) -> None:
        """Nobody owns the array: free its values, keep its specs if they may be needed."""
        row.owners = {}
        if self._history is not None and (row.accepted or row.lineage):
            self._history.add(array, row)
        if array not in self.lineage.uses or row.put:
            self._drop(array, node)
            return
        row.released = True
        if array not in self.lineage.needed:
            for oid in self._waited_for(array):
                self._tell(oid, Location(oid, (), 0, lost=self._why_released(array)))
            self._free_values(array, row, node)
        else:
            row.forget_node(node)
            self._seek(array, row, self._waited_for(array))
        self.lineage.keep(array, row)

    def _is_void(self, array: bytes, row: ArrayRow) -> bool:
        """Whether the row is kept for its specs alone."""
        return row.released and array not in self.lineage.needed

    def _free_values(self, array: bytes, row: ArrayRow, owner_node: int) -> None:
        holders = row.holders() - {owner_node}
        row.forget_values(self._alive, owner_node)
        for holder in sorted(holders & self._alive):
            self._ctx.send(f"node:{holder}", FreeObjects([array]))

    def drop(self, array: bytes) -> None:
        """Forget a row of which nothing is needed any more."""
        self._drop(array, -1)

    def _drop(self, array: bytes, node: int) -> None:
        """Forget a row, and every released one that was kept for it alone.

        The owner's own node has freed all it had, and says no more about it.
        """
        pending = [(array, node)]
        while pending:
            array, node = pending.pop()
            row = self.rows.pop(array, None)
            if row is None:
                continue
            self.lineage.unkeep(array)
            self._released.pop(array, None)
            why = self._why_released(array)
            if row.put:
                why = f"{PUT}{why}"
            elif array in self.lineage.uses:
                why += ", and the record of its task is gone"
            self._released[array] = (row.former, node, why)
            if len(self._released) > RELEASED_MAX:
                del self._released[next(iter(self._released))]
            for oid in self._waited_for(array):
                self._tell(oid, Location(oid, (), 0, lost=why))
            holders = row.holders() - {node}
            row.forget_values(self._alive, node)
            left = row.outstanding()
            if left:
                self.tombstones[array] = left
            for holder in sorted(holders):
                if holder in self._alive and holder not in left:
                    self._ctx.send(f"node:{holder}", FreeObjects([array]))
            self._unneed(array, row)
            for dep in row.deps:
                if self.lineage.unuse(array, dep):
                    freed = self.rows.get(dep)
                    if freed is not None and freed.released:
                        pending.append((dep, -1))

    def _bury(self, array: bytes, node: int, count: int) -> None:
        """An outstanding range of a dropped row has ended: free it there."""
        left = self.tombstones[array]
        left[node] = left.get(node, 0) - count
        if left[node] <= 0:
            del left[node]
            if node in self._alive and array not in self.rows:
                self._ctx.send(f"node:{node}", FreeObjects([array]))
        if not left:
            del self.tombstones[array]

    # -- questions -----------------------------------------------------------------

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
                self._await_row(array, oids)

    def _await_row(self, array: bytes, oids: list[bytes]) -> None:
        if array in self.lineage.needed or self._is_gone(array):
            self._ctx.after(LOST_S, partial(self._give_up, oids))
        else:
            self.unheard.watch([array])

    def _give_up(self, oids: list[bytes]) -> None:
        """Arrays that have no row have not been made again: tell who waits."""
        for oid in oids:
            array = oid[:ARRAY_BYTES]
            if array not in self.rows and oid in self.waited.get(array, ()):
                if self.remakes(array):
                    self._ctx.after(LOST_S, partial(self._give_up, [oid]))
                    continue
                found = self._released.get(array)
                why = self._why_released(array) if found is None else found[2]
                self._tell(oid, Location(oid, (), 0, lost=why))

    def _is_missing(self, array: bytes) -> bool:
        """Whether somebody waits for an array that has no row."""
        return array in self.waited and array not in self.rows

    def _has_no_owner(self, array: bytes) -> None:
        """No node knows an owner of an array that is awaited and has no row."""
        self._give_up(self._waited_for(array))

    def _waited_for(self, array: bytes) -> list[bytes]:
        return list(self.waited.get(array, ()))

    def _unwait(self, oid: bytes) -> None:
        array = oid[:ARRAY_BYTES]
        del self.waited[array][oid]
        if not self.waited[array]:
            del self.waited[array]

    def _tell(self, oid: bytes, location: Location) -> None:
        self._unwait(oid)
        for address in self._pubsub.close(oid):
            self._ctx.send(address, ObjectLocations([location]))

    def sizes(self) -> dict[str, int]:
        """Return how much is in the tables; orphans wait `ORPHANED_S` for a new owner."""
        orphans = sum(not row.released and not row.owners for row in self.rows.values())
        return {
            "arrays": len(self.rows) - orphans,
            "orphans": orphans,
            "awaited": len(self.waited),
            "unheard": len(self.unheard),
            "tombstones": len(self.tombstones),
        }

    # -- small things ----------------------------------------------------------------

    def _row(self, array: bytes) -> ArrayRow:
        row = self.rows.get(array)
        if row is None:
            row = self.rows[array] = ArrayRow()
        return row

    def _is_dead(self, client: str) -> bool:
        """Whether a client, or a node, was on an incarnation that is over."""
        info = self._nodes.get(node_of(client))
        if info is None or not info.alive:
            return info is not None
        return not client.startswith("node:") and incarnation_of(client) < info.incarnation

    def _was_released(self, array: bytes, by: str) -> bool:
        owner, node, _ = self._released.get(array, ("", -1, ""))
        return owner == by or (not owner and node == node_of(by))

    def _is_gone(self, array: bytes) -> bool:
        return array in self._released or array in self._early

    def _is_late(self, array: bytes, owner: str) -> bool:
        """Whether the owner of a call's large result has let go of it before."""
        row = self.rows.get(array)
        if row is not None:
            return row.released and row.former == owner
        return self._early.get(array, -1) == node_of(owner) or self._was_released(array, owner)


def _is_item(oid: bytes) -> bool:
    return split_object_id(oid)[1] >= STREAM_BASE


def _lost_text(name: str, row: ArrayRow, spec: TaskSpec | None, lost: str) -> str:
    return f"ObjectLostError: what {name} made is lost: {refusal(row, spec, lost)}"
