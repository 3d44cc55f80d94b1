"""Mutants: the fuzz finds each defect of the control plane."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, Case, draw_case
from raytwin.chaos.fuzz.oracle.findings import Kind
from raytwin.chaos.fuzz.programs.program import Body, Op
from raytwin.chaos.fuzz.run.campaign import run_seeds
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.control.actors.actor_reconstruction import ActorReconstruction
from raytwin.runtime.control.actors.actor_record import ReplyCache
from raytwin.runtime.control.actors.call_queue import CallQueue
from raytwin.runtime.control.actors.pending_calls import PendingCalls
from raytwin.runtime.control.channels.channel import Channel
from raytwin.runtime.control.client.direct_calls import DirectCalls
from raytwin.runtime.control.client.submitter import Submitter
from raytwin.runtime.control.core.resources import ResourcePool, parse_demand
from raytwin.runtime.control.gcs import object_reconstruction
from raytwin.runtime.control.gcs.actor_table import ActorTable, ReplyHistory
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.kv_table import KvTable
from raytwin.runtime.control.gcs.node_table import NodeTable
from raytwin.runtime.control.gcs.sharding.shard import Shard
from raytwin.runtime.control.gcs.task_object_table import TaskObjectTable
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import KvPut, KvReply, NodeInfo
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.objects.object_memory import ObjectMemory
from raytwin.runtime.control.objects.pull_manager import PullManager
from raytwin.runtime.control.objects.release_manager import ReleaseManager
from raytwin.runtime.control.observability.queries import Queries
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.ownership.reference_counter import ReferenceCounter
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.state_machine import Session
from raytwin.runtime.control.scheduling import placement_groups
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.control.worker.direct_answers import DirectAnswers
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.actor_execution import ActorRunner
from raytwin.runtime.execution.call_execution import Reporter

pytestmark = pytest.mark.slow

PROMISES = Path(__file__).resolve().parents[2] / "docs" / "promises.md"
WITHIN = {
    name: int(number)
    for name, number in re.findall(r"(?m)^\| (.+?) \| (\d+) \|$", PROMISES.read_text())
}
"""Within how many seeds each defect is found, as the documentation says."""
FIRST = 30_000
"""The first seed of the search."""
ELSEWHERE = {"the tail confirms what a joining replica lacks": 32_000}
"""The first seed for the rarest defect, which one seed in some 500 finds."""
SEEDS_MAX = 500

WRONG = (Kind.VALUE, Kind.ERROR, Kind.RAISED)
STUCK = (Kind.HANG, Kind.LIVENESS, Kind.RESOURCES, Kind.ACTORS)
LEFT = (Kind.STORES, Kind.TABLES, Kind.REFERENCES)


def any_case(case: Case) -> bool:
    return True


def has_chain(case: Case) -> bool:
    """Whether replicas of the GCS die."""
    return any(step.target.kind == "replica" and step.action == "kill" for step in case.plan.steps)


def has_replicas(case: Case) -> bool:
    return case.gcs.get("gcs_replicas", 1) > 1


def doubles_frames(case: Case) -> bool:
    return any(step.action == "double" for step in case.plan.steps)


def breaks_links(case: Case) -> bool:
    return any(step.target.kind == "link" for step in case.plan.steps)


def has_shards(case: Case) -> bool:
    return case.gcs.get("gcs_shards", 1) > 1


def stays_broken(case: Case) -> bool:
    """Whether the last node that breaks hangs for good."""
    return [step.action for step in case.plan.steps if step.action != "heal"][-1] == "pause"


def has_op(does: Callable[[Op], object]) -> Callable[[Case], bool]:
    """Return whether a program, or the body of a task in it, has an operation that `does`."""

    def has(body: Body) -> bool:
        calls = (op.call for op in body.ops if op.call is not None)
        return any(map(does, body.ops)) or any(has(call.body) for call in calls if call.body)

    return lambda case: any(map(has, (case.program, *case.drivers)))


sets_keys = has_op(lambda op: op.do == "set_key")
names_actors = has_op(lambda op: op.spec is not None and op.spec.name)
reserves_groups = has_op(lambda op: op.do == "group")
calls_concurrently = has_op(lambda op: op.spec is not None and op.spec.most > 1)
kills_actors = has_op(lambda op: op.do == "kill")
exits_actors = has_op(lambda op: op.call is not None and op.call.leaves)
yields_items = has_op(lambda op: op.do == "yields")


def has_drivers(case: Case) -> bool:
    return bool(case.drivers)


def mutant_without(cls: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(cls, method, lambda *args, **kwargs: None)

    return break_it


def never_taken(patch: pytest.MonkeyPatch) -> None:
    """A pool that gives without taking: more runs than there is room for."""
    for method in ("take", "retake", "give"):
        patch.setattr(ResourcePool, method, lambda self, demand: None)


def never_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A pool in which the CPUs of tasks that go on stay free: others begin beside them."""

    def give(self: ResourcePool, demand: str) -> None:
        for name, units in parse_demand(demand):
            self.free[name] = min(self.free[name] + units, self.total[name])

    patch.setattr(ResourcePool, "give", give)
    patch.setattr(ResourcePool, "retake", lambda self, demand: None)


