"""The local scheduler: one per node, the first to see a task.

The life of a range of tasks on a node::

    SubmitTasks ──keep?──no──> PlaceTasks to the global scheduler
         │ yes (or AssignTasks from it)
         ↓
      WAITING    until its inputs and its function are here
         ↓
       READY     one queue per demand, oldest first
         ↓       a worker is idle and the demand fits, or a worker that holds
         ↓       this demand has less than ``ahead_s`` of work left
      ASSIGNED   on a worker; split as far as needed. Taken back when the worker
         ↓       blocks, or when another could start it sooner; READY again with
         ↓       one retry less if the worker dies
        DONE     results to the owner, kept here for whoever needs them as input

This page says which part of a node takes which message, and what is done at the end of a
turn; each part has a page of its own. How a range comes in is in `submission` and
`acceptance`, whether it stays in `keeping`; what it needs before it runs in `task_inputs`;
which worker runs it in `dispatcher`; what becomes of its values in `results`, of the places
they are written to in `places`, and how they leave in `letting_go`; what becomes of what a
dead worker owned in `owner_failure`.

Dispatching ahead of need hides the round trip to the worker: a range of short
tasks costs one message each way. A function that has never been timed gets one
task per worker until the first is done.

Cost per task of a range of n: (2 messages + 2 dictionary entries) / n here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.actors.call_submitter import CallSubmitter
from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.local_scheduler.assignments import Acceptance
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.local_scheduler.spillback import Keeping
from raytwin.runtime.control.local_scheduler.starvation import Starving
from raytwin.runtime.control.local_scheduler.submission import Submission
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    AbandonObject,
    ActorCalls,
    ActorChanged,
    ActorFound,
    ActorLineage,
    Allocated,
    AllocateObject,
    AssignTasks,
    Blocked,
    CallsDrained,
    CallsLogged,
    CancelCall,
    CancelTask,
    CommitBundle,
    CreateGroup,
    DescribeJob,
    DrainCalls,
    ExitActor,
    ExportFunction,
    Fetched,
    FindActor,
    FindTask,
    ForwardResults,
    FreeObjects,
    FunctionBlob,
    GroupCreated,
    JobEnded,
    JobRegistered,
    KillActor,
    KvDelete,
    KvGet,
    KvPut,
    KvReply,
    MoveTasks,
    NodeChanged,
    NodeInfo,
    NoRoom,
    ObjectLocations,
    ObjectPayload,
    PlaceTasks,
    PrepareBundle,
    PullObject,
    PutObjects,
    Query,
    QueryReply,
    RangeResult,
    RefUpdates,
    Registered,
    RegisterJob,
    RegisterNode,
    Release,
    RemoveGroup,
    ReturnBundle,
    SaveActor,
    SeekOwners,
    Spilled,
    StopActor,
    StreamItems,
    SubmitTasks,
    TakenBack,
    TaskFound,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TaskSpec,
    TooLong,
    Unblocked,
    Unpin,
    WantObjects,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import Failure, pack
from raytwin.runtime.control.node.heartbeats import Heartbeats
from raytwin.runtime.control.node.jobs import NodeJobs
from raytwin.runtime.control.node.membership_changes import NodeNews
from raytwin.runtime.control.node.undelivered import Undelivered
from raytwin.runtime.control.node.worker_failure import WorkerDeaths
from raytwin.runtime.control.objects.gcs_write_log import TaskLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.object_manager import ObjectDesk
from raytwin.runtime.control.objects.owned_objects import Owned
from raytwin.runtime.control.objects.owner_failure import OwnerFailure
from raytwin.runtime.control.objects.release import LettingGo
from raytwin.runtime.control.objects.task_results import Results
from raytwin.runtime.control.objects.unsealed_objects import Places
from raytwin.runtime.control.observability.queries import QueryDesk
from raytwin.runtime.control.observability.timeline import RangeLog
from raytwin.runtime.control.ownership.contained_references import Custody
from raytwin.runtime.control.scheduling.policies import make_policy


class LocalScheduler:
    """Schedules the tasks of one node; see the module's theory of operation."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        resources: Mapping[str, float],
        config: Config,
        incarnation: int = 1,
    ) -> None:
        self.ctx = ctx
        self.node = node
        self.incarnation = incarnation
        self.config = config
        self.resources = dict(resources)
        self.pool = ResourcePool(resources)
        self.log = TaskLog(ctx, node, config, incarnation)
        self.objects = ObjectDirectory(ctx, node, self.log.copied, config.store_wait_s)
        self.members = Membership(node, incarnation)
        self.owned = Owned(node, self.objects, self.log)
        self.access = JobAccess(ctx, self._worker_at)
        self.jobs = NodeJobs(self)
        self.canceller = Canceller(self)
        self.bundles = Bundles(self, self.pool)
        self.actors = ActorManager(ctx, node, self)
        self.inputs = TaskInputs(ctx, self.objects, self._push)
        self.custody = Custody(ctx, node, incarnation, self.members, self.owned.lend, self._lives)
        self.timeline = RangeLog(ctx, node, config.timeline_ranges_max)
        self.places = Places(ctx, node, config, self.objects, self._lives)
        self.submitter = CallSubmitter(
            ctx, node, config, self.actors.on_calls,
            self._finish_call,
            self._on_actor_dead, self.actors.cancel,
        )  # fmt: skip
        self.results = Results(
            ctx, node, self.objects, self.log, self.places, self.custody,
            self.submitter.received, self.submitter.all_received, self.submitter.any_under_way,
            self.owned.actors, self.access.is_over,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            ctx, node, incarnation, config, self.pool, self.objects, self.inputs, self.results,
            self.actors, self.canceller, self.timeline, self.custody,
        )  # fmt: skip
        self.acceptance = Acceptance(
            node, incarnation, self.objects, self.log, self.inputs, self.access, self.actors,
            self.results, self.timeline,
        )  # fmt: skip
        self.submission = Submission(
            ctx, self.objects, self.owned, self.log, self.inputs, self.access, self.actors,
            self.submitter, self.dispatcher,
            Keeping(
                node, make_policy(config), self.pool, self.members, self.dispatcher, self.bundles
            ),
            self.acceptance, self.results, node,
        )  # fmt: skip
        self.letting_go = LettingGo(
            ctx, self.objects, self.owned, self.results, self.submitter.forget_all, self.log,
            self.custody,
        )  # fmt: skip
        self.owner_failure = OwnerFailure(
            ctx, self.objects, self.owned, self.results, self.submitter.forget_all, self.log,
            self.letting_go.release_all,
        )  # fmt: skip
        self.deaths = WorkerDeaths(
            ctx, node, self.dispatcher, self.objects, self.places, self.custody, self.canceller,
            self.actors, self.owner_failure,
        )  # fmt: skip
        self.desk = ObjectDesk(
            ctx, node, self.objects, self.places, self.owned, self.log, self.custody,
            self.access.may_read, self._lives,
        )  # fmt: skip
        self.queries = QueryDesk(
            ctx, node, self.members, self.desk.store_usage,
            lambda: (self.queue, self.resources, self.pool.available()), self.desk.disk_usage,
        )  # fmt: skip
        self.queries.add("actors", self.actors.rows)
        self.queries.add("timeline", self.timeline.rows)
        self.queries.add("transfers", self.objects.pulls.transfers.rows)
        self.news = NodeNews(
            ctx, node, self.members, self.objects, self.owned, self.submitter, self.queries,
            self.log,
        )  # fmt: skip
        self.starving = Starving(
            ctx, node, incarnation, config, self.pool, self.dispatcher, self.actors, self.inputs,
            self.objects, self.log,
        )  # fmt: skip
        self.heartbeats = Heartbeats(
            ctx, node, incarnation, config, self.members, self.pool, self.objects,
            self.dispatcher, self.acceptance, self.actors, self.starving,
        )  # fmt: skip
        self.undelivered = Undelivered(
            ctx, node, self.dispatcher, self.deaths, self.actors, self.results
        )
        self._handlers: dict[type, Any] = {
            SubmitTasks: self.submission.on_submit,
            TasksDone: self.dispatcher.on_done,
            TaskResults: self.results.on_results,
            Release: self.letting_go.on_release,
            PutObjects: self.desk.on_put,
            WantObjects: self.desk.on_want,
            AllocateObject: self.places.on_allocate,
            Allocated: self.places.on_allocated,
            NoRoom: self.places.on_no_room,
            Spilled: lambda _, m: self.objects.eviction.on_spilled(m),
            AbandonObject: self.places.on_abandon,
            Unpin: self.desk.on_unpin,
            StreamItems: self.dispatcher.on_items,
            CancelTask: self._on_cancel,
            CreateGroup: self._on_create_group,
            GroupCreated: self._on_answer,
            RemoveGroup: self._on_remove_group,
            PrepareBundle: self.bundles.on_prepare,
            CommitBundle: self.bundles.on_commit,
            ReturnBundle: self.bundles.on_return,
            RegisterJob: self.jobs.on_register,
            JobRegistered: self.jobs.on_registered,
            DescribeJob: self.jobs.on_describe,
            JobEnded: self.jobs.on_ended,
            ExportFunction: self.inputs.on_export,
            FunctionBlob: self.inputs.on_function,
            AssignTasks: self.acceptance.on_assign,
            MoveTasks: self.starving.on_move,
            TakenBack: self.dispatcher.on_taken_back,
            Blocked: self.dispatcher.on_blocked,
            Unblocked: self.dispatcher.on_unblocked,
            WorkerReady: self.dispatcher.on_worker_ready,
            WorkerDied: self.deaths.on_died,
            Registered: self.heartbeats.on_registered,
            NodeChanged: self.news.on_node_changed,
            ObjectLocations: self.desk.on_locations,
            ObjectPayload: self.desk.on_payload,
            Fetched: lambda _, m: self.objects.pulls.on_fetched(m),
            FreeObjects: self.letting_go.on_free,
            TasksClaimed: self.submission.on_claimed,
            SeekOwners: self.desk.on_seek_owners,
            ForwardResults: self._on_forward,
            PullObject: self.desk.on_pull,
            ActorCalls: lambda _, m: self.actors.on_calls(m),
            CancelCall: lambda _, m: self.actors.cancel(m),
            ActorChanged: lambda _, m: self.submitter.on_changed(m),
            ActorLineage: lambda _, m: self.actors.on_lineage(m),
            CallsLogged: lambda _, m: self.actors.on_logged(m),
            StopActor: lambda _, m: self.actors.on_stop(m),
            DrainCalls: self.actors.on_drain,
            CallsDrained: lambda _, m: self.submitter.on_drained(m.actor),
            SaveActor: lambda s, m: self.actors.on_save(self.dispatcher.workers[s], m),
            ExitActor: lambda s, m: self.actors.on_exit(self.dispatcher.workers[s], m),
            KillActor: self._on_kill_actor,
            FindActor: self.submission.on_find_actor,
            ActorFound: self._on_answer,
            KvPut: self._on_table,
            KvGet: self._on_table,
            KvDelete: self._on_table,
            FindTask: self._on_table,
            TaskFound: self._on_answer,
            KvReply: self._on_answer,
            RefUpdates: self.desk.on_refs,
            Query: self.queries.on_query,
            QueryReply: self.queries.on_reply,
            TooLong: self.undelivered.on_too_long,
        }

    def start(self, host: str, port: int) -> None:
        """Join the cluster: the first turn of a node."""
        info = NodeInfo(self.node, host, port, self.resources, incarnation=self.incarnation)
        self.ctx.send("gcs", RegisterNode(info))
        self.dispatcher.start()

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if not self._lives(source):
            return  # its last words came after the news of its death
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Assign what can run, then send what must not wait."""
        self.bundles.end_turn()
        self.dispatcher.dispatch()
        self.objects.eviction.make_room()
        while self.inputs.failed:
            while self.inputs.failed:
                self.acceptance.fail(*self.inputs.failed.popleft())
            self.dispatcher.dispatch()
        self.submitter.end_turn()
        self.actors.end_turn()
        self.objects.pulls.end_turn()
        self.log.end_turn()

    @property
    def queue(self) -> int:
        """Elements that wait or run here."""
        return self.dispatcher.queue

    def _worker_at(self, address: str) -> Worker | None:
        return self.dispatcher.workers.get(address)

    def _lives(self, client: str) -> bool:
        if not client.startswith("worker:"):
            return client not in self.jobs.gone
        return client in self.dispatcher.workers

    # -- between the parts -----------------------------------------------------

    def _push(self, spec: TaskSpec) -> None:
        """Queue a range that could run now, if what it needs still exists here."""
        actor = spec.extra is not None and spec.extra.actor is not None
        if spec.extra is not None and spec.extra.group and not self.pool.feasible(spec.demand):
            # Its placement group has left this node: it was removed.
            if actor:
                self.inputs.unclaim(spec)
                self.actors.pass_on(spec)
                self.ctx.send("global", PlaceTasks([spec]))
            else:
                self.bundles.end(spec)
        elif actor:
            self.actors.ready(spec)
        else:
            self.dispatcher.ready.push(spec)

    def _finish_call(self, result: RangeResult, owner: str) -> None:
        self.results.finish_call(result, owner)

    def _on_actor_dead(self, actor: bytes, reason: Failure) -> None:
        """If its constructor has never ended its owner waits for that."""
        owner = self.objects.owners.get(actor)
        if owner is not None and not self.objects.has_array(actor):
            error = RangeResult(actor, 0, 1, SYSTEM_ERROR, pack(reason), self.node)
            self.results.finish(error, owner)

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        if self.access.may_cancel(source, message):
            self.canceller.on_cancel(source, message)

    def _on_forward(self, source: str, message: ForwardResults) -> None:
        self.inputs.claimed(message.array)
        self.results.on_forward(source, message)

    # -- questions passed on ---------------------------------------------------

    def _on_create_group(self, source: str, message: CreateGroup) -> None:
        message.client = source
        self.ctx.send("global", message)

    def _on_remove_group(self, source: str, message: RemoveGroup) -> None:
        message.job = self.access.of(source)
        self.bundles.on_remove(message.group, message.job)
        self.ctx.send("global", message)

    def _on_table(self, source: str, message: Any) -> None:
        """A client asks a table of the GCS: pass it on in its name."""
        message.client = source
        self.ctx.send("gcs", message)

    def _on_answer(self, source: str, message: Any) -> None:
        self.ctx.send(message.client, message)

    def _on_kill_actor(self, source: str, message: KillActor) -> None:
        self.submitter.killed(message.actor)
        message.job = self.access.of(source)
        self.ctx.send("gcs", message)
