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

Here a range comes in, stays or is passed on, and leaves. What it needs before it runs
is in `task_inputs`; which worker runs it in `dispatcher`; what becomes of its values in
`results`, of the places they are written to in `places`, and of what a dead worker's
tasks had submitted in `orphans`.

Dispatching ahead of need hides the round trip to the worker: a range of short
tasks costs one message each way. A function that has never been timed gets one
task per worker until the first is done.

Cost per task of a range of n: (2 messages + 2 dictionary entries) / n here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.control.actor_host import ActorHost
from runtime.control.actor_router import ActorRouter
from runtime.control.actor_table import DEAD
from runtime.control.call_runs import arrays_of, singles
from runtime.control.cancellation import Canceller
from runtime.control.config import Config
from runtime.control.context import Context, node_of
from runtime.control.custody import Custody
from runtime.control.dispatcher import Dispatcher
from runtime.control.ids import STREAM_BASE, object_id
from runtime.control.jobs import NodeJobs
from runtime.control.membership import Membership
from runtime.control.messages import (
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
    BorrowersGone,
    CallsDrained,
    CallsLogged,
    CancelCall,
    CancelTask,
    ClaimTasks,
    CommitBundle,
    CreateActors,
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
    Heartbeat,
    JobEnded,
    JobRegistered,
    KillActor,
    KillWorker,
    KvDelete,
    KvGet,
    KvPut,
    KvReply,
    Load,
    NodeChanged,
    NodeInfo,
    NoRoom,
    ObjectLocations,
    ObjectPayload,
    ObjectsReady,
    ObjectValue,
    OwnerDied,
    OwnersFound,
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
    ResultsMissing,
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
    TimelineRows,
    TooLong,
    Unblocked,
    Unpin,
    WantObjects,
    WorkerDied,
    WorkerReady,
)
from runtime.control.objects import ObjectDirectory
from runtime.control.orphans import Orphans
from runtime.control.placement_groups import Bundles
from runtime.control.places import Places
from runtime.control.policies import LocalView, make_policy
from runtime.control.queries import QueryDesk
from runtime.control.ranges import Ranges
from runtime.control.ready_queue import part_of
from runtime.control.ref_book import ENTER, ENTER_AND_SAY_SO
from runtime.control.resources import ResourcePool
from runtime.control.results import Results
from runtime.control.strategies import kept, strategy_of
from runtime.control.tables import attempt_of, needs_of
from runtime.control.task_inputs import TaskInputs
from runtime.control.task_log import TaskLog
from runtime.control.timeline import RangeLog
from runtime.control.timeline_archive import TimelineArchive
from runtime.control.too_long import error_text, results_of
from runtime.control.worker_table import Worker

