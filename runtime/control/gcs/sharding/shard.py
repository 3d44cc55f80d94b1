"""One shard of the GCS's tables, and the GCS without the tables that are in shards.

`Shard` has the tables whose rows are spread; `ShardedGcs` announces nodes, jobs and actors to it,
and its own tables of tasks, objects, functions and keys stay empty. `router` says which shard has
a key, `shard_lineage` how inputs in other shards are kept. Messages on different channels may
overtake one another. Where their order matters:

* **Nodes.** ``gcs`` sends a change of a node to the shards first. Nodes get it when all shards have
  confirmed it (`_Gate`), so the messages that a node sends because of it reach the shards after the
  change. The global scheduler gets it at once: its messages to shards follow the change.
* **Placements.** The shard with the row of a placed range logs the range and then assigns it: no
  report about the range can arrive before the range.
* **Actors.** An actor that is being rebuilt replays its calls, and so reconstructs their lost
  values. When a node dies, ``gcs`` announces its actors that are being rebuilt to the shards in
  the same turn.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers, WrappedContext
from raytwin.runtime.control.gcs.actor_table import PENDING, STARTING
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.array_store import LOST_S, ArrayStore
from raytwin.runtime.control.gcs.event_log import RemoteEventLog
from raytwin.runtime.control.gcs.function_table import FunctionTable
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.kv_table import KvTable
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.sharding.router import Router
from raytwin.runtime.control.gcs.sharding.shard_lineage import ShardLineage
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.gcs.task_object_table import TaskObjectTable
from raytwin.runtime.control.messages import (
    ActorChanged,
    AssignTasks,
    CancelTask,
    ClaimTasks,
    ExportFunction,
    FetchFunction,
    FindTask,
    JobEnded,
    KvGet,
    KvPut,
    LineageChanges,
    LocateObjects,
    NodeChanged,
    NodeInfo,
    NodesJoined,
    NodesSeen,
    ObjectsMissing,
    OwnersFound,
    Registered,
    ResultsMissing,
    TaskSpec,
    TasksPlaced,
    TaskUpdates,
)
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler


class RebuiltActors:
    """The actors that ``gcs`` has announced as being rebuilt.

    A shard does not have their logs: it waits for every actor that may replay a call.
    """

    def __init__(self) -> None:
        self.actors: set[bytes] = set()

    def replays(self, actor: bytes, call: bytes) -> bool:
        """Whether the actor is being rebuilt."""
        return actor in self.actors

    def may_replay(self, call: bytes) -> bool:
        """Whether any actor is being rebuilt."""
        return bool(self.actors)


class Shard:
    """The tables of shard `shard`."""

    def __init__(self, ctx: Context, config: Config, shard: int) -> None:
        self.ctx = ctx
        self.nodes: dict[int, NodeInfo] = {}
        """Every node that ``gcs`` has announced, by number."""
        self._alive: set[int] = set()
        self._changes = 0
        """Changes of nodes that ``gcs`` has announced so far."""
        self._died: list[NodeInfo] = []
        """Nodes that have died in this turn."""
        self.pubsub = PubSub(ctx)
        self.jobs = JobTable(ctx)
        self.functions = FunctionTable(ctx, self.pubsub, self.jobs.ended)
        self.kv = KvTable(ctx)
        self.history = TaskHistory(ctx)
        self._events = RemoteEventLog(ctx)
        self._actors = RebuiltActors()
        self.lineage = ShardLineage(
            ctx, config.lineage_bytes_max // config.gcs_shards, shard, config.gcs_shards,
            self._on_unused, self._on_unneeded,
        )  # fmt: skip
        self.table = TaskObjectTable(
            ctx,
            config,
            ArrayStore(ctx, self.nodes, self._alive, self.lineage),
            self.pubsub,
            self._actors,
            self._events.add,
            self.jobs.ended,
            self.history if config.task_history else None,
        )
        self._cancels: dict[bytes, list[CancelTask]] = {}
        """Cancellations of arrays without a row, whose placement may still visit another shard."""
        self._handlers: Handlers = {
            NodeChanged: self._on_node_changed,
            JobEnded: self._on_job_ended,
            ExportFunction: self.functions.on_export,
            FetchFunction: self.functions.on_fetch,
            TasksPlaced: self._on_placed,
            TaskUpdates: self.table.on_updates,
            LocateObjects: self.table.on_locate,
            ObjectsMissing: self.table.on_objects_missing,
            ResultsMissing: self.table.reconstruction.on_results_missing,
            ClaimTasks: self.table.on_claim,
            OwnersFound: self.table.on_owners_found,
            CancelTask: self._on_cancel,
            LineageChanges: self.lineage.on_changes,
            ActorChanged: self._on_actor_changed,
            KvPut: self.kv.on_put,
            KvGet: self.kv.on_get,
            FindTask: self.history.on_find,
        }

    @property
    def arrays(self) -> dict[bytes, ArrayRow]:
        """The rows of the task and object tables."""
        return self.table.store.rows

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Look for lost values, and send the other shards the changes of lineage."""
        # At the end: the actors that are being rebuilt arrive in the same turn as the death.
        died, self._died = self._died, []
        for info in died:
            self.table.on_node_died(info.node, info.reason)
        self.lineage.end_turn()

    # -- nodes and jobs ----------------------------------------------------------

    def _on_node_changed(self, source: str, message: NodeChanged) -> None:
        info = message.info
        self._changes += 1
        self.ctx.send(source, NodesSeen(self._changes))
        self.nodes[info.node] = info
        if info.alive:
            self._alive.add(info.node)
        elif info.node in self._alive:
            self._alive.discard(info.node)
            self.pubsub.drop(f"node:{info.node}")
            self._died.append(info)

    def _on_job_ended(self, source: str, message: JobEnded) -> None:
        self.jobs.end(message.job, message.reason)
        self.table.end_job(message.job)
        self.functions.drop_ended(message.kept)

    # -- placements ------------------------------------------------------------

    def _on_placed(self, source: str, message: TasksPlaced) -> None:
        if message.way:
            for spec in message.tasks:
                self.lineage.visited(spec)
            following = replace(message, way=message.way[1:])
            self.ctx.send(shard_address(message.way[0]), following)
            return
        node = message.node
        log = TaskUpdates(
            node, message.tasks, [], [], [], incarnation=message.incarnation, left=message.left
        )
        self.table.on_updates("global", log)
        for spec in message.tasks:
            self.lineage.placed(spec)
        if node in self._alive and self.nodes[node].incarnation == message.incarnation:
            self.ctx.send(f"node:{node}", AssignTasks(message.tasks, message.incarnation))
            for spec in message.tasks if self._cancels else ():
                for cancel in self._cancels.get(spec.array, ()):
                    self.ctx.send(f"node:{node}", cancel)

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        """Cancel assigned elements; the message follows the assignment."""
        row = self.arrays.get(message.array)
        if row is None:
            if message.array not in self._cancels:
                self.ctx.after(LOST_S, partial(self._forget_cancels, message.array))
            self._cancels.setdefault(message.array, []).append(message)
        for node in self.table.nodes_with(message.array):
            self.ctx.send(f"node:{node}", message)

    def _forget_cancels(self, array: bytes) -> None:
        del self._cancels[array]

    # -- lineage and actors ------------------------------------------------------

    def _on_unused(self, array: bytes) -> None:
        row = self.arrays.get(array)
        if row is not None and row.released:
            self.table.drop(array, -1)

    def _on_unneeded(self, array: bytes) -> None:
        self.table.reconstruction.unneeded(array)

    def _on_actor_changed(self, source: str, message: ActorChanged) -> None:
        if message.state in (PENDING, STARTING):
            if message.logged:
                self._actors.actors.add(message.actor)
        elif message.actor in self._actors.actors:
            self._actors.actors.discard(message.actor)
            self.table.reconstruction.on_actor_settled(message.actor)