def mixed_up(patch: pytest.MonkeyPatch) -> None:
    """A task gets its inputs in another order than it was given them."""
    inputs = TaskInputs.take

    def wrong(self: TaskInputs, spec: Any, worker: str) -> Any:
        found = inputs(self, spec, worker)
        return None if found is None else found[::-1]

    patch.setattr(TaskInputs, "take", wrong)


def seen_twice(patch: pytest.MonkeyPatch) -> None:
    """A result that is lost with its node is taken to be there for ever."""
    patch.setattr(TaskObjectTable, "on_node_died", lambda self, node, reason, *_: None)


def never_dead(patch: pytest.MonkeyPatch) -> None:
    """A node that is silent, or cut off from another, stays a member."""

    def _judge(self: NodeTable) -> None:  # snapshots name it
        self._judging = False

    patch.setattr(NodeTable, "_judge", _judge)
    mutant_without(NodeTable, "declare_dead")(patch)


def retries_lost(patch: pytest.MonkeyPatch) -> None:
    """A worker's death fails its task, whatever retries it has left."""
    retry = Dispatcher._retry

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in worker.assigned:
            spec.retries = 0
        retry(self, worker, reason)

    patch.setattr(Dispatcher, "_retry", wrong)


def retried_once(patch: pytest.MonkeyPatch) -> None:
    """Whatever retries a task has, its second death is its last."""
    retry, resubmission = Dispatcher._retry, object_reconstruction.resubmission

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in [*worker.assigned][:1]:
            spec.retries = min(spec.retries, 1)
        retry(self, worker, reason)

    def once(spec: Any, *args: Any, **kwargs: Any) -> Any:
        part = resubmission(spec, *args, **kwargs)
        part.retries = min(part.retries, 0)
        return part

    patch.setattr(Dispatcher, "_retry", wrong)
    patch.setattr(object_reconstruction, "resubmission", once)


def last_retry_not_granted(patch: pytest.MonkeyPatch) -> None:
    """A node's death fails the tasks that have one retry left."""
    lose_node = ArrayRow.lose_node

    def wrong(self: ArrayRow, *args: Any) -> Any:
        unfinished = lose_node(self, *args)
        for spec in (*(spec for spec, _ in unfinished), *self.lineage):
            spec.retries = 0 if spec.retries == 1 else spec.retries
        return unfinished

    patch.setattr(ArrayRow, "lose_node", wrong)


def two_retries_for_a_node(patch: pytest.MonkeyPatch) -> None:
    """A node's death costs its tasks two retries."""
    resubmission = object_reconstruction.resubmission

    def wrong(spec: Any, *args: Any, **kwargs: Any) -> Any:
        part = resubmission(spec, *args, **kwargs)
        part.retries -= part.retries > 0
        return part

    patch.setattr(object_reconstruction, "resubmission", wrong)


def two_retries_for_a_worker(patch: pytest.MonkeyPatch) -> None:
    """A worker's death costs its task two retries."""
    retry = Dispatcher._retry

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in [*worker.assigned][:1]:
            spec.retries -= spec.retries > 1
        retry(self, worker, reason)

    patch.setattr(Dispatcher, "_retry", wrong)


def worker_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    """A worker's death costs its task no retry."""
    retry = Dispatcher._retry

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in [*worker.assigned][:1]:
            spec.retries += spec.retries > 0
        retry(self, worker, reason)

    patch.setattr(Dispatcher, "_retry", wrong)


