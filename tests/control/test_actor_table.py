"""The actor table alone: what it keeps of an actor's calls, and for how long."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.gcs.actor_reply_history import REPLY_BYTES_MAX, ActorReplyHistory
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    ActorChanged,
    ActorInfo,
    ActorLineage,
    AssignTasks,
    CallRecord,
    CallsReceived,
    CreateActors,
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
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, LossCause, unpack
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.alone import Alone, array, spec

ACTOR = array(1)


def creation(demand: str = "") -> TaskSpec:
    made = spec(1, demand=demand)
    made.extra = TaskExtra(actor=ActorInfo(-1))
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


def test_results_that_callers_have_are_not_kept_beyond_a_checkpoint() -> None:
    gcs, _ = gcs_with_an_actor()
    row = gcs.actors.rows[ACTOR]
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, [call(n) for n in (10, 11, 12)]))
    gcs.handle("node:0", CallsReceived(ACTOR, [array(10)]))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 2, b"state"))
    assert list(row.kept) == [array(11)]
    assert [record.task.array for record in row.log] == [array(12)]
    gcs.handle("node:0", CallsReceived(ACTOR, [array(11), array(12)]))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 3, b"state"))
    assert not (row.kept or row.log or row.awaited)


def test_calls_that_never_took_effect_leave_no_trace() -> None:
    """Their callers got an error: an input that was one, or no retries left."""
    gcs, _ = gcs_with_an_actor()
    row = gcs.actors.rows[ACTOR]
    gcs.handle("node:0", CallsReceived(ACTOR, [array(n) for n in range(100, 200)]))
    tables = (getattr(row, name) for name in row.__struct_fields__)
    assert not [table for table in tables if isinstance(table, set | dict | list) and table]


def test_a_result_that_was_on_its_way_is_its_actors_to_give_again() -> None:
    """The caller's node sends the call again: no error may come before the answer."""
    gcs, ctx = gcs_with_an_actor()
    for node in (0, 1):
        gcs.handle(f"node:{node}", RegisterNode(NodeInfo(node, "host", 0, {"CPU": 1.0})))
    number, owner = array(10), "driver:0.0"
    made = TaskUpdates(1, [], [(number, 0, 1, (5000,))], [], [], calls=[(number, owner, ACTOR)])
    gcs.handle("node:1", made)
    gcs.handle("gcs", NodeUnreachable(1, "gone"))
    gcs.handle("node:0", ResultsMissing(0, [(number, 0, 1)]))
    assert ctx.take(TaskResults) == []


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


WORKER = "worker:1.4"


def lineage_of(gcs: Gcs, ctx: Alone) -> list[RangeResult]:
    """Return what a node hears of calls before the checkpoint when the actor starts again."""
    incarnation = gcs.actors.rows[ACTOR].incarnation
    gcs.handle("node:0", FetchLineage(ACTOR, incarnation))
    return [record.result for m in ctx.take(ActorLineage) for record in m.kept]


def test_calls_of_those_who_may_run_again_are_known_beyond_a_checkpoint() -> None:
    gcs, ctx = gcs_with_an_actor()
    long = bytes(REPLY_BYTES_MAX + 1)
    calls = [call(10, WORKER), call(11, WORKER), call(12), call(13, WORKER, long), call(14, WORKER)]
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, calls))
    gcs.handle("node:0", CallsReceived(ACTOR, [array(10), array(12), array(13)]))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 4, b"state"))
    gcs.handle("node:0", CallsReceived(ACTOR, [array(11)]))
    found = {result.array: result for result in lineage_of(gcs, ctx)}
    assert found.keys() == {array(10), array(11), array(13)}
    assert found[array(10)] == calls[0].result and found[array(11)] == calls[1].result
    assert found[array(13)].status == SYSTEM_ERROR
    assert unpack(found[array(13)].payload).cause is LossCause.FORGOTTEN
    gcs.actors.end_job(job_of(array(10)))
    assert gcs.actors.past.nbytes == 0 and not gcs.actors.past.of(ACTOR)


def test_they_end_with_their_actor() -> None:
    gcs, _ = gcs_with_an_actor()
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, [call(10, WORKER), call(11, WORKER)]))
    gcs.handle("node:0", CallsReceived(ACTOR, [array(10), array(11)]))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 1, b"state"))
    assert len(gcs.actors.past.of(ACTOR)) == 1
    gcs.handle("node:0", KillActor(ACTOR, ActorDeath(DeathCause.KILLED)))
    assert gcs.actors.past.nbytes == 0 and not gcs.actors.past.of(ACTOR)


def test_they_are_bounded_oldest_first() -> None:
    one = ActorReplyHistory()
    one.keep(ACTOR, call(1, WORKER))
    past = ActorReplyHistory(10 * one.nbytes)
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
