"""The global control store: the cluster's tables, and who is told of changes.

========== ==================================== ============================
table      row                                  told
========== ==================================== ============================
node       NodeInfo, by number                  every node, global scheduler
function   serialized function, by ID           who has asked for it
actor      `actor_table.ActorRow`, by ID        the nodes of its callers
task,      one `ArrayRow` per array             who has asked where an
object                                          object is
event log  what happened to the cluster         --
key-value  what users put, see `kv`             who has asked
history    finished tasks, see `flush`          who has asked
========== ==================================== ============================

The life of a node in its table::

    RegisterNode ──> ALIVE ──NodeUnreachable, or silent too long──> DEAD
                       ↑                                             │
                       └────RegisterNode with a later incarnation────┘

When a node dies, every range that it had accepted and not finished is placed
again (one retry less), every value that only it held is lost, and all are told.
An incarnation that is declared dead stays so: if it was merely slow, it is told by
the answer to its next heartbeat and leaves, and what it says meanwhile is ignored.

Nodes release an array once its owner has let go. A result may still be on its
way to the table then: the row's *tombstone* waits for it, to free it there too.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from runtime.control.actor_table import ActorTable
from runtime.control.config import Config
from runtime.control.context import Context, incarnation_of, node_of
from runtime.control.flush import TaskHistory
from runtime.control.health import FailureDetector
from runtime.control.ids import ARRAY_BYTES, STREAM_BASE, object_id
from runtime.control.kv import KvTable
from runtime.control.messages import (
    SYSTEM_ERROR,
    CancelTask,
    Event,
    ExportFunction,
    FetchFunction,
    FindTask,
    FreeObjects,
    FunctionBlob,
    Heartbeat,
    KvDelete,
    KvGet,
    KvPut,
    LoadChanged,
    LocateObjects,
    Location,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ObjectLocations,
    PlaceTasks,
    RangeResult,
    Registered,
    RegisterNode,
    RowLoaded,
    TaskResults,
    TaskSpec,
    TaskUpdates,
)
from runtime.control.pubsub import PubSub
from runtime.control.ready_queue import part_of
from runtime.control.tables import ArrayRow, Done, ghost_of

RELEASED = "its owner has died or released it"
EVENTS_MAX = 10_000
RELEASED_MAX = 65_536
"""How many released arrays are remembered, for messages that come late."""
LOST_S = 1.0
"""How long an array that was released is awaited: its owner's task may run again."""
ORPHANED_S = 60.0
"""How long arrays are kept whose owner's node died: the same, on another node."""