def restarted_once(patch: pytest.MonkeyPatch) -> None:
    """An actor restarts once, though it has more restarts; those without end (-1) stay."""
    fail = ActorTable._fail

    def wrong(self: ActorTable, row: Any, *args: Any) -> None:
        row.restarts_left = min(row.restarts_left, 1)
        fail(self, row, *args)

    patch.setattr(ActorTable, "_fail", wrong)


def sent_again_once(patch: pytest.MonkeyPatch) -> None:
    """A call is sent again once, though it has more retries; those without end (-1) stay."""
    send_again = PendingCalls._send_again

    def wrong(self: PendingCalls, route: Any) -> None:
        for spec in route.sent.values():
            spec.retries = min(spec.retries, 1)
        send_again(self, route)

    patch.setattr(PendingCalls, "_send_again", wrong)


def items_without_task(patch: pytest.MonkeyPatch) -> None:
    """The GCS takes the number of a stream's item for the number of its task."""
    for module in ("array_row", "lineage"):
        name = f"raytwin.runtime.control.gcs.{module}.task_of"
        patch.setattr(name, lambda index: index)


def run_again(patch: pytest.MonkeyPatch) -> None:
    """A worker forgets a direct call that has ended."""
    answer = DirectAnswers.answer

    def wrong(self: DirectAnswers, result: Any, timing: Any) -> None:
        answer(self, result, timing)
        self.call = b""

    patch.setattr(DirectAnswers, "answer", wrong)


def never_replayed(patch: pytest.MonkeyPatch) -> None:
    """An actor starts again as if it had never been called."""
    restore = ActorReconstruction.restore

    def wrong(self: ActorReconstruction, actor: Any) -> None:
        actor.lineage.clear()
        actor.replaying.clear()
        restore(self, actor)

    patch.setattr(ActorReconstruction, "restore", wrong)


def placed_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Bundles go where there is room, whatever the strategy says."""
    place = placement_groups.place

    def wrong(bundles: Any, free: Any, strategy: str, used: Any) -> Any:
        return place(bundles, free, "PACK" if "SPREAD" in strategy else "SPREAD", used)

    patch.setattr(placement_groups, "place", wrong)


def one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: not self._actor.running)


def all_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: True)


def killed_for_good(patch: pytest.MonkeyPatch) -> None:
    """An actor that is killed does not start again, whatever was said."""
    kill = Submitter.kill_actor

    def wrong(self: Submitter, actor: bytes, restart: bool) -> None:
        kill(self, actor, False)

    patch.setattr(Submitter, "kill_actor", wrong)


def exit_is_a_crash(patch: pytest.MonkeyPatch) -> None:
    """An actor that leaves comes back."""
    patch.setattr(Executor, "leave", Executor.crash)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[Kind, ...]]] = {
    "resources are never taken": (never_taken, (Kind.OVERSUBSCRIPTION,)),
    "CPUs are never taken back": (never_taken_back, (Kind.OVERSUBSCRIPTION,)),
    "resources are never given back": (
        mutant_without(ResourcePool, "give"),
        STUCK,
    ),
    "nothing is released": (mutant_without(ReleaseManager, "release_all"), LEFT),
    "the GCS never releases": (mutant_without(TaskObjectTable, "release"), LEFT),
    "inputs are mixed up": (mixed_up, WRONG),
    "a dead node's work is forgotten": (
        seen_twice,
        WRONG + STUCK + (Kind.TABLES,),
    ),
    "nodes are never declared dead": (never_dead, WRONG + STUCK),
    "retries are forgotten": (retries_lost, WRONG),
    "a task is retried once at most": (retried_once, (Kind.ERROR,)),
    "the last retry is not granted": (last_retry_not_granted, (Kind.ERROR,)),
    "a node's death costs two retries": (two_retries_for_a_node, (Kind.RETRIES,)),
    "a worker's death costs no retry": (worker_costs_nothing, (Kind.RETRIES,)),
    "a worker's death costs two retries": (two_retries_for_a_worker, (Kind.RETRIES,)),
    "items of streams have no task": (items_without_task, WRONG),
    "borrowers are not counted": (mutant_without(ReferenceCounter, "_on_update"), WRONG),
    "an owner's death is not announced": (
        mutant_without(ReleaseManager, "owner_died"),
        WRONG + STUCK + LEFT,
    ),
    "references inside of values are never released": (
        mutant_without(ContainedReferences, "release"),
        LEFT,
    ),
    "a direct call that is published runs again": (run_again, WRONG),
    "direct calls of dead workers are lost": (
        mutant_without(DirectCalls, "on_closed"),
        STUCK,
    ),
    "actors are not reconstructed": (never_replayed, WRONG),
    "calls take effect twice": (
        lambda patch: patch.setattr(CallQueue, "repeat", lambda self, actor, spec: False),
        WRONG,
    ),
    "memory is never freed": (mutant_without(ObjectMemory, "_free"), (Kind.STORES, *WRONG)),
}


def set_once(patch: pytest.MonkeyPatch) -> None:
    """The key-value table keeps the first value of a key."""

    def wrong(self: KvTable, source: str, message: KvPut) -> None:
        there = message.key in self.values
        before = self.values.setdefault(message.key, message.value)
        answer = before if there else None
        self._ctx.send(source, KvReply(message.request, message.client, answer))

    patch.setattr(KvTable, "on_put", wrong)


def waiting_calls_lost(patch: pytest.MonkeyPatch) -> None:
    """Calls that wait for a restarting actor are not sent once it is alive."""
    send_again = PendingCalls._send_again

    def wrong(self: PendingCalls, route: Any) -> None:
        route.waiting = []
        send_again(self, route)

    patch.setattr(PendingCalls, "_send_again", wrong)


def deaf_to_deaths(cls: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A part that gets the news of each node which joins, and of none that dies."""
    take = getattr(cls, method)

    def wrong(self: Any, *args: Any) -> None:
        news = args[-1]
        if (news if isinstance(news, NodeInfo) else news.info).alive:
            take(self, *args)

    return lambda patch: patch.setattr(cls, method, wrong)


