"""The global control store: the cluster's tables, and who is told of changes.

========== ==================================== ============================
table      row                                  told
========== ==================================== ============================
node       NodeInfo, by number                  every node, global scheduler
function   serialized function, by ID           who has asked for it
actor      `actor_table.ActorRow`, by ID        the nodes of its callers
job        JobInfo, by number; see `jobs`       of its end: all of them
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

When a node dies, all are told, and `arrays` sees to what it ran and held. An
incarnation that is declared dead stays so: if it was merely slow, it is told by the
answer to its next heartbeat and leaves, and what it says meanwhile is ignored.

The event log keeps the last `EVENTS_MAX` events; how many there were of each kind
is counted for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import job_number, job_of
from raytwin.runtime.control.gcs.actor_table import ActorTable
from raytwin.runtime.control.gcs.array_row import ORPHANED_S
from raytwin.runtime.control.gcs.array_store import ArrayTable
from raytwin.runtime.control.gcs.health import FailureDetector
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.kv_table import KvTable
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.gcs.task_history import TaskHistory
from raytwin.runtime.control.messages import (
    CancelTask,
    ClaimTasks,
    DescribeJob,
    Event,
    ExportFunction,
    FetchFunction,
    FindTask,
    FunctionBlob,
    Heartbeat,
    JobEnded,
    KvDelete,
    KvGet,
    KvPut,
    LoadChanged,
    LocateObjects,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ObjectsMissing,
    OwnersFound,
    Query,
    QueryReply,
    Registered,
    RegisterJob,
    RegisterNode,
    ResultsMissing,
    RowLoaded,
    TaskUpdates,
)

EVENTS_MAX = 10_000


class Gcs:
    """One shard that holds every table."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.ctx = ctx
        self.config = config
        self.nodes: dict[int, NodeInfo] = {}
        self.functions: dict[bytes, bytes] = {}
        self.events: deque[tuple[float, str, str, str, int]] = deque(maxlen=EVENTS_MAX)
        self.counts: Counter[str] = Counter()
        """How many events there were of each kind; of tasks, how many tasks."""
        self.detector = FailureDetector(config.heartbeat_timeout_s)
        self.kv = KvTable(ctx)
        self.history = TaskHistory(ctx, -(-config.gcs_memory_max // config.gcs_shards))
        self.pubsub = PubSub(ctx)
        self.pubsub.subscribe("nodes", "global")
        self.pubsub.subscribe("nodes", "links")
        self.pubsub.subscribe("jobs", "global")
        self.jobs = JobTable(ctx)
        self._alive: set[int] = set()
        self._checked_s = 0.0
        history = self.history if config.task_history else None
        self.table = ArrayTable(
            ctx, config, self.nodes, self._alive, self.pubsub, self._log, history
        )
        self.arrays = self.table.rows
        self._handlers: dict[type, Any] = {
            RegisterNode: self._on_register,
            Heartbeat: self._on_heartbeat,
            NodeUnreachable: self._on_unreachable,
            ExportFunction: self._on_export,
            FetchFunction: self._on_fetch,
            TaskUpdates: self.table.on_updates,
            LocateObjects: self.table.on_locate,
            ResultsMissing: self.table.on_results_missing,
            ObjectsMissing: self.table.on_objects_missing,
            ClaimTasks: self.table.on_claim,
            OwnersFound: self.table.on_owners_found,
            Event: self._on_event,
            KvPut: self.kv.on_put,
            KvGet: self.kv.on_get,
            KvDelete: self.kv.on_delete,
            FindTask: self.history.on_find,
            RowLoaded: self.history.on_loaded,
            Query: self._on_query,
            CancelTask: self._on_cancel,
            RegisterJob: self.jobs.on_register,
            DescribeJob: self.jobs.on_describe,
            JobEnded: self._on_job_ended,
        }
        self.actors = ActorTable(
            ctx, self.pubsub, self._alive, self._log, self.jobs, config.actor_log_bytes_max
        )
        self.actors.on_branch_ended = self._end_job
        self.actors.on_settled = self.table.on_actor_settled
        self.table.replays = self.actors.replays
        self.table.remakes = self.actors.remakes
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
        self.pubsub.subscribe("jobs", source)
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
        self.actors.on_node_died(node, reason)
        self.table.on_node_died(node, reason)
        self.ctx.after(ORPHANED_S, partial(self._drop_actors, node, info.incarnation))

    def _drop_actors(self, node: int, incarnation: int) -> None:
        """End what a dead node's clients own, unless somebody else owns it since."""
        self.actors.drop_orphans(
            lambda owner: node_of(owner) == node and incarnation_of(owner) == incarnation
        )

    # -- jobs ------------------------------------------------------------------

    def _on_job_ended(self, source: str, message: JobEnded) -> None:
        self._end_job(message.job, message.reason)

    def _end_job(self, job: bytes, reason: str) -> None:
        """A driver or a detached actor is gone: nobody needs what is left of its job."""
        if job in self.jobs.ended:
            return
        self.jobs.end(job, reason)
        self._log("job_ended", f"job {job_number(job)}", reason)
        self.actors.end_job(job)
        # Detached actors may start again: they keep their classes.
        kept = sorted(function for function in self.actors.classes() if self._is_over(function))
        self._forget_job(job, kept)
        self.pubsub.publish("jobs", JobEnded(job, reason, kept))

    def _forget_job(self, job: bytes, kept: list[bytes]) -> None:
        self.table.end_job(job)
        for function in [f for f in self.functions if self._is_over(f) and f not in kept]:
            del self.functions[function]

    def _is_over(self, function: bytes) -> bool:
        return job_of(function) in self.jobs.ended

    # -- functions and events --------------------------------------------------

    def _on_export(self, source: str, message: ExportFunction) -> None:
        if self._is_over(message.function):
            return
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
        self._log(message.kind, message.subject, message.detail, message.count)
        if source == "master" and message.kind == "head_started":
            # Its connections know of no node yet.
            for info in self.nodes.values():
                self.ctx.send("links", NodeChanged(info))

    def _on_query(self, source: str, message: Query) -> None:
        rows: Any
        if message.kind == "jobs":
            rows = self.jobs.table()
        elif message.kind == "tables":
            rows = {**self.table.sizes(), "actors": len(self.actors.rows)}
        elif message.kind == "names":
            rows = sorted([*name] for name in self.actors.names)
        else:
            rows = dict(self.counts) if message.kind == "event_counts" else list(self.events)
        self.ctx.send(source, QueryReply(message.key, message.client, rows))

    def _log(self, kind: str, subject: str, detail: str = "", count: int = 1) -> None:
        self.events.append((self.ctx.now(), kind, subject, detail, count))
        self.counts[kind] += count

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        """Say who has what is to be cancelled; the answer follows its assignment."""
        row = self.arrays.get(message.array)
        if row is None:
            return
        nodes = dict.fromkeys([*(node for _, node in row.accepted), *row.owners])
        self.ctx.send(
            "global",
            CancelTask(
                message.array, message.start, message.count, message.force, message.recursive,
                tuple(node for node in nodes if node in self._alive), message.request,
            ),
        )  # fmt: skip
