"""The global control store: the cluster's tables, each a part with its own file.

============== ================================== ===============================
table          row                                subscribers of changes
============== ================================== ===============================
`node_table`   NodeInfo, by number                every node, global scheduler
`job_table`    JobInfo, by number                 the same, about a job's end
`function...`  serialized function, by ID         nodes that fetch it before its export
`actor_table`  ActorRow, by ID                    the nodes of its callers
`task_object.` ArrayRow, by array                 nodes that wait for an object
`kv_table`     users' keys and values             --
`task_history` finished tasks, on disk if cold    --
`event_log`    events of the cluster              --
============== ================================== ===============================

`Gcs` joins the tables: it dispatches messages to them, and carries out the three changes that
concern several tables: the death of a node, the end of a job, an actor that has been rebuilt.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.ids import job_number
from raytwin.runtime.control.gcs.actor_table import ActorTable
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.array_store import ORPHANED_S, ArrayStore
from raytwin.runtime.control.gcs.event_log import EventLog
from raytwin.runtime.control.gcs.function_table import FunctionTable
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.kv_table import KvTable
from raytwin.runtime.control.gcs.lineage import Lineage
from raytwin.runtime.control.gcs.node_table import NodeTable
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.gcs.task_object_table import TaskObjectTable
from raytwin.runtime.control.messages import (
    ActorFailed,
    ActorPlaced,
    ActorStarted,
    CancelTask,
    ClaimTasks,
    CreateActors,
    DescribeJob,
    Event,
    ExportFunction,
    FetchFunction,
    FetchLineage,
    FindActor,
    FindTask,
    JobEnded,
    KillActor,
    KvGet,
    KvPut,
    LocateObjects,
    LogCalls,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ObjectsMissing,
    OwnersFound,
    PeerUnreachable,
    Query,
    QueryReply,
    RegisterJob,
    RegisterNode,
    ResultsMissing,
    RowLoaded,
    SaveActor,
    TaskUpdates,
    WatchActors,
)


class Gcs:
    """All tables in one component; `sharding.shard` has them in several."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.ctx = ctx
        self.config = config
        self.jobs = JobTable(ctx)
        self.events = EventLog(ctx, self.jobs.driver_of)
        self._has_had_head = False
        self.pubsub = PubSub(ctx)
        self.pubsub.subscribe("nodes", "global")
        self.pubsub.subscribe("nodes", "links")
        self.pubsub.subscribe("jobs", "global")
        self.nodes = NodeTable(ctx, config, self.pubsub, self.events.add, self._on_node_died)
        self.functions = FunctionTable(ctx, self.pubsub, self.jobs.ended)
        self.kv = KvTable(ctx)
        self.history = TaskHistory(ctx, config.gcs_memory_max)
        self.actors = ActorTable(
            ctx, self.pubsub, self.nodes.alive, self.events.add, self.jobs,
            config.actor_log_bytes_max, self._on_actor_settled, self._end_job,
        )  # fmt: skip
        self.table = TaskObjectTable(
            ctx,
            config,
            ArrayStore(ctx, self.nodes.rows, self.nodes.alive, Lineage(config.lineage_bytes_max)),
            self.pubsub,
            self.actors,
            self.events.add,
            self.jobs.ended,
            self.history if config.task_history else None,
        )
        self._handlers: Handlers = {
            RegisterNode: self.nodes.on_register,
            NodeUnreachable: self.nodes.on_unreachable,
            PeerUnreachable: self.nodes.on_peer_unreachable,
            RegisterJob: self.jobs.on_register,
            DescribeJob: self.jobs.on_describe,
            JobEnded: self._on_job_ended,
            ExportFunction: self.functions.on_export,
            FetchFunction: self.functions.on_fetch,
            TaskUpdates: self.table.on_updates,
            LocateObjects: self.table.on_locate,
            ObjectsMissing: self.table.on_objects_missing,
            ResultsMissing: self.table.reconstruction.on_results_missing,
            ClaimTasks: self.table.on_claim,
            OwnersFound: self.table.on_owners_found,
            CancelTask: self._on_cancel,
            CreateActors: self.actors.on_create,
            ActorPlaced: self.actors.on_placed,
            ActorStarted: self.actors.on_started,
            ActorFailed: self.actors.on_failed,
            WatchActors: self.actors.on_watch,
            KillActor: self.actors.on_kill,
            FindActor: self.actors.on_find,
            LogCalls: self.actors.on_log,
            SaveActor: self.actors.on_save,
            FetchLineage: self.actors.on_fetch_lineage,
            KvPut: self.kv.on_put,
            KvGet: self.kv.on_get,
            FindTask: self.history.on_find,
            RowLoaded: self.history.on_loaded,
            Event: self._on_event,
            Query: self._on_query,
        }

    @property
    def arrays(self) -> dict[bytes, ArrayRow]:
        """The rows of the task and object tables."""
        return self.table.store.rows

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        kind = type(message)
        if kind is not RegisterNode:
            self.nodes.publish_joined()  # before anything that this message may lead to
        self._handlers[kind](source, message)

    def end_turn(self) -> None:
        """Publish the nodes that have registered."""
        self.nodes.publish_joined()

    # -- operations on several tables --------------------------------------------

    def _on_node_died(self, info: NodeInfo) -> None:
        restarts = self.actors.on_node_died(info.node, info.reason)
        self.table.on_node_died(info.node, info.reason, restarts)
        self.ctx.after(ORPHANED_S, partial(self._drop_actors, info.node, info.incarnation))

    def _drop_actors(self, node: int, incarnation: int) -> None:
        """End the actors that a dead node's clients own, unless they have new owners."""
        self.actors.drop_orphans(
            lambda owner: node_of(owner) == node and incarnation_of(owner) == incarnation
        )

    def _on_actor_settled(self, actor: bytes) -> None:
        self.table.reconstruction.on_actor_settled(actor)

    def _on_job_ended(self, source: str, message: JobEnded) -> None:
        self._end_job(message.job, message.reason)

    def _end_job(self, job: bytes, reason: str) -> None:
        """End the job of a driver that has ended, or the branch of such a detached actor."""
        if job in self.jobs.ended:
            return
        self.jobs.end(job, reason)
        self.events.add("job_ended", f"job {job_number(job)}", reason)
        self.actors.end_job(job)
        # Detached actors may start again: they keep their classes.
        kept = sorted(filter(self.functions.is_over, self.actors.classes()))
        self.table.end_job(job)
        self.functions.drop_ended(kept)
        self.pubsub.publish("jobs", JobEnded(job, reason, kept))

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        """Answer the global scheduler with the nodes that have the range: its cancellations
        reach them after its assignments."""
        nodes = self.table.nodes_with(message.array)
        if nodes:
            self.ctx.send("global", replace(message, nodes=nodes))

    # -- events and queries --------------------------------------------------------

    def _on_event(self, source: str, message: Event) -> None:
        if source == "master" and message.kind == "head_started" and not self._has_had_head:
            self._has_had_head = True  # of the head that the cluster starts with there is no event
            return
        self.events.add(
            message.kind, message.subject, message.detail, message.count, message.job, message.cause
        )
        if source == "master" and message.kind == "head_started":
            # The new head's connections know no node yet.
            for info in self.nodes.rows.values():
                self.ctx.send("links", NodeChanged(info))

    def _on_query(self, source: str, message: Query) -> None:
        rows: Any
        if message.kind == "jobs":
            rows = self.jobs.table()
        elif message.kind == "tables":
            rows = {**self.table.sizes(), "actors": len(self.actors.rows)}
        elif message.kind == "names":
            rows = sorted([*name] for name in self.actors.names)
        elif message.kind == "event_counts":
            rows = dict(self.events.counts)
        else:
            rows = list(self.events.rows)
        self.ctx.send(source, QueryReply(message.key, message.client, rows))