class _Gate(WrappedContext):
    """A `Context` that holds back changes of nodes to nodes until the shards know them."""

    def __init__(self, ctx: Context, shards: int) -> None:
        super().__init__(ctx)
        self._sent = 0
        """Changes that were sent to every shard."""
        self._seen = {shard_address(shard): 0 for shard in range(1, shards + 1)}
        self._first = shard_address(1)
        self._turn: list[tuple[str, Any]] = []
        self._held: deque[tuple[int, str, Any]] = deque()

    def send(self, to: str, message: Any) -> None:
        if type(message) in (NodeChanged, NodesJoined, Registered) and to.startswith("node:"):
            self._turn.append((to, message))
            return
        if to == self._first and type(message) is NodeChanged:
            self._sent += 1
        self._ctx.send(to, message)

    def seen(self, shard: str, count: int) -> None:
        """A shard has confirmed so many changes."""
        self._seen[shard] = count

    def end_turn(self) -> None:
        """Send nodes the changes that all shards know."""
        self._held += [(self._sent, to, message) for to, message in self._turn]
        self._turn = []
        seen = min(self._seen.values())
        while self._held and self._held[0][0] <= seen:
            _, to, message = self._held.popleft()
            self._ctx.send(to, message)


class ShardedGcs(Gcs):
    """Nodes, actors and events; the other tables are in shards."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.gate = _Gate(ctx, config.gcs_shards)
        super().__init__(self.gate, config)
        for shard in range(1, config.gcs_shards + 1):
            self.pubsub.subscribe("nodes", shard_address(shard))
            self.pubsub.subscribe("jobs", shard_address(shard))
            self.pubsub.subscribe("actors", shard_address(shard))
        self._handlers[NodesSeen] = self._on_nodes_seen

    def end_turn(self) -> None:
        """Send nodes the changes that all shards know."""
        super().end_turn()
        self.gate.end_turn()

    def _on_nodes_seen(self, source: str, message: NodesSeen) -> None:
        self.gate.seen(source, message.count)


class ShardedScheduler(GlobalScheduler):
    """A global scheduler whose ``gcs`` is `ShardedGcs` and the shards."""

    def __init__(self, ctx: Context, config: Config) -> None:
        super().__init__(Router(ctx, config.gcs_shards), config)

    def assign(self, node: int, incarnation: int, part: TaskSpec, left: int = -1) -> None:
        """Have the shard with the range's row log it, and assign it."""
        self.ctx.send("gcs", TasksPlaced(node, incarnation, [part], left=left))
