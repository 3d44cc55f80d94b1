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

Dispatching ahead of need hides the round trip to the worker: a range of short
tasks costs one message each way. A function that has never been timed gets one
task per worker until the first is done.

Cost per task of a range of n: (2 messages + 2 dictionary entries) / n here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from runtime.control.actor_host import Actor, ActorHost
from runtime.control.actor_router import ActorRouter
from runtime.control.cancellation import Canceller, cancelled_error
from runtime.control.config import Config
from runtime.control.context import WORKERS_PER_LIFE, Context, Timer, node_of
from runtime.control.eviction import CLIENT, Request
from runtime.control.ids import STREAM_BASE, object_id
from runtime.control.membership import Membership
from runtime.control.messages import (
    OK,
    RETRY,
    SYSTEM_ERROR,
    AbandonObject,
    ActorCalls,
    ActorChanged,
    ActorFound,
    ActorLineage,
    Allocate,
    Allocated,
    AllocateObject,
    Assignment,
    AssignTasks,
    Blocked,
    CallsDrained,
    CallsLogged,
    CancelTask,
    ClaimTasks,
    CommitBundle,
    CreateActors,
    CreateGroup,
    DrainCalls,
    Event,
    ExitActor,
    ExportFunction,
    Fetched,
    FetchFunction,
    FindActor,
    FindTask,
    ForwardResults,
    Free,
    FreeObjects,
    FunctionBlob,
    Heartbeat,
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
    ObjectAllocated,
    ObjectLocations,
    ObjectPayload,
    ObjectsReady,
    ObjectValue,
    PlaceTasks,
    PrepareBundle,
    PullObject,
    PutObjects,
    Query,
    QueryReply,
    RangeResult,
    Registered,
    RegisterNode,
    Release,
    RemoveGroup,
    ResultsMissing,
    Resume,
    ReturnBundle,
    RunTasks,
    SaveActor,
    Spilled,
    StartWorker,
    StopActor,
    StopWorker,
    StreamItems,
    SubmitTasks,
    TakeBack,
    TakenBack,
    TaskFound,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TaskSpec,
    Unblocked,
    Unpin,
    WantObjects,
    WorkerDied,
    WorkerReady,
)
from runtime.control.objects import NOBODY, ObjectDirectory, released_error
from runtime.control.placement_groups import Bundles
from runtime.control.policies import LocalView, make_policy
from runtime.control.queries import QueryDesk
from runtime.control.ranges import Ranges
from runtime.control.ready_queue import ReadyQueue, cut, part_of
from runtime.control.resources import ResourcePool, cpu_part
from runtime.control.strategies import kept, strategy_of
from runtime.control.tables import attempt_of
from runtime.control.task_log import TaskLog
from runtime.control.timeline import RangeLog
from runtime.control.worker_table import State, Worker

WORKERS_WITHOUT_CPU_MAX = 64
"""How many workers a node starts for tasks that need no CPU and do not wait."""
MISSING_MAX = 4096
"""Ranges in one message about results that have not come."""
STUCK_AHEADS = 4
"""After so many ``ahead_s`` without news, twice, what was given ahead is taken back."""