def believe_all(patch: pytest.MonkeyPatch) -> None:
    """Suspect nobody, neither for missing heartbeats nor for missing acknowledgements."""
    patch.setattr(FailureDetector, "_check", lambda self: None)
    patch.setattr(Channel, "_report", lambda self, reason: None)


def deaf_to_heartbeats(patch: pytest.MonkeyPatch) -> None:
    """The failure detector hears of no heartbeat but those of the driver's node."""
    on_heartbeat = FailureDetector._on_heartbeat

    def wrong(self: FailureDetector, source: str, message: Any) -> None:
        heard_s = self._heard_s.get(message.node)
        on_heartbeat(self, source, message)
        if message.node > 0 and heard_s is not None:
            self._heard_s[message.node] = heard_s

    patch.setattr(FailureDetector, "_on_heartbeat", wrong)


def names_stay_taken(patch: pytest.MonkeyPatch) -> None:
    """The name of an actor that has ended stays in the table."""
    fail = ActorTable._fail

    def wrong(self: ActorTable, *args: Any, **kwargs: Any) -> None:
        names = dict(self.names)
        fail(self, *args, **kwargs)
        self.names |= names

    patch.setattr(ActorTable, "_fail", wrong)


def other_nodes_rows_dropped(patch: pytest.MonkeyPatch) -> None:
    """A node answers a query about all nodes with its own rows alone."""
    answered = Queries._answered

    def wrong(self: Queries, key: int, address: str, rows: list[Any]) -> None:
        answered(self, key, address, rows if address == self._address else [])

    patch.setattr(Queries, "_answered", wrong)


def user_errors_retried(patch: pytest.MonkeyPatch) -> None:
    """A worker takes an error of the user's code for one of the system's.

    Not where retries have no end: such a task would run for as long as the case may last. Nor
    where a task has no `extra`, without which a node refuses to run it again.
    """
    wants_retry = Reporter.wants_retry

    def wrong(self: Reporter, spec: Any, error: BaseException) -> bool:
        return wants_retry(self, spec, error) or (spec.retries > 0 and spec.extra is not None)

    patch.setattr(Reporter, "wants_retry", wrong)


def lost_with_the_link(patch: pytest.MonkeyPatch) -> None:
    """A channel that reconnects has forgotten what the peer has not acknowledged."""
    on_hello = Channel.on_hello

    def wrong(self: Channel, link: Any, hello: Any) -> None:
        if self._session == hello.session:
            self.kept.clear()
            self.kept_bytes = 0
        on_hello(self, link, hello)

    patch.setattr(Channel, "on_hello", wrong)


def not_repeated(patch: pytest.MonkeyPatch) -> None:
    """A client does not repeat its unconfirmed requests when a chain has another head."""
    on_configured = ChainClient._on_configured

    def wrong(self: ChainClient, message: Any) -> None:
        self.unconfirmed.clear()
        on_configured(self, message)

    patch.setattr(ChainClient, "_on_configured", wrong)


