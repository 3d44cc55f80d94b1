"""The actor table alone: how long it keeps which of an actor's calls."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.gcs.actor_table import ReplyHistory
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    OK,
    ActorChanged,
    ActorFailed,
    ActorInfo,
    ActorLineage,
    AssignTasks,
    CallRecord,
    CreateActors,
    Event,
    FetchLineage,
    KillActor,
    LogCalls,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    PlaceTasks,
    RangeResult,
    RegisterNode,
    ResultsMissing,
    SaveActor,
    TaskExtra,
    TaskResults,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.alone import Alone, array, spec

ACTOR = array(1)


def creation(demand: str = "", placement: str = "") -> TaskSpec:
    made = spec(1, demand=demand)
    made.extra = TaskExtra(actor=ActorInfo(-1, placement=placement))
    return made


def call(number: int, owner: str = "driver:0.0", payload: bytes = b"value") -> CallRecord:
    task = spec(number, owner=owner)
    task.extra = TaskExtra(call=ACTOR)
    return CallRecord(task, RangeResult(array(number), 0, 1, OK, payload, 0))


def gcs_with_an_actor() -> tuple[Gcs, Alone]:
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    gcs.handle("node:0", CreateActors([creation()]))
    return gcs, ctx


def test_an_actor_gives_a_result_again_that_was_lost_in_transit() -> None:
    """The caller's node sends the call again: no error may come before the answer."""
    gcs, ctx = gcs_with_an_actor()
    for node in (0, 1):
        gcs.handle(f"node:{node}", RegisterNode(NodeInfo(node, "host", 0, {"CPU": 1.0})))
    number, owner = array(10), "driver:0.0"
    made = TaskUpdates(1, [], [(number, 0, 1, (5000,))], [], [], calls=[(number, owner, ACTOR)])
    gcs.handle("node:1", made)
    gcs.handle("gcs", NodeUnreachable(1, "gone", 0))
    gcs.handle("node:0", ResultsMissing(0, [(number, 0, 1)]))
    assert ctx.take(TaskResults) == []


def test_a_restart_leaves_the_task_of_the_earlier_incarnation_as_it_was() -> None:
    """In the simulation nodes have the very task that the GCS has sent."""
    gcs, ctx = gcs_with_an_actor()
    gcs.handle("node:0", ActorFailed(ACTOR, 0, ActorDeath(DeathCause.WORKER_DIED)))
    placed = [task for message in ctx.take(PlaceTasks, "global") for task in message.tasks]
    incarnations = [task.extra.actor.incarnation for task in placed if task.extra]  # type: ignore[union-attr]
    assert incarnations == [0, 1]


def test_an_actor_that_is_killed_while_it_fits_nowhere_is_never_placed() -> None:
    gcs, ctx = gcs_with_an_actor()
    placer = Alone()
    placement = GlobalScheduler(placer, Config())
    placement.handle("gcs", PlaceTasks([creation("GPU:1"), spec(2, demand="GPU:1")]))
    gcs.handle("node:0", KillActor(ACTOR, ActorDeath(DeathCause.KILLED)))
    (change,) = ctx.take(ActorChanged, "global")
    placement.handle("gcs", change)
    assert [waiting.array for waiting in placement.infeasible] == [array(2)]
    placement.handle("gcs", NodeChanged(NodeInfo(3, "host", 0, {"GPU": 2.0})))
    assert [[s.array for s in m.tasks] for m in placer.take(AssignTasks)] == [[array(2)]]


def test_an_actor_is_placed_where_there_is_a_cpu_that_it_does_not_take() -> None:
    ctx = Alone()
    placement = GlobalScheduler(ctx, Config())
    placement.handle("gcs", NodeChanged(NodeInfo(0, "host", 0, {"GPU": 1.0})))
    placement.handle("gcs", PlaceTasks([creation(placement="CPU:1")]))
    assert not ctx.take(AssignTasks)
    assert "it needs CPU:1," in ctx.take(Event)[-1].detail
    placement.handle("gcs", NodeChanged(NodeInfo(1, "host", 0, {"CPU": 1.0})))
    assert len(ctx.take(AssignTasks, "node:1")) == 1
    assert not placement.nodes[1].pool.reserved


WORKER = "worker:1.4"


def lineage_of(gcs: Gcs, ctx: Alone) -> list[RangeResult]:
    """Return what a node hears of calls before the checkpoint when the actor starts again."""
    incarnation = gcs.actors.rows[ACTOR].incarnation
    gcs.handle("node:0", FetchLineage(ACTOR, incarnation))
    return [record.result for m in ctx.take(ActorLineage) for record in m.kept]


def test_replies_of_calls_before_a_checkpoint_are_known_after_it() -> None:
    gcs, ctx = gcs_with_an_actor()
    calls = [call(10, WORKER), call(11, WORKER), call(12), call(13, WORKER)]
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, calls))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 3, b"state"))
    assert lineage_of(gcs, ctx) == [record.result for record in calls[:3]]
    gcs.actors.end_job(job_of(array(10)))
    assert gcs.actors.past.nbytes == 0 and not gcs.actors.past.of(ACTOR)


def test_replies_are_dropped_with_their_actor() -> None:
    gcs, _ = gcs_with_an_actor()
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, [call(10, WORKER), call(11, WORKER)]))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 1, b"state"))
    assert len(gcs.actors.past.of(ACTOR)) == 1
    gcs.handle("node:0", KillActor(ACTOR, ActorDeath(DeathCause.KILLED)))
    assert gcs.actors.past.nbytes == 0 and not gcs.actors.past.of(ACTOR)


def test_the_oldest_replies_are_dropped_first() -> None:
    one = ReplyHistory()
    one.keep(ACTOR, call(1, WORKER))
    past = ReplyHistory(10 * one.nbytes)
    for number in range(3_000):
        past.keep(array(number % 3), call(10_000 + number, WORKER))
        assert past.nbytes <= 10 * one.nbytes
    kept = [record.task.array for actor in range(3) for record in past.of(array(actor))]
    assert sorted(kept) == [array(12_990 + number) for number in range(10)]
    for actor in range(3):
        past.drop(array(actor))
    for number in range(5_000):
        past.keep(ACTOR, call(20_000 + number, WORKER))
        past.drop(ACTOR)
    assert past.nbytes == 0 and len(past._order) <= 1_002