SETTLE_TIMEOUTS = 2.0
"""How long borrowers have to enter themselves once more, in timeouts of heartbeats: they
may be slow, and who is slower than that is dead."""
MISSING_MAX = 4096
"""Ranges in one message about results that have not come."""


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
        self.policy = make_policy(config)
        self.log = TaskLog(ctx, node, config, incarnation)
        self.objects = ObjectDirectory(ctx, node, self.log.copied, config.store_wait_s)
        self.members = Membership(node, incarnation)
        self.custody = Custody(
            ctx, node, incarnation, self.members, self._lent, self._lives,
            self._to_heir,
        )  # fmt: skip
        self.timeline = RangeLog(ctx, node, config.timeline_ranges_max)
        self.accepted = 0
        """Elements that the global scheduler has given to this node so far."""
        self._owned_actors: set[bytes] = set()
        self._lent_out: set[bytes] = set()
        """Arrays that clients here own and of which others have, or had, references."""
        self._view_of = (b"", "")
        """Function and demand of the task before in this message, none outside of one."""
        self._view = LocalView(alone=True, feasible=False, queue=0, slots=0, mean_task_s=0.0)
        self._ends: dict[bytes, int] = {}
        """Of arrays of several elements: the end of what was submitted, in order."""
        self.jobs = NodeJobs(self)
        self.canceller = Canceller(self)
        self.bundles = Bundles(self, self.pool)
        self.actors = ActorHost(ctx, node, self)
        self.inputs = TaskInputs(ctx, self.objects, self._push)
        self.orphans = Orphans(
            ctx, self.objects, self.members, SETTLE_TIMEOUTS * config.heartbeat_timeout_s,
            self._owned_actors, self._is_made, self._lose,
        )  # fmt: skip
        self.places = Places(ctx, node, config, self.objects, self._lives)
        self.results = Results(
            ctx, node, self.objects, self.log, self.places, self.orphans, self.custody,
            self._received, self._all_received, self._any_awaited, self._owned_actors,
            self.jobs.is_over,
        )  # fmt: skip
        self.router = ActorRouter(
            ctx,
            node,
            config,
            self.actors.on_calls,
            self.results.finish_call,
            self._on_actor_dead,
            self.actors.cancel,
        )
        self.dispatcher = Dispatcher(
            ctx, node, incarnation, config, self.pool, self.objects, self.inputs, self.results,
            self.actors, self.canceller, self.timeline, self.custody,
        )  # fmt: skip
        self.queries = QueryDesk(
            ctx, node, self.members, self._store_usage,
            lambda: (self.queue, self.resources, self.pool.available()), self._disk_usage,
        )  # fmt: skip
        self.queries.add("actors", self.actors.rows)
        self.archive = TimelineArchive(
            ctx, node, self.members, config.timeline_ranges_max, self.timeline,
            self.objects.transfers,
        )  # fmt: skip
        self.queries.add("timeline", lambda: self.archive.rows("timeline"))
        self.queries.add("transfers", lambda: self.archive.rows("transfers"))
        self._handlers: dict[type, Any] = {
            SubmitTasks: self._on_submit,
            TasksDone: self.dispatcher.on_done,
            TaskResults: self.results.on_results,
            Release: self._on_release,
            PutObjects: self._on_put,
            WantObjects: self._on_want,
            AllocateObject: self.places.on_allocate,
            Allocated: self.places.on_allocated,
            NoRoom: self.places.on_no_room,
            Spilled: lambda _, m: self.objects.eviction.on_spilled(m),
            AbandonObject: self.places.on_abandon,
            Unpin: self._on_unpin,
            StreamItems: self.dispatcher.on_items,
            CancelTask: self._on_cancel,
            CreateGroup: self._pass_on,
            RemoveGroup: self._pass_on,
            PrepareBundle: self.bundles.on_prepare,
            CommitBundle: self.bundles.on_commit,
            ReturnBundle: self.bundles.on_return,
            RegisterJob: self.jobs.on_register,
            JobRegistered: self.jobs.on_registered,
            DescribeJob: self.jobs.on_describe,
            JobEnded: self.jobs.on_ended,
            ExportFunction: self.inputs.on_export,
            FunctionBlob: self.inputs.on_function,
            AssignTasks: self._on_assign,
            TakenBack: self.dispatcher.on_taken_back,
            Blocked: self.dispatcher.on_blocked,
            Unblocked: self.dispatcher.on_unblocked,
            WorkerReady: self.dispatcher.on_worker_ready,
            WorkerDied: self._on_worker_died,
            Registered: self._on_registered,
            NodeChanged: self._on_node_changed,
            ObjectLocations: self._on_locations,
            ObjectPayload: lambda _, m: self.objects.on_payload(m),
            Fetched: lambda _, m: self.objects.on_fetched(m),
            FreeObjects: self._on_free,
            TasksClaimed: self._on_claimed,
            SeekOwners: self._on_seek_owners,
            ForwardResults: self._on_forward,
            PullObject: self._on_pull,
            ActorCalls: lambda _, m: self.actors.on_calls(m),
            CancelCall: lambda _, m: self.actors.cancel(m),
            ActorChanged: lambda _, m: self.router.on_changed(m),
            ActorLineage: lambda _, m: self.actors.on_lineage(m),
            CallsLogged: lambda _, m: self.actors.on_logged(m),
            StopActor: lambda _, m: self.actors.on_stop(m),
            DrainCalls: self.actors.on_drain,
            CallsDrained: lambda _, m: self.router.on_drained(m.actor),
            SaveActor: lambda s, m: self.actors.on_save(self.dispatcher.workers[s], m),
            ExitActor: lambda s, m: self.actors.on_exit(self.dispatcher.workers[s], m),
            KillActor: self._on_kill_actor,
            FindActor: self._on_find_actor,
            ActorFound: self._on_actor_found,
            KvPut: self._on_table,
            KvGet: self._on_table,
            KvDelete: self._on_table,
            FindTask: self._on_table,
            TaskFound: lambda _, m: self.ctx.send(m.client, m),
            KvReply: lambda _, m: self.ctx.send(m.client, m),
            RefUpdates: self._on_refs,
            OwnerDied: lambda _, m: self.custody.on_owner_died(m),
            TimelineRows: self.archive.on_rows,
            Query: self.queries.on_query,
            QueryReply: self.queries.on_reply,
            TooLong: self._on_too_long,
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
        self.dispatcher.turn()
        self.objects.eviction.make_room()
        while self.inputs.failed:
            while self.inputs.failed:
                self._finish_failed(*self.inputs.failed.popleft())
            self.dispatcher.dispatch()
        self.router.end_turn()
        self.actors.end_turn()
        self.objects.end_turn()
        self.log.end_turn()

    @property
    def queue(self) -> int:
        """Elements that wait or run here."""
        return self.dispatcher.ready.size + self.inputs.waiting + self.dispatcher.assigned

    # -- submission ------------------------------------------------------------

    def _on_submit(self, source: str, message: SubmitTasks) -> None:
        # Children of a task that was placed again may be there already.
        worker = self.dispatcher.workers.get(source)
        running = worker.assigned[0] if worker is not None and worker.assigned else None
        again = running is not None and attempt_of(running) > 0
        if worker is not None and worker.actor:
            again = self.actors.is_repeating(worker)
        claims: list[TaskSpec] = []
        self._view_of = (b"", "")
        for spec in message.tasks:
            if spec.extra is not None and spec.extra.run is not None:
                self._on_run(source, spec)
                continue
            array, end = spec.array, spec.start + spec.count
            new = spec.start
            if array in self.objects.owners:
                # The next part of an array, or again: its parent runs a second time.
                new = max(new, self._ends.get(array, 1))
            self.objects.own(array, source)
            refused = self.jobs.refusal(source, spec) if spec.deps else None
            if refused is not None:
                self._refuse(spec, refused)
                continue
            if new > spec.start:
                self._tell_made(spec, source)
                if array in self._owned_actors:
                    # The GCS ends it for its owner alone.
                    self.ctx.send("gcs", CreateActors([spec]))
            if new < end and spec.extra is not None and self._is_actors(spec, source):
                continue
            if new < end:
                part = spec if new == spec.start else part_of(spec, new, end - new)
                if again:
                    self.log.spilled(part, self.objects.owners)
                    claims.append(part)
                else:
                    self._submit(part)
            if end > 1:
                self._ends[array] = max(end, self._ends.get(array, 0))
        self._view_of = (b"", "")
        if claims:
            self.ctx.send("gcs", ClaimTasks(claims))

    def _on_run(self, source: str, spec: TaskSpec) -> None:
        """A run of calls; one by one if any of them was submitted before."""
        arrays = arrays_of(spec)
        if self.objects.own_all(arrays, source):
            self.router.submit_run(spec, arrays)
        else:
            self._on_submit(source, SubmitTasks(singles([spec])))

    def _on_claimed(self, source: str, message: TasksClaimed) -> None:
        """What of a repeated task's children is to be run after all."""
        for spec in message.tasks:
            if spec.array in self.objects.owners:
                self._submit(spec)

    def _on_forward(self, source: str, message: ForwardResults) -> None:
        self.inputs.claimed(message.array)
        self.results.on_forward(source, message)

    def _on_seek_owners(self, source: str, message: SeekOwners) -> None:
        owned: list[bytes] = []
        others: list[bytes] = []
        for array in message.arrays:
            (owned if self.objects.will_tell(array) else others).append(array)
        self.ctx.send("gcs", OwnersFound(self.node, owned, others))

    def _is_actors(self, spec: TaskSpec, owner: str) -> bool:
        """Take the creation of an actor or a call; return whether it was one."""
        extra = spec.extra
        assert extra is not None
        if extra.call:
            for oid in needs_of(spec) if extra.inside else spec.deps:
                if oid[: len(spec.array)] in self.objects.owners:
                    self.log.expose(oid[: len(spec.array)])
            self.router.submit(spec)
        elif extra.actor is not None:
            self._own_actor(spec)
            self.ctx.send("gcs", CreateActors([spec]))
        else:
            return False
        return True

    def _own_actor(self, spec: TaskSpec) -> None:
        assert spec.extra is not None and spec.extra.actor is not None
        self.log.spilled(spec, self.objects.owners)
        self.router.watch(spec.array)
        if not spec.extra.actor.detached:
            self._owned_actors.add(spec.array)

    def _refuse(self, spec: TaskSpec, error: ObjectValue) -> None:
        """End what a client may not submit; an actor was dead before it was alive."""
        if spec.extra is not None and spec.extra.actor is not None:
            self.router.watch(spec.array)
            reason = error.payload.decode()
            self.router.on_changed(ActorChanged(spec.array, DEAD, -1, 0, reason))
        else:
            self.inputs.fail(spec, error)

    def _on_table(self, source: str, message: Any) -> None:
        """A client asks a table of the GCS: pass it on in its name."""
        message.client = source
        self.ctx.send("gcs", message)

    def _on_find_actor(self, source: str, message: FindActor) -> None:
        message.job = self.jobs.of(source)
        if message.create is not None:
            refused = self.jobs.refusal(source, message.create)
            if refused is not None:
                self.objects.own(message.create.array, source)
                self._refuse(message.create, refused)
                found = ActorFound(message.key, source, message.create.array, b"", created=True)
                self.ctx.send(source, found)
                return
            self.objects.own(message.create.array, source)
            self._own_actor(message.create)
        self.ctx.send("gcs", message)

    def _on_actor_dead(self, actor: bytes, reason: str) -> None:
        """If its constructor has never ended its owner waits for that."""
        owner = self.objects.owners.get(actor)
        if owner is not None and not self.objects.has_array(actor):
            error = RangeResult(actor, 0, 1, SYSTEM_ERROR, reason.encode(), self.node)
            self.results.finish(error, owner)

    def _on_kill_actor(self, source: str, message: KillActor) -> None:
        self.router.killed(message.actor)
        message.job = self.jobs.of(source)
        self.ctx.send("gcs", message)

    def _on_actor_found(self, source: str, message: ActorFound) -> None:
        self.ctx.send(message.client, message)

    def _tell_made(self, spec: TaskSpec, owner: str) -> None:
        """Tell the new owner what its parent's earlier run has led to so far."""
        end = spec.start + spec.count
        made = [
            result
            for result in self.objects.results_of(spec.array)
            if (result.start < end and spec.start < result.start + result.count)
            or result.start >= STREAM_BASE
        ]
        if made:
            self.ctx.send(owner, TaskResults(owner, made))

    def _submit(self, spec: TaskSpec) -> None:
        stay = self._kept(spec)
        if stay == spec.count:
            self.log.accept(spec)
            self._accept(spec)
            return
        if stay:
            head = part_of(spec, spec.start, stay)
            self.log.accept(head)
            self._accept(head)
        rest = part_of(spec, spec.start + stay, spec.count - stay)
        self.log.spilled(rest, self.objects.owners)
        self.ctx.send("global", PlaceTasks([rest]))

    def _kept(self, spec: TaskSpec) -> int:
        if spec.extra is None and self._view_of == (spec.function, spec.demand):
            # As the one before in this message: only the queue has changed.
            self._view.queue = self.queue
            return self.policy.keep(self._view, spec.count)
        slots = self.pool.slots(spec.demand)
        strategy = strategy_of(spec)
        if strategy:
            feasible = slots > 0 and self.pool.feasible(spec.demand)
            return kept(strategy, self.node, spec.count, feasible, self.members.alone)
        view = LocalView(
            alone=self.members.alone,
            feasible=slots > 0,
            queue=self.queue,
            slots=slots,
            mean_task_s=self.dispatcher.means.get(spec.function, 0.0),
        )
        if spec.extra is None:
            self._view_of, self._view = (spec.function, spec.demand), view
        return self.policy.keep(view, spec.count)

    def _on_assign(self, source: str, message: AssignTasks) -> None:
        for spec in message.tasks:
            self.accepted += spec.count
            if self.jobs.is_late(spec):
                continue
            if spec.extra is not None and spec.extra.actor is not None:
                if not self.actors.accept(spec):
                    continue
            else:
                gone = node_of(spec.owner) == self.node and spec.array not in self.objects.owners
                if gone and attempt_of(spec):
                    # The GCS will free it, when nobody needs it any more.
                    self.results.keep_for_others(spec.array)
                # What was let go of on its first way here nobody needs or hears of.
                if not gone or attempt_of(spec):
                    self.log.expose(spec.array)
            self._accept(spec)

    def _accept(self, spec: TaskSpec) -> None:
        """Queue a range, at once or when its inputs and function are here."""
        self.timeline.accepted(spec)
        self.inputs.accept(spec)

    def _push(self, spec: TaskSpec) -> None:
        """Queue a range that could run now, if what it needs still exists here."""
        if spec.extra is not None and spec.extra.group and not self.pool.feasible(spec.demand):
            # Its placement group has left this node.
            self.inputs.unclaim(spec)
            self.ctx.send("global", PlaceTasks([spec]))
        elif spec.extra is not None and spec.extra.actor is not None:
            self.actors.ready(spec)
        else:
            self.dispatcher.ready.push(spec)

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        if self.jobs.may_cancel(source, message):
            self.canceller.on_cancel(source, message)

    def _pass_on(self, source: str, message: CreateGroup | RemoveGroup) -> None:
        self.ctx.send("global", message)

    # -- dispatch --------------------------------------------------------------

    # -- workers ---------------------------------------------------------------

    def _on_worker_died(self, source: str, message: WorkerDied) -> None:
        worker = self.dispatcher.workers.pop(message.worker, None)
        client = message.worker
        owned = [a for a in self.objects.drop_client(client) if self.objects.let_go(a, client)]
        self.places.drop(message.worker)
        self.custody.worker_gone(message.worker)
        running = worker.assigned[0] if worker is not None and worker.assigned else None
        cause = None if worker is None else worker.killed_for
        if cause is not None:
            self.canceller.cancel_children(owned, cause)
        if worker is not None and owned:
            parent = running if cause is None and running is not None and running.retries else None
            self._inherit(worker, owned, parent)
        if worker is not None:
            self.dispatcher.died(worker, message.reason)

    def _inherit(self, worker: Worker, owned: list[bytes], parent: TaskSpec | None) -> None:
        """A worker is gone that owned arrays: keep what somebody may want."""
        restarts = self.actors.may_restart(worker)
        if parent is None and not restarts:
            # Actors end with their owner.
            for actor in [array for array in owned if array in self._owned_actors]:
                self._lose(actor)
            owned = [array for array in owned if array in self.objects.owners]
        lent = not self._lent_out.isdisjoint(owned)
        if parent is None and not restarts and not lent:
            for array in owned:
                self._lose(array)
            return
        self.orphans.keep(worker.address, owned, parent, restarts, lent)
        if lent or restarts:
            for array in owned:
                self.log.expose(array)
        if lent:
            died = OwnerDied(worker.address)
            for info in self.members.alive():
                if info.node != self.node:
                    self.ctx.send(f"node:{info.node}", died)
            self.custody.on_owner_died(died)

    def _is_made(self, array: bytes) -> bool:
        """Whether all that was submitted of an array has ended, as far as is known here."""
        made = Ranges()
        for result in self.objects.results_of(array):
            made.add(result.start, result.count)
        return not made.missing(0, self._ends.get(array, 1))

    def _lose(self, array: bytes) -> None:
        """Its owner is dead: whoever has borrowed it asks the GCS, which has to know.

        If somebody on another node has claimed it, that is its owner.
        """
        if self.results.has_heir_elsewhere(array):
            self.log.hand_over(array)
            self.objects.disown(array)
            self.results.keep_for_others(array)
            self.router.forget_all((array,))
            self._ends.pop(array, None)
            self._lent_out.discard(array)
            return
        self.log.bereave(array)
        self._release(array)

    def _received(self, array: bytes) -> bool:
        return self.router.received(array)

    def _all_received(self, arrays: Sequence[bytes]) -> bool:
        return self.router.all_received(arrays)

    def _any_awaited(self, arrays: Sequence[bytes]) -> bool:
        return self.router.any_under_way(arrays)

    def _lives(self, client: str) -> bool:
        if not client.startswith("worker:"):
            return client not in self.jobs.gone
        return client in self.dispatcher.workers

    def end_worker(self, worker: Worker, reason: str) -> None:
        """End a worker at once, whatever it is doing."""
        self.ctx.send(f"pool:{self.node}", KillWorker(worker.address))
        self._on_worker_died(f"pool:{self.node}", WorkerDied(worker.address, reason))

    def _on_too_long(self, source: str, message: TooLong) -> None:
        """Something that this node has sent does not travel; see `too_long`."""
        worker = self.dispatcher.workers.get(message.to)
        if worker is not None:
            self.end_worker(worker, error_text(message))
        elif message.actor:
            self.actors.end(message.actor, message.incarnation, error_text(message))
        elif message.results:
            self.ctx.send(message.to, TaskResults(message.owner, message.results))
        else:
            tasks = singles(message.tasks)
            for result, task in zip(results_of(message, self.node), tasks, strict=True):
                self.results.finish_call(result, task.owner)

    def end_job(self, job: bytes, reason: str) -> None:
        """Drop all that a job has here, queues first, so that nothing of it begins."""
        workers = self.dispatcher.end_job(job)
        self.inputs.end_job(job)
        # Detached actors here keep their class, whose job may have ended.
        actors = [actor.spec for actor in self.actors.actors.values()]
        used = {spec.function for spec in actors if not self.jobs.is_late(spec)}
        self.inputs.forget_functions(self.jobs.ended, used)
        for worker in workers:
            self.end_worker(worker, reason)
        self.orphans.end_job(job)
        self.actors.end_job(job)
        self.results.end_job(job)
        for array in self.objects.of_job(job):
            self.log.forget(array)
            self._release(array)

    def end_driver(self, client: str) -> None:
        """Drop what a driver of this node held."""
        for array in self.objects.drop_client(client):
            if self.objects.let_go(array, client):
                self._release(array)
        self.places.drop(client)
        self.custody.worker_gone(client)

    # -- results and objects ---------------------------------------------------

    def _finish_failed(self, spec: TaskSpec, error: ObjectValue) -> None:
        """A range ends without having run."""
        if spec.extra is not None and spec.extra.actor is not None:
            self.actors.creation_failed(spec, error)
            return
        self.results.finish(
            RangeResult(
                spec.array, spec.start, spec.count, error.status, error.payload, self.node,
                spec.returns,
            ),
            spec.owner,
        )  # fmt: skip

    def _on_put(self, source: str, message: PutObjects) -> None:
        for result in message.results:
            self.objects.own(result.array, source)
            self.places.sealed(object_id(result.array, 0, 0))
            if result.refs is not None:
                self.custody.reported(source, result)
                self.custody.keep(result)
            self.objects.add(result)
            self.log.put(result.array, sum(result.sizes))

    def _on_release(self, source: str, message: Release) -> None:
        arrays: Sequence[bytes] = message.arrays
        if self.objects.others:
            arrays = [array for array in arrays if self.objects.let_go(array, source)]
        if len(self.orphans):
            arrays = self.orphans.let_go(arrays)
        self._release_all(arrays)

    def _release(self, array: bytes) -> None:
        self._release_all((array,))

    def _release_all(self, arrays: Sequence[bytes]) -> None:
        """Forget arrays; of most there is nothing but an owner and a small result."""
        if self._ends:
            for array in arrays:
                self._ends.pop(array, None)
        self.results.released(arrays)
        self.router.forget_all(arrays)
        if not self._owned_actors.isdisjoint(arrays):
            for actor in [array for array in arrays if array in self._owned_actors]:
                self._owned_actors.discard(actor)
                owner = self.objects.owners.get(actor) or self.orphans.former_owner(actor)
                reason = "ActorDiedError: no handle of the actor is left, or its owner has died"
                self.ctx.send("gcs", KillActor(actor, reason, owner=owner))
        if self._lent_out:
            self._lent_out.difference_update(arrays)
        self.log.release_all(arrays)
        self.objects.release_all(arrays)
        if self.custody.contained:
            for array in arrays:
                if array in self.custody.contained:
                    self.custody.release(array)

    def _on_free(self, source: str, message: FreeObjects) -> None:
        for array in message.arrays:
            self.results.freed(array)
            if array in self.objects.owners:
                continue  # made again by a client of this node, which will let go of it
            self.results.released((array,))
            self.log.forget(array)
            self.objects.release(array)
            if array in self.custody.contained:
                self.custody.release(array)

    def _on_want(self, source: str, message: WantObjects) -> None:
        def arrived(value: ObjectValue) -> None:
            if self._lives(source):
                if value.size:
                    self.objects.pin(value.object, source)
                self.ctx.send(source, ObjectsReady([value]))

        for oid in message.objects:
            refused = self.jobs.may_read(source, oid)
            if refused is None:
                self.objects.want(oid, arrived)
            else:
                self.ctx.send(source, ObjectsReady([refused]))

    def _on_refs(self, source: str, message: RefUpdates) -> None:
        if node_of(message.owner) == self.node:
            for array, _, _, what in message.updates:
                if what in (ENTER, ENTER_AND_SAY_SO):
                    self._lent(array)
        self.custody.on_updates(source, message)

    def _to_heir(self, message: RefUpdates) -> None:
        """The owner that is told something has died: this node stands in for it."""
        self.orphans.on_updates(message)

    def _lent(self, array: bytes) -> None:
        """A reference of it is somewhere else: the GCS has to know of it."""
        if array in self.objects.owners:
            self._lent_out.add(array)
            self.log.expose(array)

    def _on_unpin(self, source: str, message: Unpin) -> None:
        for oid in message.objects:
            self.objects.unpin(oid, source)

    def _store_usage(self) -> tuple[int, int, int]:
        """Return (large objects, their bytes, places not sealed yet)."""
        return (*self.objects.usage(), len(self.places))

    def _disk_usage(self) -> tuple[int, int]:
        """Return (objects on disk, their bytes)."""
        eviction = self.objects.eviction
        return len(eviction.on_disk), eviction.spilled_bytes

    def _on_pull(self, source: str, message: PullObject) -> None:
        oid = message.object

        def push() -> None:
            self.ctx.send(source, ObjectPayload(oid, self.objects.result_of(oid)))

        if self.objects.is_on_its_way(oid):
            self.objects.want(oid, lambda _: push())
        else:
            push()

    def _on_locations(self, source: str, message: ObjectLocations) -> None:
        for location in message.locations:
            self.objects.on_location(location)

    # -- membership ------------------------------------------------------------

    def _on_registered(self, source: str, message: Registered) -> None:
        for info in message.nodes:
            self.members.update(info)
        self._beat()

    def _on_node_changed(self, source: str, message: NodeChanged) -> None:
        self.members.update(message.info)
        self.ctx.send(f"links:{self.node}", message)
        self.queries.on_node_changed(message.info)
        self.objects.on_node_changed(message.info.node, message.info.alive)
        self.router.on_node_changed(message.info.node, message.info.alive)
        if not message.info.alive:
            self._report_missing()
            self.orphans.on_node_died(message.info.node, message.info.incarnation)
            for client in self.objects.clients():
                gone = BorrowersGone(message.info.node, message.info.incarnation)
                self.ctx.send(client, gone)

    def _report_missing(self) -> None:
        """Say which results have not come: one may have been on its way from a dead node."""
        ranges: list[tuple[bytes, int, int]] = []
        for array in self.objects.owners:
            if self.log.knows(array):
                made = Ranges()
                for result in self.objects.results_of(array):
                    made.add(result.start, result.count)
                gaps = made.missing(0, self._ends.get(array, 1))
                ranges += [(array, start, count) for start, count in gaps]
        for at in range(0, len(ranges), MISSING_MAX):
            missing = ResultsMissing(self.node, ranges[at : at + MISSING_MAX])
            self.ctx.send("gcs", missing)

    def _beat(self) -> None:
        load = Load(
            queue=self.queue,
            mean_task_s=self.dispatcher.mean_task_s,
            bandwidth=self.objects.bandwidth,
            assigned=self.accepted,
            available=self.pool.available(),
        )
        self.actors.on_heartbeat()
        self.archive.on_heartbeat()
        self.ctx.send("gcs", Heartbeat(self.node, self.incarnation, load))
        self.ctx.after(self.config.heartbeat_s, self._beat)