def nothing_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A replica keeps commands, whatever the tail has acknowledged."""
    on_ack = Replica._on_ack

    def wrong(self: Replica, source: str, message: Any) -> None:
        kept = self.kept.copy()
        on_ack(self, source, message)
        self.kept = kept

    patch.setattr(Replica, "_on_ack", wrong)


def confirmed_too_soon(patch: pytest.MonkeyPatch) -> None:
    """The tail answers a command that the joining replica may lack."""
    patch.setattr(Replica, "_limit", property(lambda self: self.machine.index))


def too_early(patch: pytest.MonkeyPatch) -> None:
    """The failure detector takes seven tenths of the limit for the limit."""
    begin = FailureDetector.__init__

    def wrong(self: FailureDetector, ctx: Any, config: Any) -> None:
        less_s = 0.7 * config.heartbeat_timeout_s
        begin(self, ctx, msgspec.structs.replace(config, heartbeat_timeout_s=less_s))

    patch.setattr(FailureDetector, "__init__", wrong)


def impatient(patch: pytest.MonkeyPatch) -> None:
    """A channel takes six tenths of the limit for the limit."""
    begin = Channel.__init__

    def wrong(self: Channel, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._limit_s *= 0.6

    patch.setattr(Channel, "__init__", wrong)


def frames_stay_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A channel makes progress with each acknowledgement, and keeps all frames nevertheless."""

    def wrong(self: Channel, number: int) -> None:
        if self.kept and number > getattr(self, "acknowledged", 0):
            self.acknowledged = number
            self._progress()

    patch.setattr(Channel, "_on_acknowledged", wrong)


def bytes_stay_counted(patch: pytest.MonkeyPatch) -> None:
    """A channel counts the bytes of acknowledged frames for ever."""
    on_acknowledged = Channel._on_acknowledged

    def wrong(self: Channel, number: int) -> None:
        kept_bytes = self.kept_bytes
        on_acknowledged(self, number)
        self.kept_bytes = kept_bytes

    patch.setattr(Channel, "_on_acknowledged", wrong)


def delivered_twice(patch: pytest.MonkeyPatch) -> None:
    """A channel delivers a frame as often as it arrives."""
    on_packet = Channel.on_packet

    def wrong(self: Channel, link: Any, sequence: int, acked: int, frame: Any, size: int) -> bool:
        again = frame is not None and sequence <= self.received and link is self._link
        return on_packet(self, link, sequence, acked, frame, size) or again

    patch.setattr(Channel, "on_packet", wrong)


