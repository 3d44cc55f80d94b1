"""The node manager: one per node; it makes the node's parts and joins them.

The package's docstring lists which part handles which message. This file makes the parts, collects
their handlers into one table, and defines the end of a node's turn.

The life of a range of tasks on a node::

    SubmitTasks ──the policy spills it──> PlaceTasks to the global scheduler
         │ the policy keeps it (or AssignTasks from the global scheduler)
         ↓
      WAITING    until its inputs and its function are here
         ↓
       READY     one queue per job and demand, oldest first
         ↓       a worker is idle and the demand fits, or a worker that holds
         ↓       this demand has less than ``ahead_s`` of work left
      ASSIGNED   on a worker; split as far as needed. Taken back when the worker
         ↓       blocks, or when another could start it sooner; READY again with
         ↓       one retry less if the worker dies
        DONE     results to the owner, kept here for tasks that need them as inputs

Assigning tasks in advance hides the round trip to the worker: a range of short
tasks costs one message each way. A function that has never been timed gets one
task per worker until the first is done.

Cost per task of a range of n: (2 messages + 2 dictionary entries) / n here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from raytwin.runtime.control.actors.node_actors import NodeActors
from raytwin.runtime.control.actors.pending_calls import PendingCalls
from raytwin.runtime.control.core.access import JobAccess
from raytwin.runtime.control.core.addresses import heartbeat_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers, handlers_of
from raytwin.runtime.control.core.ids import job_id, job_number
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import NumberedPool
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.local_scheduler.blocked_tasks import BlockedTasks
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.local_scheduler.spillback import Spillback
from raytwin.runtime.control.local_scheduler.starvation import Starvation
from raytwin.runtime.control.local_scheduler.stealing import Stealing
from raytwin.runtime.control.local_scheduler.submission import Submission
from raytwin.runtime.control.local_scheduler.worker_leases import WorkerLeases
from raytwin.runtime.control.local_scheduler.worker_pool import WorkerPool
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    ActorEnded,
    ActorFound,
    BorrowersGone,
    CreateGroup,
    DescribeJob,
    Event,
    FindTask,
    ForwardResults,
    GiveBack,
    GroupCreated,
    Heartbeat,
    JobEnded,
    JobRegistered,
    KillActor,
    KillWorker,
    KvGet,
    KvPut,
    KvReply,
    Load,
    NodeChanged,
    NodeInfo,
    NodesJoined,
    NodeUnreachable,
    PeerUnreachable,
    PlaceTasks,
    RangeResult,
    Registered,
    RegisterJob,
    RegisterNode,
    RemoveGroup,
    ResultsMissing,
    TaskFound,
    TaskSpec,
    WorkerDied,
)
from raytwin.runtime.control.messages.errors import Failure, pack
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.object_manager import ObjectManager
from raytwin.runtime.control.objects.release_manager import ReleaseManager
from raytwin.runtime.control.objects.result_manager import ResultManager
from raytwin.runtime.control.observability.queries import Queries
from raytwin.runtime.control.observability.timeline import RangeLog
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.scheduling.policies import make_policy

LATE_PERIODS = 1.5
"""A heartbeat is late after so many periods: its node was busy when it was due."""
MISSING_MAX = 4096
"""The most ranges in one `ResultsMissing`."""


class NodeManager:
    """Joins the parts of one node: makes them, gives each its messages, and ends the turns."""

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
        self.pool = NumberedPool(resources)
        self.log = GcsWriteLog(ctx, node, config, incarnation)
        self.objects = NodeObjects(ctx, node, config, self.log.copied, self._lives)
        self.members = Membership(node, incarnation)
        self.access = JobAccess(self._worker_at)
        self._ended_drivers: set[str] = set()
        """Drivers whose job has ended: the node sends them nothing, and pins nothing for them."""
        self.actors = NodeActors(ctx, node, self)
        self.timeline = RangeLog(ctx, node, config.timeline_ranges_max)
        self.inputs = TaskInputs(
            ctx, self.objects, self.timeline, config.scheduling_delay_s, self._push
        )
        self.contained_references = ContainedReferences(
            ctx, node, incarnation, self.members, self._lend, self._lives
        )
        self.pending_calls = PendingCalls(
            ctx, node, self.actors.on_calls,
            self._finish_call,
            self._on_actor_dead, self.actors.cancel,
        )  # fmt: skip
        self.results = ResultManager(
            ctx, node, self.objects, self.log, self.contained_references,
            self.pending_calls.received, self.pending_calls.all_received,
            self.pending_calls.any_under_way,
            self.objects.owners.actors, self.access.is_over,
        )  # fmt: skip
        self.ready = ReadyQueue()
        self.blocked = BlockedTasks(ctx, self.pool, self.ready)
        self.workers = WorkerPool(
            ctx,
            node,
            incarnation,
            self.pool.slots("CPU:1"),
            self.objects,
            self.contained_references,
        )
        self.leases = WorkerLeases(
            ctx, config, self.pool, self.ready, self.blocked, self.workers, self.inputs, self.actors
        )
        self.starvation = Starvation(
            ctx, node, incarnation, config, self.pool, self.ready, self.leases, self.actors,
            self.inputs, self.objects, self.log,
        )  # fmt: skip
        self.bundles = Bundles(
            ctx, node, incarnation, self.pool, self.ready, self.workers.workers, self.inputs,
            self.actors,
        )  # fmt: skip
        self.canceller = Canceller(
            ctx, node, self.ready, self.workers, self.inputs, self.objects,
            self.results.claims, self.pending_calls.cancel,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            ctx, self.pool, self.ready, self.blocked, self.workers, self.leases, self.objects,
            self.inputs, self.results, self.actors, self.canceller, self.timeline,
            self.contained_references,
        )  # fmt: skip
        policy = make_policy(config)
        self.spillback = Spillback(
            node, policy, self.pool, self.members, self.dispatcher, self.bundles
        )
        self.submission = Submission(
            ctx, node, incarnation, self.spillback, self.workers.workers, self.objects, self.log,
            self.inputs, self.access, self.actors, self.pending_calls, self.results,
            self.canceller,
        )  # fmt: skip
        self.stealing = Stealing(
            ctx, config, policy.steals, self.pool, self.members, self.ready, self.inputs,
            self.workers, self.starvation, self.canceller, lambda: self.submission.assigned,
        )  # fmt: skip
        self.releases = ReleaseManager(
            ctx, self.objects, self.results, self.pending_calls.forget_all, self.log,
            self.contained_references, self.canceller.unclaimed,
        )  # fmt: skip
        self.object_manager = ObjectManager(
            ctx, node, self.objects, self.log, self.contained_references, self._lives
        )  # fmt: skip
        self._last_heartbeat_s = -inf
        """When the last heartbeat was sent."""
        self.queries = Queries(
            ctx, node, self.members, {
                "actors": self.actors.rows,
                "timeline": lambda: list(self.timeline.rows),
                "transfers": lambda: list(self.objects.pulls.transfers),
                "stores": lambda: [[node, *self.objects.memory.memory_usage()]],
                "disks": lambda: [[node, *self.objects.memory.disk_usage()]],
                "loads": lambda: [[node, self.queue, self.resources, self.pool.available()]],
                "available": lambda: [[node, self.pool.available()]],
            },
        )  # fmt: skip
        self.messages = handlers_of(
            self,
            self.submission,
            self.inputs,
            self.dispatcher,
            self.canceller,
            self.bundles,
            self.starvation,
            self.stealing,
            self.results,
            self.releases,
            self.object_manager,
            self.objects.pulls,
            self.objects.memory,
            self.pending_calls,
            self.actors,
            self.queries,
        )
        """The handler of every message type that a node takes."""

    def handlers(self) -> Handlers:
        """Return the handlers of messages that concern several parts, or are only forwarded."""
        return {
            Registered: self._on_node_registered,
            NodeChanged: self._on_node_changed,
            NodesJoined: self._on_nodes_joined,
            NodeUnreachable: self._on_unreachable,
            WorkerDied: self._on_worker_died,
            RegisterJob: self._on_register,
            JobRegistered: self._on_registered,
            DescribeJob: self._on_describe,
            JobEnded: self._on_job_ended,
            Event: self._on_warning,
            GiveBack: self._on_give_back,
            KillActor: self._on_kill_actor,
            ForwardResults: self._on_forward,
            CreateGroup: self._on_create_group,
            RemoveGroup: self._on_remove_group,
            KvPut: self._on_table,
            KvGet: self._on_table,
            FindTask: self._on_table,
            GroupCreated: self._on_answer,
            ActorFound: self._on_answer,
            TaskFound: self._on_answer,
            KvReply: self._on_answer,
        }

    def start(self, host: str, port: int) -> None:
        """Join the cluster: the first turn of a node."""
        info = NodeInfo(self.node, host, port, self.resources, incarnation=self.incarnation)
        self.ctx.send("gcs", RegisterNode(info))
        # Not only when it is registered: the failure detector may hear of the node before that.
        self._send_heartbeat()
        self.workers.start()

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if not self._lives(source):
            return  # Its last messages arrived after the report of its death.
        self.messages[type(message)](source, message)

    def end_turn(self) -> None:
        """Assign ready ranges, serve requests for room, then send the messages that must not wait.

        A part is called only if it has something to do.
        """
        if self.bundles.returning:
            self.bundles.end_turn()
        self.leases.dispatch()
        if self.objects.memory.requests:
            self.objects.memory.make_room()
        while self.inputs.failed:
            while self.inputs.failed:
                self.submission.fail(*self.inputs.failed.popleft())
            self.leases.dispatch()
        if self.pending_calls.unsent or self.pending_calls.unwatched:
            self.pending_calls.end_turn()
        if self.actors.unsent:
            self.actors.end_turn()
        if self.stealing.steals or self.stealing.requests:
            self.stealing.end_turn()
        if self.objects.pulls.asking:
            self.objects.pulls.end_turn()
        self.log.end_turn()

    @property
    def queue(self) -> int:
        """Elements that wait or run here."""
        return self.dispatcher.queue

    def _worker_at(self, address: str) -> Worker | None:
        return self.workers.workers.get(address)

    def _lives(self, client: str) -> bool:
        if not client.startswith("worker:"):
            return client not in self._ended_drivers
        return client in self.workers.workers

    # -- between the parts -----------------------------------------------------

    def _lend(self, array: bytes) -> None:
        """A value contains a reference to an array of this node: the GCS needs a row of the
        array."""
        if array in self.objects.owners:
            self.log.expose(array)

    def _push(self, spec: TaskSpec) -> None:
        """Queue a range that could run now, unless its placement group is gone."""
        actor = spec.extra is not None and spec.extra.actor is not None
        if spec.extra is not None and spec.extra.group and self.bundles.is_gone(spec):
            if actor:
                self.inputs.unclaim(spec)
                self.actors.pass_on(spec)
                self.ctx.send("global", PlaceTasks([spec]))
            else:
                self.bundles.end(spec)
        elif actor:
            self.actors.ready(spec)
        else:
            self.ready.push(spec)

    def _finish_call(self, result: RangeResult, owner: str) -> None:
        self.results.finish_call(result, owner)

    def _on_actor_dead(self, actor: bytes, reason: Failure) -> None:
        """An actor is dead: its owner learns it, and gets an error if its constructor has never
        ended."""
        owner = self.objects.owners.get(actor)
        if owner is not None and not self.objects.has_array(actor):
            error = RangeResult(actor, 0, 1, SYSTEM_ERROR, pack(reason), self.node)
            self.results.finish(error, owner)
        for client in self.objects.owners.owners_of(actor):
            self.ctx.send(client, ActorEnded(actor))

    def _on_forward(self, source: str, message: ForwardResults) -> None:
        self.inputs.claimed(message.array)
        self.results.on_forward(source, message)

    # -- nodes and workers that come and go --------------------------------------

    def _on_node_registered(self, source: str, message: Registered) -> None:
        """The GCS has registered this node, and says which others are there.

        News of the death of a former incarnation may have come before.
        """
        for info in self.members.begin(message.nodes):
            self._on_alive(info.node)

    def _on_nodes_joined(self, source: str, message: NodesJoined) -> None:
        """The GCS has published nodes that have joined."""
        for info in message.nodes:
            self.members.update(info)
            self._on_alive(info.node)

    def _on_alive(self, node: int) -> None:
        self.objects.on_node_changed(node, True)
        self.pending_calls.on_node_changed(node, True)

    def _send_heartbeat(self) -> None:
        """Report the load to the head, which takes it as a sign of life, every ``heartbeat_s``."""
        now = self.ctx.now()
        if now - self._last_heartbeat_s < LATE_PERIODS * self.config.heartbeat_s:
            self.leases.on_timely_heartbeat()
        self._last_heartbeat_s = now
        load = Load(
            queue=self.dispatcher.queue,
            mean_task_s=self.dispatcher.leases.times.mean_s,
            bandwidth=self.objects.pulls.bandwidth,
            assigned=self.submission.assigned,
            available=self.pool.available(),
            starving=self.starvation.look(),
            reserved=dict(self.pool.reserved),
            busy_s=self.leases.busy_s,
        )
        self.ctx.send(heartbeat_of(self.node), Heartbeat(self.node, self.incarnation, load))
        self.ctx.after(self.config.heartbeat_s, self._send_heartbeat)

    def _on_node_changed(self, source: str, message: NodeChanged) -> None:
        """The GCS has published a row of the node table.

        If a node is dead, owners on this node deregister it and its clients as borrowers.
        """
        info = message.info
        self.members.update(info)
        if info.node == self.node and info.incarnation < self.incarnation:
            return  # what its former incarnation had is not here, and what is here is not lost
        self.ctx.send(f"links:{self.node}", message)
        self.queries.on_node_changed(info)
        self.objects.on_node_changed(info.node, info.alive)
        self.pending_calls.on_node_changed(info.node, info.alive)
        if not info.alive:
            self._report_missing()
            for client in self.objects.owners.clients():
                self.ctx.send(client, BorrowersGone(info.node, info.incarnation))

    def _on_unreachable(self, source: str, message: NodeUnreachable) -> None:
        """A frame for another node waits in vain: the GCS decides which of the two leaves."""
        report = PeerUnreachable(
            self.node, self.incarnation, message.node, message.incarnation, message.reason
        )
        self.ctx.send("gcs", report)

    def _report_missing(self) -> None:
        """Report missing results to the GCS: one may have been on its way from a dead node."""
        ranges: list[tuple[bytes, int, int]] = []
        for array in self.objects.owners:
            if self.log.knows(array):
                ranges += [(array, *gap) for gap in self.objects.missing(array)]
        for at in range(0, len(ranges), MISSING_MAX):
            missing = ResultsMissing(self.node, ranges[at : at + MISSING_MAX])
            self.ctx.send("gcs", missing)

    def end_worker(self, worker: Worker, reason: str) -> None:
        """Kill a worker at once, even while it runs a task."""
        pool = f"pool:{self.node}"
        self.ctx.send(pool, KillWorker(worker.address))
        self._on_worker_died(pool, WorkerDied(worker.address, reason))

    def _on_worker_died(self, source: str, message: WorkerDied) -> None:
        """A worker has died: ignore its messages from now on.

        The node frees its room in the arena. It runs the worker's tasks again or fails them. It
        keeps the arrays that the worker owned for its next run; if there will be none, it drops
        them and ends the worker's children.
        """
        worker = self.dispatcher.workers.pop(message.worker, None)
        client = message.worker
        owned = [
            a for a in self.objects.drop_client(client) if self.objects.owners.release(a, client)
        ]
        self.contained_references.worker_gone(client)
        if worker is None:
            return
        if worker.kill_cause is not None:
            self.canceller.cancel_calls(worker, worker.kill_cause, owned)
        runs_again = self.dispatcher.runs_again(worker) or self.actors.may_restart(worker)
        is_over = runs_again or self.actors.is_leaving(worker) or worker.job in self.access.ended
        if worker.has_children and not is_over:
            former = {self.objects.owners.died.get(array, client) for array in owned}
            self.canceller.owners_died(tuple(sorted({client, *former})))
        if owned:
            self.releases.owner_died(client, owned, runs_again)
        self.dispatcher.died(worker, message.reason)

    # -- jobs: see the package's docstring ---------------------------------------

    def _on_register(self, source: str, message: RegisterJob) -> None:
        """A driver wants to join at this node."""
        if message.info.number:
            self.access.drivers[message.info.driver] = job_id(message.info.number)
        self.ctx.send("gcs", message)

    def _on_registered(self, source: str, message: JobRegistered) -> None:
        """The GCS has given a job its number: admit the driver."""
        info = message.info
        if info.number:
            self.access.drivers[info.driver] = job_id(info.number)
        self.ctx.send(f"admission:{self.node}", message)

    def _on_describe(self, source: str, message: DescribeJob) -> None:
        """Forward a driver's facts about its job to the GCS."""
        message.job = self.access.of(source)
        self.ctx.send("gcs", message)

    def _on_job_ended(self, source: str, message: JobEnded) -> None:
        """Drop everything of a job when its driver ends, or when the GCS reports its end."""
        if source.startswith("admission:"):
            self.ctx.send("gcs", message)
        if message.job not in self.access.ended:
            self.access.ended.add(message.job)
            gone = [driver for driver, job in self.access.drivers.items() if job == message.job]
            self._ended_drivers.update(gone)
            self._drop_job(message.job, f"its job has ended: {message.reason}")
            for driver in gone:
                self._drop_driver(driver)
                del self.access.drivers[driver]

    def _on_warning(self, source: str, message: Event) -> None:
        """The GCS warns the driver of a job."""
        for driver, job in self.access.drivers.items():
            if job_number(job) == job_number(message.job):
                self.ctx.send(driver, message)

    def _on_give_back(self, source: str, message: GiveBack) -> None:
        """Resources are scarce in the cluster: ask all clients for what they have dropped."""
        running = [w.address for w in self.dispatcher.workers.values() if w.state != State.STARTING]
        for client in [*self.access.drivers, *running]:
            self.ctx.send(client, message)

    def _drop_job(self, job: bytes, reason: str) -> None:
        """Drop everything of a job, queues first, so that none of its tasks begins."""
        workers = self.dispatcher.end_job(job)
        self.inputs.end_job(job)
        # Detached actors here keep their class, whose job may have ended.
        actors = [actor.spec for actor in self.actors.actors.values()]
        used = {spec.function for spec in actors if not self.access.has_ended_job(spec)}
        self.inputs.forget_functions(self.access.ended, used)
        for worker in workers:
            self.end_worker(worker, reason)
        self.objects.owners.end_job(job)
        self.actors.end_job(job)
        self.results.end_job(job)
        self.objects.pulls.end_job(job)
        for array in self.objects.of_job(job):
            self.log.forget(array)
            self.releases.release_all((array,))

    def _drop_driver(self, client: str) -> None:
        """Drop the references, pins and unsealed objects of a driver."""
        for array in self.objects.drop_client(client):
            if self.objects.owners.release(array, client):
                self.releases.release_all((array,))
        self.contained_references.worker_gone(client)

    # -- requests forwarded to the GCS -----------------------------------------

    def _on_create_group(self, source: str, message: CreateGroup) -> None:
        message.client = source
        self.ctx.send("global", message)

    def _on_remove_group(self, source: str, message: RemoveGroup) -> None:
        self.bundles.on_remove(message.group)
        self.ctx.send("global", message)

    def _on_table(self, source: str, message: Any) -> None:
        """Forward a client's request about a table to the GCS."""
        message.client = source
        self.ctx.send("gcs", message)

    def _on_answer(self, source: str, message: Any) -> None:
        self.ctx.send(message.client, message)

    def _on_kill_actor(self, source: str, message: KillActor) -> None:
        self.pending_calls.killed(message.actor, message.restart)
        self.ctx.send("gcs", message)