class Gcs:
    """One shard that holds every table."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.ctx = ctx
        self.config = config
        self.nodes: dict[int, NodeInfo] = {}
        self.functions: dict[bytes, bytes] = {}
        self.arrays: dict[bytes, ArrayRow] = {}
        self.events: deque[tuple[float, str, str, str]] = deque(maxlen=EVENTS_MAX)
        self.detector = FailureDetector(config.heartbeat_timeout_s)
        self.kv = KvTable(ctx)
        self.history = TaskHistory(ctx, config.gcs_memory_max)
        self.pubsub = PubSub(ctx)
        self.pubsub.subscribe("nodes", "global")
        self.pubsub.subscribe("nodes", "links")
        self._alive: set[int] = set()
        self._checked_s = 0.0
        self._tombstones: dict[bytes, dict[int, int]] = {}
        self._released: dict[bytes, str] = {}
        """The last released arrays, oldest first, and their owners as far as known."""
        self._early: dict[bytes, None] = {}
        """Arrays that were released before anything of them was heard, oldest first."""
        self._waited: dict[bytes, dict[bytes, None]] = {}
        self._handlers: dict[type, Any] = {
            RegisterNode: self._on_register,
            Heartbeat: self._on_heartbeat,
            NodeUnreachable: self._on_unreachable,
            ExportFunction: self._on_export,
            FetchFunction: self._on_fetch,
            TaskUpdates: self._on_updates,
            LocateObjects: self._on_locate,
            Event: self._on_event,
            KvPut: self.kv.on_put,
            KvGet: self.kv.on_get,
            KvDelete: self.kv.on_delete,
            FindTask: self.history.on_find,
            RowLoaded: self.history.on_loaded,
            CancelTask: self._on_cancel,
        }
        self.actors = ActorTable(ctx, self.pubsub, self._alive, self._log)
        self._handlers.update(self.actors.handlers)

    def start(self) -> None:
        """The first turn: begin to watch the nodes."""
        self._checked_s = self.ctx.now()
        self.ctx.after(self.config.heartbeat_s, self._check_health)

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    # -- nodes -----------------------------------------------------------------

    def _on_register(self, source: str, message: RegisterNode) -> None:
        info = message.info
        known = self.nodes.get(info.node)
        incarnation = info.incarnation
        if known is not None:
            if incarnation <= known.incarnation:
                self.ctx.send(source, NodeChanged(known))
                return
            self._declare_dead(info.node, "another process took its place")
        info = NodeInfo(
            info.node, info.host, info.port, info.resources, alive=True, incarnation=incarnation
        )
        self.nodes[info.node] = info
        self._alive.add(info.node)
        self.detector.heard(info.node, self.ctx.now())
        self.ctx.send(source, Registered(incarnation, list(self.nodes.values())))
        self.pubsub.publish("nodes", NodeChanged(info), but=source)
        self.pubsub.subscribe("nodes", source)
        self._log("node_added", source)

    def _on_heartbeat(self, source: str, message: Heartbeat) -> None:
        info = self.nodes.get(message.node)
        if info is None or not info.alive or info.incarnation != message.incarnation:
            if info is not None:
                self.ctx.send(source, NodeChanged(info))
            return
        self.detector.heard(message.node, self.ctx.now())
        self.ctx.send("global", LoadChanged(message.node, message.load))

    def _on_unreachable(self, source: str, message: NodeUnreachable) -> None:
        known = self.nodes.get(message.node)
        if message.incarnation and known is not None and known.incarnation > message.incarnation:
            return  # it came back before the news of its end did
        self._declare_dead(message.node, message.reason)

    def _check_health(self) -> None:
        now = self.ctx.now()
        late_s = now - self._checked_s - self.config.heartbeat_s
        self._checked_s = now
        if late_s > self.config.heartbeat_s:
            self.detector.excuse(late_s)
        for node in self.detector.suspects(self.ctx.now()):
            self._declare_dead(node, f"no heartbeat for {self.detector.timeout_s:g} s")
        self.ctx.after(self.config.heartbeat_s, self._check_health)

    def _declare_dead(self, node: int, reason: str) -> None:
        info = self.nodes.get(node)
        if info is None or not info.alive:
            return
        info = NodeInfo(node, info.host, info.port, info.resources, False, info.incarnation, reason)
        self.nodes[node] = info
        self._alive.discard(node)
        self.detector.forget(node)
        self._log("node_died", f"node:{node}", reason)
        # The dead node is told as well: it may only be cut off.
        self.pubsub.publish("nodes", NodeChanged(info))
        self.pubsub.drop(f"node:{node}")
        for array in [a for a, left in self._tombstones.items() if node in left]:
            self._bury(array, node, self._tombstones[array][node])
        ghost = ghost_of(node, info.incarnation)
        for array, row in self.arrays.items():
            unfinished = row.unfinished_at(node)
            row.bury(node, ghost, reason)
            for spec, gaps in unfinished:
                self._place_again(row, spec, gaps, reason)
            self._tell_of_losses(array, row, node)
        self.actors.on_node_died(node, reason)
        self.ctx.after(ORPHANED_S, partial(self._drop_orphans, ghost))

    def _drop_orphans(self, ghost: int) -> None:
        """Release what a node's clients owned, unless a task has made it its own since."""
        self.actors.drop_orphans(lambda o: ghost_of(node_of(o), incarnation_of(o)) == ghost)
        for array in [a for a, row in self.arrays.items() if row.owner_node == ghost]:
            self._release(array, ghost)

    def _lives(self, client: str) -> bool:
        """Whether a client's node is alive, and still the same."""
        node = node_of(client)
        return node in self._alive and self.nodes[node].incarnation == incarnation_of(client)

    def _place_again(
        self, row: ArrayRow, spec: TaskSpec, gaps: list[tuple[int, int]], reason: str
    ) -> None:
        owner_node = node_of(spec.owner)
        if not self._lives(spec.owner):
            return  # its owner died too; run again, that will submit it again
        for start, count in gaps:
            part = part_of(spec, start, count)
            if spec.retries == 0:
                text = f"WorkerCrashedError: the node that ran {spec.name} died: {reason}"
                result = RangeResult(
                    spec.array, start, count, SYSTEM_ERROR, text.encode(), -1, spec.returns
                )
                self.ctx.send(f"node:{owner_node}", TaskResults(spec.owner, [result]))
                row.finish(Done(start, count, owner_node, ()))
                self._tell_range(spec.array, row, start, count)
                continue
            part.retries = spec.retries - 1 if spec.retries > 0 else -1
            self._log("task_placed_again", spec.name, reason)
            self.ctx.send("global", PlaceTasks([part]))

    def _tell_of_losses(self, array: bytes, row: ArrayRow, node: int) -> None:
        """Tell who waits for an object of the array if its last copy is gone."""
        waited = self._waited_for(array)
        for oid in waited:
            location = row.locate(oid, self._alive)
            if location is not None and location.lost:
                self._tell_location(oid, location)

    # -- functions and events --------------------------------------------------

    def _on_export(self, source: str, message: ExportFunction) -> None:
        self.functions[message.function] = message.blob
        for address in self.pubsub.close(message.function):
            self.ctx.send(address, FunctionBlob(message.function, message.blob))

    def _on_fetch(self, source: str, message: FetchFunction) -> None:
        blob = self.functions.get(message.function)
        if blob is None:
            self.pubsub.subscribe(message.function, source)
        else:
            self.ctx.send(source, FunctionBlob(message.function, blob))

    def _on_event(self, source: str, message: Event) -> None:
        self._log(message.kind, message.subject, message.detail)

    def _log(self, kind: str, subject: str, detail: str = "") -> None:
        self.events.append((self.ctx.now(), kind, subject, detail))

    # -- tasks and objects -----------------------------------------------------

    def _on_updates(self, source: str, message: TaskUpdates) -> None:
        node = message.node
        alive = node in self._alive and message.incarnation in (0, self.nodes[node].incarnation)
        if source == f"node:{node}" and not alive:
            return  # it was declared dead, and what it had is done elsewhere
        for spec in message.added:
            self._accept(spec, node, alive)
        for array, start, count, sizes in message.done:
            if array in self._tombstones:
                if start < STREAM_BASE:
                    self._bury(array, node, count)
                if array not in self.arrays:
                    continue
            if array in self._early and array not in self.arrays:
                del self._early[array]
                self.ctx.send(f"node:{node}", FreeObjects([array]))
                continue
            row = self._row(array)
            if row.owner_node == -1 or (row.owner_node < 0 and not row.accepted):
                row.owner_node = node
            row.finish(Done(start, count, node, sizes))
            self._tell_range(array, row, start, count)
        for oid, size in message.copies:
            array = oid[:ARRAY_BYTES]
            if array in self.arrays:
                self.arrays[array].copied(oid, node, size)
            else:
                # Released while the copy was on its way.
                self.ctx.send(f"node:{node}", FreeObjects([array]))
        for array in message.released:
            self._release(array, node)

    def _accept(self, spec: TaskSpec, node: int, alive: bool) -> None:
        if spec.array not in self.arrays and self._released.get(spec.array) == spec.owner:
            # Placed again while its result was on its way: nobody waits for this run.
            left = self._tombstones.setdefault(spec.array, {})
            left[node] = left.get(node, 0) + spec.count
            return
        row = self._row(spec.array)
        row.owner = spec.owner
        row.owner_node = node_of(spec.owner)
        if not self._lives(spec.owner):
            # Its owner died while it was on its way.
            ghost = row.owner_node = ghost_of(row.owner_node, incarnation_of(spec.owner))
            self.ctx.after(ORPHANED_S, partial(self._drop_orphans, ghost))
        if alive:
            row.accepted.append((spec, node))
        else:
            reason = self.nodes[node].reason if node in self.nodes else "it never joined"
            self._place_again(row, spec, [(spec.start, spec.count)], reason)

    def _row(self, array: bytes) -> ArrayRow:
        row = self.arrays.get(array)
        if row is None:
            row = self.arrays[array] = ArrayRow()
        return row

    def _release(self, array: bytes, node: int) -> None:
        row = self.arrays.pop(array, None)
        if row is None:
            # A large result of an actor's call: the node that has it says so late.
            self._early[array] = None
            if len(self._early) > RELEASED_MAX:
                del self._early[next(iter(self._early))]
            return
        if self.config.task_history and row.accepted:
            self.history.add(array, row)
        self._released.pop(array, None)
        self._released[array] = row.owner
        if len(self._released) > RELEASED_MAX:
            del self._released[next(iter(self._released))]
        for oid in self._waited_for(array):
            self._tell_location(oid, Location(oid, (), 0, lost=RELEASED))
        # The owner's own node has freed all it had, and says no more about it.
        left = {n: c for n, c in row.outstanding().items() if n in self._alive and n != node}
        if left:
            self._tombstones[array] = left
        for holder in sorted(row.holders() - {node}):
            if holder in self._alive and holder not in left:
                self.ctx.send(f"node:{holder}", FreeObjects([array]))

    def _bury(self, array: bytes, node: int, count: int) -> None:
        """An outstanding range of a released array has ended: free it there."""
        left = self._tombstones[array]
        left[node] = left.get(node, 0) - count
        if left[node] <= 0:
            del left[node]
            if node in self._alive and array not in self.arrays:
                self.ctx.send(f"node:{node}", FreeObjects([array]))
        if not left:
            del self._tombstones[array]

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        """Say who has what is to be cancelled; the answer follows its assignment."""
        row = self.arrays.get(message.array)
        if row is None:
            return
        nodes = dict.fromkeys([node for _, node in row.accepted] + [row.owner_node])
        self.ctx.send(
            "global",
            CancelTask(
                message.array, message.start, message.count, message.force, message.recursive,
                tuple(node for node in nodes if node in self._alive),
            ),
        )  # fmt: skip

    def _on_locate(self, source: str, message: LocateObjects) -> None:
        found = []
        for oid in message.objects:
            row = self.arrays.get(oid[:ARRAY_BYTES])
            location = row.locate(oid, self._alive) if row is not None else None
            if location is not None:
                found.append(location)
            elif message.subscribe:
                self.pubsub.subscribe(oid, source)
                self._waited.setdefault(oid[:ARRAY_BYTES], {})[oid] = None
                if oid[:ARRAY_BYTES] in self._released:
                    self.ctx.after(LOST_S, partial(self._give_up, oid))
            else:
                found.append(Location(oid, (), 0))
        if found:
            self.ctx.send(source, ObjectLocations(found))

    def _give_up(self, oid: bytes) -> None:
        """An array that was released has not been made again: tell who waits."""
        array = oid[:ARRAY_BYTES]
        if array not in self.arrays and oid in self._waited_for(array):
            self._tell_location(oid, Location(oid, (), 0, lost=RELEASED))

    def _waited_for(self, array: bytes) -> list[bytes]:
        return list(self._waited.get(array, ()))

    def _tell_range(self, array: bytes, row: ArrayRow, start: int, count: int) -> None:
        waited = self._waited_for(array)
        if not waited:
            return
        low, high = object_id(array, start, 0), object_id(array, start + count, 0)
        for oid in waited:
            if low <= oid < high:
                location = row.locate(oid, self._alive)
                if location is not None:
                    self._tell_location(oid, location)

    def _tell_location(self, oid: bytes, location: Location) -> None:
        array = oid[:ARRAY_BYTES]
        del self._waited[array][oid]
        if not self._waited[array]:
            del self._waited[array]
        for address in self.pubsub.close(oid):
            self.ctx.send(address, ObjectLocations([location]))
