"""One shard of the GCS's tables, and what is left of the GCS besides the shards.

`Shard` has the tables whose rows are spread; it hears of nodes and jobs from
`ShardedGcs`, whose own tables of tasks, objects, functions and keys stay empty.
What goes where is in `shards`; how inputs in other shards are kept, in
`shard_lineage`. What keeps order between parts that have no channel in common:

* **Nodes.** A change of a node goes to the shards first. Nodes are told of it when
  all shards have said that they have heard (`_Gate`), so what a node says because
  of it finds the shards informed. The global scheduler is told at once: what it
  sends to shards comes behind the news.
* **Placements.** A range that was placed is logged by the shard that has its row,
  and that shard assigns it: no news of the range can be there before itself.
* **Actors.** A lost value that an actor has made is made again by whoever rebuilds
  the actor, if that is under way: the shard asks (`AskReplay`) before it acts.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.array_store import LOST_S, ArrayStore
from raytwin.runtime.control.gcs.event_log import RemoteEventLog
from raytwin.runtime.control.gcs.function_table import FunctionTable
from raytwin.runtime.control.gcs.gcs import Gcs, Handler
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.kv_table import KvTable
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.sharding.lineage import ShardLineage
from raytwin.runtime.control.gcs.sharding.router import Between, Router
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.gcs.task_object_table import TaskObjectTable
from raytwin.runtime.control.messages import (
    ActorSettled,
    AskReplay,
    AssignTasks,
    CancelTask,
    ClaimTasks,
    ExportFunction,
    FetchFunction,
    FindTask,
    JobEnded,
    KvDelete,
    KvGet,
    KvPut,
    LineageChanges,
    LocateObjects,
    NodeChanged,
    NodeInfo,
    NodesSeen,
    ObjectsMissing,
    OwnersFound,
    Query,
    QueryReply,
    Registered,
    ResultsMissing,
    TaskSpec,
    TasksPlaced,
    TaskUpdates,
)
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler


class RemoteActors:
    """The actor table as a shard knows it: the shard asks ``gcs``, and looks again later."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.settled = b""
        """An actor that is known, in this turn, not to be rebuilt."""
        self.not_remade: dict[bytes, None] = {}
        """Arrays that no actor makes again, by the last answer of ``gcs``."""

    def replays(self, actor: bytes, call: bytes) -> bool:
        """Whether the actor may be being rebuilt; the answer to the question calls again."""
        if actor == self.settled:
            return False
        self._ctx.send("gcs", AskReplay(actor, call))
        return True

    def remakes(self, call: bytes) -> bool:
        """Whether any actor may replay the call; the next look knows the answer."""
        if call in self.not_remade:
            del self.not_remade[call]
            return False
        self._ctx.send("gcs", AskReplay(b"", call))
        return True