class _Waiting:
    """A range whose inputs are not all here."""

    __slots__ = ("cancelled", "failed", "missing", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.cancelled = False
        self.missing = 1  # held until every input was asked for
        self.failed: tuple[int, ObjectValue] | None = None
        """The first input, in the order of the arguments, that is an error."""


class _Orphans:
    """Arrays whose owner died, until the elements that may claim them have run."""

    __slots__ = ("arrays", "parents")

    def __init__(self, arrays: list[bytes], parents: int) -> None:
        self.arrays = arrays
        self.parents = parents


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
        self.ready = ReadyQueue()
        self.workers: dict[str, Worker] = {}
        self.canceller = Canceller(self)
        self.bundles = Bundles(self, self.pool)
        self.awaiting: set[_Waiting] = set()
        self.waiting = 0
        """Elements that wait for an input."""
        self.assigned = 0
        """Elements that are on a worker."""
        self.accepted = 0
        """Elements that the global scheduler has given to this node so far."""
        self.means: dict[bytes, float] = {}
        self.mean_task_s = 0.0
        self.functions: dict[bytes, bytes] = {}
        self.actors = ActorHost(ctx, node, self)
        self.router = ActorRouter(
            ctx, node, config, self.actors.on_calls, self.finish_call, self._on_actor_dead
        )
        self._owned_actors: set[bytes] = set()
        self.queries = QueryDesk(
            ctx, node, self.members, self._store_usage,
            lambda: (self.queue, self.resources, self.pool.available()), self._disk_usage,
        )  # fmt: skip
        self.queries.add("actors", self.actors.rows)
        self.timeline = RangeLog(ctx, node, config.timeline_ranges_max)
        self.queries.add("timeline", self.timeline.rows)
        self.queries.add("transfers", self.objects.transfers.rows)
        self._idle: list[Worker] = []
        self._resuming: deque[Worker] = deque()
        self._failed: deque[tuple[TaskSpec, ObjectValue]] = deque()
        """Ranges that end with an input's error, at the end of the turn: each may
        be the input of others, and a long chain of them is no deep recursion."""
        self._allocated: dict[bytes, tuple[str, int]] = {}
        self._for_function: dict[bytes, list[TaskSpec]] = {}
        self._ends: dict[bytes, int] = {}
        """Of arrays of several elements: the end of what was submitted, in order."""
        self._orphans: dict[tuple[bytes, int], list[_Orphans]] = {}
        """By the element that runs again."""
        self._for_others: set[bytes] = set()
        """Arrays that their owner here has released and that are made again for others."""
        self._heirs: dict[bytes, dict[str, None]] = {}
        """Who waits for an array besides the owner that its specs name."""
        self._claims: dict[tuple[bytes, int], list[int]] = {}
        """The ranks of ranges whose inputs are claimed, by their first element: one
        range may be here twice."""
        self._ranks = 0
        self._names = (incarnation - 1) * WORKERS_PER_LIFE
        self._starting = 0
        """Workers that are on their way."""
        self._watch: Timer | None = None
        self._last_done_s = 0.0
        self._told: list[RangeResult] | None = None
        """Results that a worker has just reported, on their way to their owners."""
        self._prestart = self.pool.slots("CPU:1")
        self._handlers: dict[type, Any] = {
            SubmitTasks: self._on_submit,
            TasksDone: self._on_done,
            TaskResults: self._on_results,
            Release: self._on_release,
            PutObjects: self._on_put,
            WantObjects: self._on_want,
            AllocateObject: self._on_allocate,
            Allocated: self._on_allocated,
            NoRoom: self._on_no_room,
            Spilled: lambda _, m: self.objects.eviction.on_spilled(m),
            AbandonObject: self._on_abandon,
            Unpin: self._on_unpin,
            StreamItems: self._on_items,
            CancelTask: self.canceller.on_cancel,
            CreateGroup: self._pass_on,
            RemoveGroup: self._pass_on,
            PrepareBundle: self.bundles.on_prepare,
            CommitBundle: self.bundles.on_commit,
            ReturnBundle: self.bundles.on_return,
            ExportFunction: self._on_export,
            FunctionBlob: self._on_function,
            AssignTasks: self._on_assign,
            TakenBack: self._on_taken_back,
            Blocked: self._on_blocked,
            Unblocked: self._on_unblocked,
            WorkerReady: self._on_worker_ready,
            WorkerDied: self._on_worker_died,
            Registered: self._on_registered,
            NodeChanged: self._on_node_changed,
            ObjectLocations: self._on_locations,
            ObjectPayload: lambda _, m: self.objects.on_payload(m),
            Fetched: lambda _, m: self.objects.on_fetched(m),
            FreeObjects: self._on_free,
            TasksClaimed: self._on_claimed,
            ForwardResults: self._on_forward,
            PullObject: self._on_pull,
            ActorCalls: lambda _, m: self.actors.on_calls(m),
            ActorChanged: lambda _, m: self.router.on_changed(m),
            ActorLineage: lambda _, m: self.actors.on_lineage(m),
            CallsLogged: lambda _, m: self.actors.on_logged(m),
            StopActor: lambda _, m: self.actors.on_stop(m),
            DrainCalls: self.actors.on_drain,
            CallsDrained: lambda _, m: self.router.on_drained(m.actor),
            SaveActor: lambda s, m: self.actors.on_save(self.workers[s], m),
            ExitActor: lambda s, m: self.actors.on_exit(self.workers[s], m),
            KillActor: self._on_kill_actor,
            FindActor: self._on_find_actor,
            ActorFound: self._on_actor_found,
            KvPut: self._on_table,
            KvGet: self._on_table,
            KvDelete: self._on_table,
            FindTask: self._on_table,
            TaskFound: lambda _, m: self.ctx.send(m.client, m),
            KvReply: lambda _, m: self.ctx.send(m.client, m),
            Query: self.queries.on_query,
            QueryReply: self.queries.on_reply,
        }

    def start(self, host: str, port: int) -> None:
        """Join the cluster: the first turn of a node."""
        info = NodeInfo(self.node, host, port, self.resources, incarnation=self.incarnation)
        self.ctx.send("gcs", RegisterNode(info))
        for _ in range(self._prestart):
            self._start_worker()

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if source.startswith("worker:") and source not in self.workers:
            return  # its last words came after the news of its death
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Assign what can run, then send what must not wait."""
        self.bundles.end_turn()
        self._resume()
        self._dispatch()
        self.objects.eviction.make_room()
        while self._failed:
            while self._failed:
                self._finish_failed(*self._failed.popleft())
            self._dispatch()
        self.router.end_turn()
        self.actors.end_turn()
        self.objects.end_turn()
        self.log.end_turn()

    @property
    def queue(self) -> int:
        """Elements that wait or run here."""
        return self.ready.size + self.waiting + self.assigned

    # -- submission ------------------------------------------------------------

    def _on_submit(self, source: str, message: SubmitTasks) -> None:
        # Children of a task that was placed again may be there already.
        worker = self.workers.get(source)
        running = worker.assigned[0] if worker is not None and worker.assigned else None
        claims: list[TaskSpec] = []
        for spec in message.tasks:
            array, end = spec.array, spec.start + spec.count
            new = spec.start
            if array in self.objects.owners:
                # The next part of an array, or again: its parent runs a second time.
                new = max(new, self._ends.get(array, 1))
            self.objects.own(array, source)
            if new > spec.start:
                self._tell_made(spec, source)
            if new < end and spec.extra is not None and self._is_actors(spec, source):
                continue
            if new < end:
                part = spec if new == spec.start else part_of(spec, new, end - new)
                if running is not None and attempt_of(running):
                    self.log.spilled(part, self.objects.owners)
                    claims.append(part)
                else:
                    self._submit(part)
            if end > 1:
                self._ends[array] = max(end, self._ends.get(array, 0))
        if claims:
            self.ctx.send("gcs", ClaimTasks(claims))

    def _on_claimed(self, source: str, message: TasksClaimed) -> None:
        """What of a repeated task's children is to be run after all."""
        for spec in message.tasks:
            if spec.array in self.objects.owners:
                self._submit(spec)

    def _on_forward(self, source: str, message: ForwardResults) -> None:
        """Somebody else waits for what was run here, or is to be, for a dead owner."""
        end = message.start + message.count
        results = [
            result
            for result in self.objects.results_of(message.array)
            if result.start < end and message.start < result.start + result.count
        ]
        self._heirs.setdefault(message.array, {})[message.owner] = None
        if results:
            self._send_results(message.owner, results)

    def _send_results(self, owner: str, results: list[RangeResult]) -> None:
        to = owner if node_of(owner) == self.node else f"node:{node_of(owner)}"
        self.ctx.send(to, TaskResults(owner, results))

    def _is_actors(self, spec: TaskSpec, owner: str) -> bool:
        """Take the creation of an actor or a call; return whether it was one."""
        extra = spec.extra
        assert extra is not None
        if extra.call:
            for oid in spec.deps:
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

    def _on_table(self, source: str, message: Any) -> None:
        """A client asks a table of the GCS: pass it on in its name."""
        message.client = source
        self.ctx.send("gcs", message)

    def _on_find_actor(self, source: str, message: FindActor) -> None:
        if message.create is not None:
            self.objects.own(message.create.array, source)
            self._own_actor(message.create)
        self.ctx.send("gcs", message)

    def _on_actor_dead(self, actor: bytes, reason: str) -> None:
        """If its constructor has never ended its owner waits for that."""
        owner = self.objects.owners.get(actor)
        if owner is not None and not self.objects.has_array(actor):
            error = RangeResult(actor, 0, 1, SYSTEM_ERROR, reason.encode(), self.node)
            self._finish(error, owner)

    def _on_kill_actor(self, source: str, message: KillActor) -> None:
        self.router.killed(message.actor)
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
            mean_task_s=self.means.get(spec.function, 0.0),
        )
        return self.policy.keep(view, spec.count)

    def _on_assign(self, source: str, message: AssignTasks) -> None:
        for spec in message.tasks:
            self.accepted += spec.count
            if spec.extra is not None and spec.extra.actor is not None:
                if not self.actors.accept(spec):
                    continue
            else:
                gone = node_of(spec.owner) == self.node and spec.array not in self.objects.owners
                if gone and attempt_of(spec):
                    # The GCS will free it, when nobody needs it any more.
                    self._for_others.add(spec.array)
                # What was let go of on its first way here nobody needs or hears of.
                if not gone or attempt_of(spec):
                    self.log.expose(spec.array)
            self._accept(spec)

    def _accept(self, spec: TaskSpec) -> None:
        """Queue a range, at once or when its inputs and function are here."""
        self.timeline.accepted(spec)
        if spec.function not in self.functions:
            self._await_function(spec)
        elif spec.deps:
            self._await_inputs(spec)
        else:
            self._push(spec)

    def _push(self, spec: TaskSpec) -> None:
        """Queue a range that could run now, if what it needs still exists here."""
        if spec.extra is not None and spec.extra.group and not self.pool.feasible(spec.demand):
            # Its placement group has left this node.
            self.unclaim(spec)
            self.ctx.send("global", PlaceTasks([spec]))
        elif spec.extra is not None and spec.extra.actor is not None:
            self.actors.ready(spec)
        else:
            self.ready.push(spec)

    def _pass_on(self, source: str, message: CreateGroup | RemoveGroup) -> None:
        self.ctx.send("global", message)

    def _await_function(self, spec: TaskSpec) -> None:
        waiting = self._for_function.get(spec.function)
        if waiting is None:
            self._for_function[spec.function] = waiting = []
            self.ctx.send("gcs", FetchFunction(spec.function))
        waiting.append(spec)
        self.waiting += spec.count

    def _await_inputs(self, spec: TaskSpec) -> None:
        entry = _Waiting(spec)
        self.waiting += spec.count
        self.awaiting.add(entry)
        rank = self.claim(spec)

        def arrived(position: int, value: ObjectValue) -> None:
            entry.missing -= 1
            if value.status != OK and (entry.failed is None or position < entry.failed[0]):
                entry.failed = position, value
            if entry.missing or entry.cancelled:
                return
            self.awaiting.discard(entry)
            self.waiting -= spec.count
            if entry.failed is not None:
                # An input that is an error is the result.
                self.unclaim(spec)
                self._failed.append((spec, entry.failed[1]))
            else:
                self._push(spec)

        for position, oid in enumerate(spec.deps):
            entry.missing += 1
            self.objects.want(oid, partial(arrived, position), rank)
        arrived(-1, ObjectValue(b"", OK, b""))

    def cancel_without_function(self, message: CancelTask) -> list[TaskSpec]:
        """Take out what a message cancels of what waits for its function."""
        found = []
        for function, specs in self._for_function.items():
            left: list[TaskSpec] = []
            for spec in specs:
                parts, cancelled = cut(spec, message)
                left += parts
                if cancelled is not None:
                    found.append(cancelled)
                    self.waiting -= cancelled.count
            self._for_function[function] = left
        return found

    def fail(self, spec: TaskSpec, error: ObjectValue) -> None:
        """End a range with an error, at the end of the turn."""
        self._failed.append((spec, error))

    def claim(self, spec: TaskSpec) -> int:
        """Claim a range's inputs until `unclaim`; return its rank: see `eviction`."""
        self._ranks += 1
        self._claims.setdefault((spec.array, spec.start), []).append(self._ranks)
        for oid in spec.deps:
            self.objects.eviction.claim(oid, self._ranks)
        return self._ranks

    def unclaim(self, spec: TaskSpec) -> None:
        """Its inputs are pinned, or it will never run; without effect where none is claimed."""
        key = (spec.array, spec.start)
        ranks = self._claims.get(key)
        if ranks is None:
            return
        rank = ranks.pop(0)
        if not ranks:
            del self._claims[key]
        for oid in spec.deps:
            self.objects.eviction.unclaim(oid, rank)

    def _on_export(self, source: str, message: ExportFunction) -> None:
        self.ctx.send("gcs", message)
        self._on_function(source, FunctionBlob(message.function, message.blob))

    def _on_function(self, source: str, message: FunctionBlob) -> None:
        self.functions[message.function] = message.blob
        for spec in self._for_function.pop(message.function, ()):
            self.waiting -= spec.count
            self._accept(spec)

    # -- dispatch --------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give ready ranges to workers."""
        if self.actors.queued:
            self._begin_actors()
        ready = self.ready
        if not ready.size:
            self._watch_stuck()
            return
        for demand in ready.demands():
            while self._idle and ready.has(demand) and self.pool.fits(demand):
                worker = self._idle.pop()
                self.pool.take(demand)
                worker.demand = demand
                worker.state = State.LEASED
                self._give(worker)
                self._drain(worker)
            if not ready.has(demand):
                continue
            if self.pool.fits(demand):
                self._start_workers_for(demand)
            elif len(ready.demands()) == 1 and not self._resuming:
                # Only one kind of task waits: nobody starves if leases go on.
                for worker in self.workers.values():
                    leased = worker.state is State.LEASED and not worker.actor
                    if worker.demand == demand and leased:
                        if worker.ahead_s < self.config.ahead_s:
                            self._give(worker)
                        if not ready.has(demand):
                            break
        self._watch_stuck()

    def _give(self, worker: Worker) -> None:
        """Give a worker ranges worth ``ahead_s``, its fair share at most."""
        ready, config, demand = self.ready, self.config, worker.demand
        workers = len(self.workers) - len(self.actors.actors)
        share = -(-ready.count(demand) // max(1, min(workers, self.pool.slots(demand))))
        head = ready.peek(demand)
        each_s = self.means.get(head.function, 0.0) if head is not None else 0.0
        # Below `split_s` a fair share costs more than it gains.
        least = int(config.split_s / each_s) if each_s else 1
        room = min(max(share, least), config.ahead_tasks_max)
        batch: list[Assignment] = []
        while room > 0:
            spec = ready.peek(demand)
            if spec is None:
                break
            mean = self.means.get(spec.function)
            if mean is None:
                if worker.assigned:
                    break
                most = 1
            elif mean > 0:
                most = int((config.ahead_s - worker.ahead_s) / mean)
                if most < 1:
                    if worker.assigned:
                        break
                    most = 1
            else:
                most = room
            part = ready.take(demand, min(room, most))
            inputs = self.inputs_of(part, worker.address)
            if inputs is None:
                continue
            room -= part.count
            worker.assigned.append(part)
            worker.ahead_s += part.count * (mean or 0.0)
            self.assigned += part.count
            self.teach(worker, part.function)
            batch.append(Assignment(part, inputs))
        if batch:
            self.ctx.send(worker.address, RunTasks(batch))

    def teach(self, worker: Worker, function: bytes) -> None:
        """Send a worker a function that it was not sent yet."""
        if function not in worker.functions:
            worker.functions.add(function)
            self.ctx.send(worker.address, FunctionBlob(function, self.functions[function]))

    def inputs_of(self, spec: TaskSpec, worker: str) -> tuple[ObjectValue, ...] | None:
        """Return the inputs, pinned for the worker; None if one is not here (any more)."""
        if not spec.deps:
            return ()
        self.unclaim(spec)
        if self.objects.have_left(spec.deps):
            self._await_inputs(spec)
            return None
        values = []
        for oid in spec.deps:
            value = self.objects.lookup(oid)
            if value is None:
                # An owner keeps the inputs of its unfinished tasks: it has died,
                # or the range ran elsewhere and nobody waits for this run.
                self._failed.append((spec, released_error(oid)))
                return None
            values.append(value)
        for value in values:
            if value.size:
                self.objects.pin(value.object, worker)
        return tuple(values)

    def _begin_actors(self) -> None:
        """Give queued actors resources and workers, oldest first."""
        queued = self.actors.queued
        waiting: list[Actor] = []
        while queued and self._idle:
            actor = queued.popleft()
            if self.pool.fits(actor.spec.demand):
                worker = self._idle.pop()
                worker.demand = actor.spec.demand
                worker.state = State.LEASED
                self.pool.take(worker.demand)
                self.actors.begin(actor, worker)
            else:
                waiting.append(actor)
        queued.extendleft(reversed(waiting))
        # Nothing here may look at all queued actors each time that a worker is ready.
        if len(queued) <= self._starting:
            return
        # Those that fit one by one may not fit together: none starts in vain for long,
        # idle workers take tasks as well.
        fitting = sum(self.pool.fits(actor.spec.demand) for actor in queued)
        for _ in range(fitting - self._starting):
            self._start_worker()

    def _start_workers_for(self, demand: str) -> None:
        """Start as many workers as waiting tasks could use and none is idle for."""
        room = self.pool.room(demand, self.ready.count(demand))
        if not cpu_part(demand):
            # Such tasks are not bounded by CPUs; those that wait do not count.
            running = sum(
                w.state is State.LEASED and not cpu_part(w.demand) for w in self.workers.values()
            )
            room = min(room, WORKERS_WITHOUT_CPU_MAX - running)
        for _ in range(room - self._starting):
            self._start_worker()

    def _start_worker(self) -> None:
        self._names += 1
        self._starting += 1
        address = f"worker:{self.node}.{self._names}"
        self.workers[address] = Worker(address, self._names)
        self.ctx.send(f"pool:{self.node}", StartWorker(address))

    def _watch_stuck(self) -> None:
        """Have a look later if a task may wait behind a longer one than thought."""
        if self._watch is None and self._idle and self.assigned > self._leased():
            self._start_watch(1)

    def _start_watch(self, look: int) -> None:
        quiet_s = STUCK_AHEADS * self.config.ahead_s
        self._watch = self.ctx.after(quiet_s, lambda: self._on_watch(look))

    def _leased(self) -> int:
        return len(self.workers) - len(self._idle) - len(self.actors.actors)

    def _on_watch(self, look: int) -> None:
        self._watch = None
        quiet_s = STUCK_AHEADS * self.config.ahead_s
        if self.ready.size or self.ctx.now() - self._last_done_s < quiet_s:
            return
        if look == 1:
            # It may be this scheduler that was held up, and what it handed out
            # has only just left: look again.
            self._start_watch(2)
            return
        for worker in self.workers.values():
            ahead = sum(spec.count for spec in worker.assigned) - 1
            if ahead > 0 and not worker.taking_back and self.pool.fits(worker.demand):
                worker.taking_back = True
                self.ctx.send(worker.address, TakeBack())

    # -- workers ---------------------------------------------------------------

    def _on_worker_ready(self, source: str, message: WorkerReady) -> None:
        worker = self.workers[source]
        worker.pid = message.pid
        self._starting -= 1
        self._make_idle(worker)

    def _make_idle(self, worker: Worker) -> None:
        worker.demand = ""
        worker.ahead_s = 0.0
        excess = not self.ready.size and len(self._idle) > 2 * self._prestart + 2
        if excess and not self.objects.owns(worker.address):
            # Workers that stood in for blocked ones are not kept for ever, unless
            # values depend on them.
            del self.workers[worker.address]
            self.ctx.send(f"pool:{self.node}", StopWorker(worker.address))
            return
        worker.state = State.IDLE
        self._idle.append(worker)

    def _on_done(self, source: str, message: TasksDone) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its tasks run elsewhere
        self._last_done_s = self.ctx.now()
        # The owners are told of all results in one message.
        told: list[RangeResult] = []
        self._told = told
        if worker.actor:
            self.actors.on_done(worker, message.results, message.timings)
        else:
            for result, timing in zip(message.results, message.timings, strict=True):
                spec = worker.assigned[0]
                self.timeline.ran(worker.number, timing, spec, result)
                owner = self._take_off(worker, result, timing.elapsed_s)
                if result.status == RETRY:
                    self._run_again(spec, result)
                else:
                    self._finish(result, owner)
        self._told = None
        if told:
            self._tell_owner(told)
        if not worker.actor:
            self._drain(worker)

    def _run_again(self, spec: TaskSpec, result: RangeResult) -> None:
        """Queue elements again whose own errors count as failures of the system."""
        self.ctx.send("gcs", Event("task_retried", spec.name, "it raised"))
        for index in range(result.start, result.start + result.count):
            self.timeline.again(spec.array, index)
            one = part_of(spec, index, 1)
            one.retries = spec.retries - 1 if spec.retries > 0 else -1
            self.ready.push(one)

    def _on_items(self, source: str, message: StreamItems) -> None:
        worker = self.workers.get(source)
        if worker is None:
            return  # it was declared dead; its task runs elsewhere
        self._last_done_s = self.ctx.now()
        for result in message.results:
            # Not always the first: those before it may be done, and not reported yet.
            owner = next(s.owner for s in worker.assigned if s.array == result.array)
            self._finish(result, owner)

    def _take_off(self, worker: Worker, result: RangeResult, elapsed_s: float) -> str:
        """Take a result off the worker's list, into the averages; return its owner."""
        spec = worker.assigned[0]
        assert spec.array == result.array and spec.start == result.start, "out of order"
        if result.count == spec.count:
            worker.assigned.popleft()
        else:
            end = spec.start + spec.count
            done = result.start + result.count
            worker.assigned[0] = part_of(spec, done, end - done)
        self.assigned -= result.count
        each_s = elapsed_s / result.count
        mean = self.means.get(spec.function)
        worker.ahead_s = max(0.0, worker.ahead_s - result.count * (mean or 0.0))
        # A range of n counts as n samples, but never wipes out all the past.
        weight = 1 - 0.9 ** min(result.count, 10)
        self.means[spec.function] = each_s if mean is None else mean + weight * (each_s - mean)
        past = self.mean_task_s
        self.mean_task_s = past + weight * (each_s - past) if past else each_s
        return spec.owner

    def _drain(self, worker: Worker) -> None:
        """Give a worker more, or take its lease away."""
        if worker.state is not State.LEASED:
            return
        if worker.assigned:
            return
        # The lease ends here and may begin again in this turn's dispatch, so
        # that the oldest waiting demand and resuming tasks come first.
        self.pool.give(worker.demand)
        self._make_idle(worker)

    def _on_taken_back(self, source: str, message: TakenBack) -> None:
        """Ranges come back unstarted: whole ones, and the tail of the running one."""
        worker = self.workers.get(source)
        if worker is None:
            return
        worker.taking_back = False
        staying: deque[TaskSpec] = deque()
        tails: list[TaskSpec] = []
        back = deque(message.ranges)
        for spec in worker.assigned:
            returned = self._returned_of(spec, back)
            if not returned:
                staying.append(spec)
                continue
            self.assigned -= returned
            if returned < spec.count:
                staying.append(part_of(spec, spec.start, spec.count - returned))
            else:
                self._unpin_inputs(spec, source)
            tails.append(part_of(spec, spec.start + spec.count - returned, returned))
        for tail in reversed(tails):
            self.ready.push_front(tail)
        worker.assigned = staying
        worker.ahead_s = sum(s.count * self.means.get(s.function, 0.0) for s in staying)
        self.canceller.on_taken_back(worker)
        self._drain(worker)

    @staticmethod
    def _returned_of(spec: TaskSpec, back: deque[tuple[bytes, int, int]]) -> int:
        """Return how many elements at the end of `spec` came back; take that off `back`.

        Both are in the order in which they were given, and one range may be
        among them twice: its parent ran twice.
        """
        if not back:
            return 0
        array, start, count = back[0]
        if array != spec.array or start + count != spec.start + spec.count or start < spec.start:
            return 0
        back.popleft()
        return count

    def _unpin_inputs(self, spec: TaskSpec, worker: str) -> None:
        for oid in spec.deps:
            self.objects.unpin(oid, worker)

    def _on_blocked(self, source: str, message: Blocked) -> None:
        worker = self.workers[source]
        if worker.state is State.LEASED:
            worker.state = State.BLOCKED
            self.pool.give(cpu_part(worker.demand))

    def _on_unblocked(self, source: str, message: Unblocked) -> None:
        worker = self.workers[source]
        if worker.state is State.BLOCKED:
            worker.state = State.RESUMING
            self._resuming.append(worker)

    def _resume(self) -> None:
        """Give CPUs back to tasks that need not wait any more, oldest first."""
        while self._resuming:
            worker = self._resuming[0]
            cpus = cpu_part(worker.demand)
            if not self.pool.fits(cpus):
                return
            self._resuming.popleft()
            self.pool.take(cpus)
            worker.state = State.LEASED
            self.ctx.send(worker.address, Resume())
            if not worker.actor:
                # The task may have ended while another of its threads waited.
                self._drain(worker)

    def _on_worker_died(self, source: str, message: WorkerDied) -> None:
        worker = self.workers.pop(message.worker, None)
        client = message.worker
        owned = [a for a in self.objects.drop_client(client) if self.objects.let_go(a, client)]
        self._drop_allocations(message.worker)
        running = worker.assigned[0] if worker is not None and worker.assigned else None
        cause = None if worker is None else worker.killed_for
        if cause is not None:
            self.canceller.cancel_children(owned, cause)
        if running is not None and owned and running.retries and cause is None:
            self._orphan(owned, running)
        else:
            for array in owned:
                self._release(array)
        if worker is None:
            return
        if worker.state is State.STARTING:
            self._starting -= 1
        elif worker.state is State.IDLE:
            self._idle.remove(worker)
        elif worker.state is State.LEASED:
            self.pool.give(worker.demand)
        elif worker.state in (State.BLOCKED, State.RESUMING):
            for part in worker.demand.split(","):
                if part and part != cpu_part(worker.demand):
                    self.pool.give(part)
            if worker.state is State.RESUMING:
                self._resuming.remove(worker)
        self.ctx.send("gcs", Event("worker_died", message.worker, message.reason))
        if worker.actor:
            self.actors.on_worker_died(worker, message.reason)
            return
        self._retry(worker, message.reason)
        if worker.state is not State.STARTING and len(self.workers) < self._prestart:
            self._start_worker()

    def end_worker(self, worker: Worker, reason: str) -> None:
        """End a worker at once, whatever it is doing."""
        self.ctx.send(f"pool:{self.node}", KillWorker(worker.address))
        self._on_worker_died(f"pool:{self.node}", WorkerDied(worker.address, reason))

    def _orphan(self, arrays: list[bytes], parent: TaskSpec) -> None:
        """Keep what a dead worker's running range owned: run again, it submits the same."""
        orphans = _Orphans(arrays, parent.count)
        for array in arrays:
            self.objects.orphan(array)
        for index in range(parent.start, parent.start + parent.count):
            self._orphans.setdefault((parent.array, index), []).append(orphans)

    def _end_orphans(self, result: RangeResult) -> None:
        """A range ended that may have run twice: what it did not claim is released."""
        for index in range(result.start, result.start + result.count):
            for orphans in self._orphans.pop((result.array, index), ()):
                orphans.parents -= 1
                if not orphans.parents:
                    for array in orphans.arrays:
                        if self.objects.owners.get(array) == NOBODY:
                            self._release(array)

    def _retry(self, worker: Worker, reason: str) -> None:
        """Queue a dead worker's ranges again, the running one with less retries."""
        ranges = list(worker.assigned)
        for spec in ranges:
            self.assigned -= spec.count
        for spec in reversed(ranges[1:]):
            self.ready.push_front(spec)
        if not ranges:
            return
        running = ranges[0]
        if worker.kill_error is not None:
            self.fail(running, worker.kill_error)
            return
        if worker.killed_for is not None:
            # One that had only just begun behind it keeps its retries.
            left, cancelled = cut(running, worker.killed_for)
            if cancelled is not None:
                self.fail(cancelled, cancelled_error(cancelled.name))
            for part in reversed(left):
                self.ready.push_front(part)
            return
        if running.retries == 0:
            text = f"{worker.address} died while it ran {running.name}: {reason}"
            error = ObjectValue(b"", SYSTEM_ERROR, f"WorkerCrashedError: {text}".encode())
            self._finish_failed(running, error)
            return
        self.ctx.send("gcs", Event("task_retried", running.name, reason, running.count))
        # One by one: of a range, only one element brought the worker down.
        for index in reversed(range(running.start, running.start + running.count)):
            self.timeline.again(running.array, index)
            one = part_of(running, index, 1)
            one.retries = running.retries - 1 if running.retries > 0 else -1
            self.ready.push_front(one)

    # -- results and objects ---------------------------------------------------

    def _finish(self, result: RangeResult, owner: str) -> None:
        """A range ended on this node: keep its values, tell its owner."""
        self.seal(result)
        if node_of(owner) != self.node:
            self.objects.add(result)
            self.log.finish(result)
            self.ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))
        elif result.array in self.objects.owners:
            self.objects.add(result)
            self.log.finish(result)
            if self._told is None:
                self._tell_owner([result])
            else:
                self._told.append(result)
        elif result.array in self._for_others:
            self.objects.add(result)
            self.log.finish(result)
        else:
            # The owner died: nobody can ask for the values.
            self.free_places(result)
        if self._heirs:
            for heir in self._heirs.get(result.array, ()):
                if heir != owner:
                    self._send_results(heir, [result])
        if self._orphans:
            self._end_orphans(result)

    def seal(self, result: RangeResult) -> None:
        """What a worker has written is the node's, and does not go with the worker."""
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                self._allocated.pop(object_id(result.array, result.start, ret), None)

    def _tell_owner(self, results: list[RangeResult]) -> None:
        """Pass results on to who owns them by now."""
        told: dict[str, list[RangeResult]] = {}
        owners, others = self.objects.owners, self.objects.others
        for result in results:
            array = result.array
            if array not in others:
                owner = owners.get(array, NOBODY)
                if owner != NOBODY:
                    told.setdefault(owner, []).append(result)
                continue
            for owner in self.objects.owners_of(array):
                told.setdefault(owner, []).append(result)
        for owner, of_owner in told.items():
            self.ctx.send(owner, TaskResults(owner, of_owner))

    def free_places(self, result: RangeResult) -> None:
        """Free what a worker has written of a result that is not kept."""
        for ret, offset in enumerate(result.offsets):
            if offset >= 0:
                oid = object_id(result.array, result.start, ret)
                self.ctx.send(f"store:{self.node}", Free(oid, offset))

    def finish_call(
        self, result: RangeResult, owner: str, actor: bytes = b"", fresh: bool = True
    ) -> None:
        """A call of an actor ended here: only large values stay, the owner's node has the rest.

        A result that is not `fresh` was reported before: its places are not to be taken.
        """
        if node_of(owner) == self.node:
            awaited = self.router.received(result.array)
            if not self.objects.has_array(result.array):
                if result.array in self.objects.owners:
                    self.log.called(result.array, owner, actor)
                self._finish(result, owner)
            elif awaited:
                # Its large values were made again here before it was asked for again.
                self._tell_owner([result])
            return
        self.seal(result)
        if any(result.sizes) and fresh:
            self.remade(result, owner, actor)
        self.ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))

    def replayed(self, result: RangeResult, owner: str, actor: bytes) -> bool:
        """A call ran once more; its large values are kept if they are missing here.

        Returns whether they were.
        """
        at = [r for r, offset in enumerate(result.offsets) if offset >= 0]
        here = all(self.objects.lookup(object_id(result.array, 0, r)) for r in at)
        gone = node_of(owner) == self.node and result.array not in self.objects.owners
        if here or gone:
            self.seal(result)
            self.free_places(result)
            return False
        self.remade(result, owner, actor)
        if node_of(owner) != self.node:
            self.ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))
        return True

    def remade(self, result: RangeResult, owner: str, actor: bytes) -> None:
        """Keep large values that a call made here for an owner on another node."""
        self.seal(result)
        self.log.expose(result.array)
        self.objects.add(result)
        self.log.called(result.array, owner, actor)
        self.log.finish(result)

    def _finish_failed(self, spec: TaskSpec, error: ObjectValue) -> None:
        """A range ends without having run."""
        if spec.extra is not None and spec.extra.actor is not None:
            self.actors.creation_failed(spec, error)
            return
        self._finish(
            RangeResult(
                spec.array, spec.start, spec.count, error.status, error.payload, self.node,
                spec.returns,
            ),
            spec.owner,
        )  # fmt: skip

    def _on_results(self, source: str, message: TaskResults) -> None:
        """Results from another node for a client of this one."""
        owners = self.objects.owners
        results = []
        for result in message.results:
            called = self.router.received(result.array)
            if result.array not in owners:
                if any(result.sizes):
                    # Its owner has died, or let go before an actor that was rebuilt made
                    # it again; where it is nobody would free it.
                    self.log.disown(result.array)
                continue
            if called:
                if any(result.sizes):
                    self.log.made_elsewhere(result.array)
                else:
                    # The only copy of its values: here, where its owner is.
                    owner = owners[result.array]
                    self.log.called(result.array, owner or f"node:{self.node}", b"")
                    self.log.finish(result)
            elif result.array in self._owned_actors and self.objects.has_array(result.array):
                continue  # the actor was created once more
            self.objects.add(result)
            results.append(result)
        self._tell_owner(results)

    def _on_put(self, source: str, message: PutObjects) -> None:
        for result in message.results:
            self.objects.own(result.array, source)
            self._allocated.pop(object_id(result.array, 0, 0), None)
            self.objects.add(result)
            self.log.put(result.array, sum(result.sizes))

    def _on_release(self, source: str, message: Release) -> None:
        for array in message.arrays:
            if self.objects.let_go(array, source):
                self._release(array)

    def _release(self, array: bytes) -> None:
        self._ends.pop(array, None)
        self._heirs.pop(array, None)
        self.router.forget(array)
        if array in self._owned_actors:
            self._owned_actors.discard(array)
            owner = self.objects.owners.get(array, NOBODY)
            reason = "ActorDiedError: no handle of the actor is left, or its owner has died"
            self.ctx.send("gcs", KillActor(array, reason, owner=owner))
        self.log.release(array)
        self.objects.release(array)

    def _on_free(self, source: str, message: FreeObjects) -> None:
        for array in message.arrays:
            self._for_others.discard(array)
            if array in self.objects.owners:
                continue  # made again by a client of this node, which will let go of it
            self._heirs.pop(array, None)
            self.log.forget(array)
            self.objects.release(array, by_owner=False)

    def _on_want(self, source: str, message: WantObjects) -> None:
        def arrived(value: ObjectValue) -> None:
            if source in self.workers or not source.startswith("worker:"):
                if value.size:
                    self.objects.pin(value.object, source)
                self.ctx.send(source, ObjectsReady([value]))

        for oid in message.objects:
            self.objects.want(oid, arrived)

    def _on_unpin(self, source: str, message: Unpin) -> None:
        for oid in message.objects:
            self.objects.unpin(oid, source)

    def _on_allocate(self, source: str, message: AllocateObject) -> None:
        self.ctx.send(f"store:{self.node}", Allocate(message.object, message.size, source))

    def _on_allocated(self, source: str, message: Allocated) -> None:
        client = message.client
        if client.startswith("worker:") and client not in self.workers:
            self.ctx.send(f"store:{self.node}", Free(message.object, message.offset))
            return
        self._allocated[message.object] = (client, message.offset)
        self.ctx.send(client, ObjectAllocated(message.object, message.offset))

    def _on_no_room(self, source: str, message: NoRoom) -> None:
        """The arena is full: make room for a fetch, or for what a client will write."""
        client = message.client
        if not client:
            self.objects.on_no_room(message)
            return
        oid, size = message.object, message.size

        def retry() -> None:
            self.ctx.send(f"store:{self.node}", Allocate(oid, size, client))

        def fail(reason: str) -> None:
            self.ctx.send(client, ObjectAllocated(oid, -1, reason))

        until_s = self.ctx.now() + self.config.allocate_wait_s
        self.objects.eviction.need(Request(size, CLIENT, until_s, retry, fail), message)

    def _on_abandon(self, source: str, message: AbandonObject) -> None:
        place = self._allocated.pop(message.object, None)
        if place is not None:
            self.ctx.send(f"store:{self.node}", Free(message.object, place[1]))

    def _store_usage(self) -> tuple[int, int, int]:
        """Return (large objects, their bytes, places not sealed yet)."""
        return (*self.objects.usage(), len(self._allocated))

    def _disk_usage(self) -> tuple[int, int]:
        """Return (objects on disk, their bytes)."""
        eviction = self.objects.eviction
        return len(eviction.on_disk), eviction.spilled_bytes

    def _drop_allocations(self, client: str) -> None:
        for oid in [o for o, (c, _) in self._allocated.items() if c == client]:
            _, offset = self._allocated.pop(oid)
            self.ctx.send(f"store:{self.node}", Free(oid, offset))

    def _on_pull(self, source: str, message: PullObject) -> None:
        result = self.objects.result_of(message.object)
        self.ctx.send(source, ObjectPayload(message.object, result))

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
            mean_task_s=self.mean_task_s,
            bandwidth=self.objects.bandwidth,
            assigned=self.accepted,
            available=self.pool.available(),
        )
        self.ctx.send("gcs", Heartbeat(self.node, self.incarnation, load))
        self.ctx.after(self.config.heartbeat_s, self._beat)