MUTANTS_OF_PARTS: dict[
    str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[Kind, ...], Callable[[Case], bool]]
] = {
    "keys are set once": (set_once, (Kind.KEYS,), sets_keys),
    "jobs never end": (mutant_without(JobTable, "end"), (Kind.JOBS,), has_drivers),
    "silent nodes are not suspected": (
        believe_all,
        STUCK,
        stays_broken,
    ),
    "living nodes are declared dead": (deaf_to_heartbeats, (Kind.DEATHS,), any_case),
    "a node is declared dead before the limit": (too_early, (Kind.DEATHS,), any_case),
    "a peer is reported before the limit": (impatient, (Kind.DEATHS,), any_case),
    "acknowledged frames stay in memory": (frames_stay_in_memory, (Kind.MEMORY,), any_case),
    "lone frames are not acknowledged": (
        mutant_without(Channel, "_on_ack_timer"), (Kind.MEMORY,), any_case,
    ),
    "bytes of acknowledged frames stay counted": (
        bytes_stay_counted, (Kind.MEMORY,), any_case,
    ),
    "names of ended actors stay taken": (names_stay_taken, (Kind.ACTORS,), names_actors),
    "what the user's code has raised is retried": (
        user_errors_retried, (Kind.REPEATED,), any_case,
    ),
    "other nodes' rows are left out of the timeline": (
        other_nodes_rows_dropped, (Kind.TIMELINE,), any_case,
    ),
    "shards hear of no death": (
        deaf_to_deaths(Shard, "_on_node_changed"), STUCK + WRONG, has_shards,
    ),
    "the global scheduler hears of no death": (
        deaf_to_deaths(GlobalScheduler, "_on_node"), STUCK + WRONG, any_case,
    ),
    "nodes hear of no death": (
        deaf_to_deaths(NodeManager, "_on_node_changed"), STUCK + WRONG, any_case,
    ),
    "dead nodes are still asked for objects": (
        mutant_without(PullManager, "node_died"), STUCK, any_case,
    ),
    "results on their way from a dead node are not missed": (
        mutant_without(NodeManager, "_report_missing"), STUCK, any_case,
    ),
    "calls that wait for a restart are lost": (waiting_calls_lost, STUCK, any_case),
    "replies before a checkpoint are forgotten": (
        mutant_without(ReplyHistory, "keep"), WRONG, any_case,
    ),
    "a worker that waits gives no task back": (
        mutant_without(Executor, "_give_back"), STUCK, any_case,
    ),
    "tasks that a worker gives back are lost": (
        mutant_without(Dispatcher, "on_taken_back"), STUCK, any_case,
    ),
    "frames are lost with their connection": (
        lost_with_the_link, STUCK + WRONG, breaks_links,
    ),
    "requests are not repeated to a new chain": (not_repeated, STUCK + WRONG, has_chain),
    "replicas keep what the tail has acknowledged": (
        nothing_is_acknowledged, (Kind.MEMORY,), has_replicas,
    ),
    "the tail confirms what a joining replica lacks": (
        confirmed_too_soon, (Kind.REPLICAS,), has_chain,
    ),
    "outputs of a chain are kept for ever": (
        mutant_without(Session, "acknowledge"), (Kind.MEMORY,), has_replicas,
    ),
    "frames that arrive twice are delivered twice": (
        delivered_twice, STUCK + WRONG + LEFT, doubles_frames,
    ),
    "yielded items of calls are forgotten": (
        mutant_without(ReplyCache, "add_item"), WRONG + STUCK, yields_items,
    ),
    "bundles are never returned": (
        mutant_without(Bundles, "on_return"), (Kind.BUNDLES, *STUCK), reserves_groups,
    ),
    "strategies are not kept": (placed_anywhere, WRONG, reserves_groups),
    "a group's removal is not applied at once": (
        mutant_without(Bundles, "on_remove"), WRONG, reserves_groups,
    ),
    "queued tasks of a removed group are left there": (
        mutant_without(Bundles, "_end_waiting"), (Kind.BUNDLES, *STUCK, *WRONG), reserves_groups,
    ),
    "calls run one at a time": (one_at_a_time, WRONG + STUCK, calls_concurrently),
    "more calls run than max_concurrency allows": (
        all_at_once, WRONG + STUCK, calls_concurrently,
    ),
    "an actor restarts once at most": (restarted_once, WRONG, any_case),
    "a call is sent again once at most": (sent_again_once, WRONG, any_case),
    "an actor is killed for good": (killed_for_good, WRONG, kills_actors),
    "an actor that exits restarts": (exit_is_a_crash, WRONG + STUCK, exits_actors),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A defect, how it shows, and in which cases it may."""

    break_it: Callable[[pytest.MonkeyPatch], None]
    kinds: tuple[Kind, ...]
    may: Callable[[Case], bool] = any_case


EVERY_MUTANT = {
    **{name: Mutant(*each) for name, each in MUTANTS.items()},
    **{name: Mutant(*each) for name, each in MUTANTS_OF_PARTS.items()},
}


def catching_seeds(mutant: Mutant, within: int = SEEDS_MAX, first: int = FIRST) -> Iterator[int]:
    """Yield the seeds that catch a mutant, of so many from the first on.

    Seeds whose case cannot show the defect count, and are not run. Where nothing becomes free, a
    small store would be evicted for ever.
    """
    for seed in range(first, first + within):
        case = draw_case(seed)
        may = mutant.may(case) and not (
            Kind.STORES in mutant.kinds and case.store_bytes != STORE_BYTES
        )
        if may and any(each.kind in mutant.kinds for each in run_case(case).failures):
            yield seed


@pytest.mark.parametrize("name", EVERY_MUTANT)
def test_a_defect_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = EVERY_MUTANT[name]
    mutant.break_it(monkeypatch)
    first = ELSEWHERE.get(name, FIRST)
    assert any(catching_seeds(mutant, WITHIN[name], first)), "no seed saw it"


@pytest.mark.parametrize("start", range(30_000, 30_240, 60))
def test_without_a_defect_the_same_seeds_hold(start: int) -> None:
    reports = run_seeds(range(start, start + 60), jobs=2)
    assert [(each.case.seed, each.failures) for each in reports if each.failures] == []