class Shard:
    """The tables of shard `shard`."""

    def __init__(self, ctx: Context, config: Config, shard: int) -> None:
        self.ctx = ctx
        self.nodes: dict[int, NodeInfo] = {}
        """Every node that ``gcs`` has announced, by number."""
        self._alive: set[int] = set()
        self._changes = 0
        """Changes of nodes that ``gcs`` has announced so far."""
        self.pubsub = PubSub(ctx)
        self.jobs = JobTable(ctx)
        self.functions = FunctionTable(ctx, self.pubsub, self.jobs.ended)
        self.kv = KvTable(ctx)
        self.history = TaskHistory(ctx)
        self._events = RemoteEventLog(ctx)
        self._actors = RemoteActors(ctx)
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
        """Cancellations of arrays without a row, which may come by way of another shard."""
        self._handlers: dict[type, Handler] = {
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
            ActorSettled: self._on_settled,
            KvPut: self.kv.on_put,
            KvGet: self.kv.on_get,
            KvDelete: self.kv.on_delete,
            FindTask: self.history.on_find,
            Query: self._on_query,
        }

    @property
    def arrays(self) -> dict[bytes, ArrayRow]:
        """The rows of the task and object tables."""
        return self.table.store.rows

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Tell the other shards what changed for them."""
        self.lineage.end_turn()

    def _on_query(self, source: str, message: Query) -> None:
        """Answer how much is in the tables, the only question that ``gcs`` asks a shard."""
        self.ctx.send(source, QueryReply(message.key, message.client, self.table.sizes()))

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
            self.table.on_node_died(info.node, info.reason)

    def _on_job_ended(self, source: str, message: JobEnded) -> None:
        self.jobs.end(message.job, message.reason)
        self.table.end_job(message.job)
        self.functions.drop_ended(message.kept)

    # -- placements ------------------------------------------------------------

    def _on_placed(self, source: str, message: TasksPlaced) -> None:
        if message.way:
            for spec in message.tasks:
                self.lineage.visited(spec)
            following = TasksPlaced(
                message.node, message.incarnation, message.tasks, message.way[1:], message.left
            )
            self.ctx.send(shard_address(message.way[0]), following)
            return
        node = message.node
        for spec in message.tasks:
            self.table.owners.overtaken(spec)
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
        """Cancel what was assigned; the message follows the assignment."""
        row = self.arrays.get(message.array)
        if row is None:
            if message.array not in self._cancels:
                self.ctx.after(LOST_S, partial(self._forget_cancels, message.array))
            self._cancels.setdefault(message.array, []).append(message)
            return
        for node in dict.fromkeys([*(node for _, node in row.accepted), *row.owners]):
            if node in self._alive:
                self.ctx.send(f"node:{node}", message)

    def _forget_cancels(self, array: bytes) -> None:
        del self._cancels[array]

    # -- lineage and actors ------------------------------------------------------

    def _on_unused(self, array: bytes) -> None:
        row = self.arrays.get(array)
        if row is not None and row.released:
            self.table.owners.drop(array, -1)

    def _on_unneeded(self, array: bytes) -> None:
        self.table.reconstruction.unneeded(array)

    def _on_settled(self, source: str, message: ActorSettled) -> None:
        if message.array:
            if message.array in self.table.waiters.arrays:
                self._actors.not_remade[message.array] = None
        elif not message.now:
            self.table.reconstruction.on_actor_settled(message.actor)
        else:
            self._actors.settled = message.actor
            self.table.reconstruction.seek_made_by(message.actor)
            self._actors.settled = b""


class _Gate(Between):
    """A `Context` that holds back what nodes hear of nodes until the shards know it."""

    def __init__(self, ctx: Context, shards: int) -> None:
        super().__init__(ctx)
        self._sent = 0
        """Changes that every shard was told of."""
        self._seen = {shard_address(shard): 0 for shard in range(1, shards + 1)}
        self._first = shard_address(1)
        self._turn: list[tuple[str, Any]] = []
        self._held: deque[tuple[int, str, Any]] = deque()

    def send(self, to: str, message: Any) -> None:
        if type(message) in (NodeChanged, Registered) and to.startswith("node:"):
            self._turn.append((to, message))
            return
        if to == self._first and type(message) is NodeChanged:
            self._sent += 1
        self._ctx.send(to, message)

    def seen(self, shard: str, count: int) -> None:
        """A shard has heard of so many changes."""
        self._seen[shard] = count

    def end_turn(self) -> None:
        """Let out what all shards know."""
        self._held += [(self._sent, to, message) for to, message in self._turn]
        self._turn = []
        seen = min(self._seen.values())
        while self._held and self._held[0][0] <= seen:
            _, to, message = self._held.popleft()
            self._ctx.send(to, message)


class _Sum:
    """A question that all shards have to answer: their counts together are the answer."""

    __slots__ = ("missing", "query", "rows", "source")

    def __init__(self, source: str, query: Query, missing: int, actors: int) -> None:
        self.source = source
        self.query = query
        self.missing = missing
        self.rows = {"actors": actors}


class ShardedGcs(Gcs):
    """Nodes, actors and events; the other tables are in shards."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.gate = _Gate(ctx, config.gcs_shards)
        super().__init__(self.gate, config)
        for shard in range(1, config.gcs_shards + 1):
            self.pubsub.subscribe("nodes", shard_address(shard))
            self.pubsub.subscribe("jobs", shard_address(shard))
        self._asking: dict[bytes, dict[str, None]] = {}
        """By actor that is being rebuilt: shards that want to hear when it is."""
        self._sums: dict[int, _Sum] = {}
        """Questions about the tables, until every shard has answered."""
        self._questions = 0
        self._handlers.update({
            NodesSeen: lambda source, message: self.gate.seen(source, message.count),
            AskReplay: self._on_ask,
            QueryReply: self._on_part,
        })  # fmt: skip

    def end_turn(self) -> None:
        """Let out what nodes may hear."""
        self.gate.end_turn()

    def _on_ask(self, source: str, message: AskReplay) -> None:
        if not message.actor:
            if not self.actors.remakes(message.array):
                self.ctx.send(source, ActorSettled(b"", True, message.array))
        elif self.actors.replays(message.actor, message.array):
            self._asking.setdefault(message.actor, {})[source] = None
        else:
            self.ctx.send(source, ActorSettled(message.actor, True))

    def _on_query(self, source: str, message: Query) -> None:
        if message.kind != "tables":
            super()._on_query(source, message)
            return
        self._questions += 1
        shards = [shard_address(shard) for shard in range(1, self.config.gcs_shards + 1)]
        self._sums[self._questions] = _Sum(source, message, len(shards), len(self.actors.rows))
        for shard in shards:
            self.ctx.send(shard, Query(message.kind, self._questions))

    def _on_part(self, source: str, message: QueryReply) -> None:
        asked = self._sums[message.key]
        # A shard has no actors of its own.
        for name, count in message.value.items():
            asked.rows[name] = asked.rows.get(name, 0) + count
        asked.missing -= 1
        if not asked.missing:
            del self._sums[message.key]
            answer = QueryReply(asked.query.key, asked.query.client, asked.rows)
            self.ctx.send(asked.source, answer)

    def _on_actor_settled(self, actor: bytes) -> None:
        for shard in self._asking.pop(actor, ()):
            self.ctx.send(shard, ActorSettled(actor, False))


class ShardedScheduler(GlobalScheduler):
    """A global scheduler whose ``gcs`` is `ShardedGcs` and the shards."""

    def __init__(self, ctx: Context, config: Config) -> None:
        super().__init__(Router(ctx, config.gcs_shards), config)

    def assign(self, node: int, incarnation: int, part: TaskSpec, left: int = -1) -> None:
        """Have the shard log the range that is to have its row, and assign it."""
        self.ctx.send("gcs", TasksPlaced(node, incarnation, [part], left=left))
