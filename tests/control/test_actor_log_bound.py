"""The logs of all actors share a bound; an actor without its log does not restart."""

from __future__ import annotations

from raytwin.runtime.control.core.batching import record_bytes
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.actor_table import ALIVE
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ActorChanged,
    ActorFailed,
    ActorInfo,
    ActorLineage,
    ActorStarted,
    CallRecord,
    CallsLogged,
    CreateActors,
    FetchLineage,
    KillActor,
    LogCalls,
    NodeInfo,
    RegisterNode,
    SaveActor,
    TaskExtra,
    WatchActors,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from tests.control.alone import Alone, array, result, spec

LONG, SHORT = array(1), array(2)


def call(number: int) -> CallRecord:
    return CallRecord(spec(number), result(number))


ONE = record_bytes(call(100))


def start(interval: int = 0) -> tuple[Gcs, Alone]:
    ctx = Alone()
    gcs = Gcs(ctx, Config(actor_log_bytes_max=20 * ONE))
    gcs.handle("node:0", RegisterNode(NodeInfo(0, "127.0.0.1", 1, {"CPU": 1.0})))
    for number in (1, 2):
        made = spec(number)
        made.extra = TaskExtra(actor=ActorInfo(-1, checkpoint_interval=interval))
        gcs.handle("node:0", CreateActors([made]))
        gcs.handle("node:0", ActorStarted(made.array, 0, 0))
        gcs.handle("node:0", WatchActors([made.array]))
        assert gcs.actors.rows[made.array].state == ALIVE
    return gcs, ctx


def log(gcs: Gcs, actor: bytes, first: int, count: int) -> None:
    calls = [call(100 + number) for number in range(first, first + count)]
    gcs.handle("node:0", LogCalls(actor, 0, first, calls))


def test_the_longest_log_is_given_up_and_the_actor_works_on() -> None:
    gcs, ctx = start()
    log(gcs, SHORT, 0, 5)
    for first in range(0, 200, 4):
        log(gcs, LONG, first, 4)
        assert gcs.actors.log_bytes <= 20 * ONE
    assert ctx.take(CallsLogged)[-1].upto == 200
    row = gcs.actors.rows[LONG]
    assert not row.log
    assert len(gcs.actors.rows[SHORT].log) == 5
    assert gcs.events.counts["actor_log_outgrown"] == 1


def test_an_actor_without_its_log_does_not_restart() -> None:
    gcs, ctx = start()
    log(gcs, LONG, 0, 21)
    log(gcs, SHORT, 0, 5)
    ctx.take(ActorChanged)
    gcs.handle("node:0", ActorFailed(LONG, 0, ActorDeath(DeathCause.WORKER_DIED)))
    (change,) = ctx.take(ActorChanged, "node:0")
    assert change.reason.cause is DeathCause.WORKER_DIED and change.reason.outgrown
    gcs.handle("node:0", ActorFailed(SHORT, 0, ActorDeath(DeathCause.WORKER_DIED)))
    (change,) = ctx.take(ActorChanged, "node:0")
    assert change.incarnation == 1
    gcs.handle("node:0", FetchLineage(SHORT, 1))
    assert sum(len(piece.calls) for piece in ctx.take(ActorLineage)) == 5


def test_after_a_checkpoint_an_actor_can_restart_again() -> None:
    gcs, ctx = start(interval=30)
    log(gcs, LONG, 0, 25)
    row = gcs.actors.rows[LONG]
    assert row.dropped == 25
    assert len(gcs.actors.past.of(LONG)) == 25
    gcs.handle("node:0", SaveActor(LONG, 0, 24, b"too early"))
    assert row.dropped == 25
    log(gcs, LONG, 25, 5)
    gcs.handle("node:0", SaveActor(LONG, 0, 30, b"state"))
    log(gcs, LONG, 30, 2)
    gcs.handle("node:0", ActorFailed(LONG, 0, ActorDeath(DeathCause.WORKER_DIED)))
    gcs.handle("node:0", FetchLineage(LONG, 1))
    pieces = ctx.take(ActorLineage)
    assert (pieces[0].checkpoint, pieces[0].upto) == (b"state", 30)
    assert [r.task.array for piece in pieces for r in piece.calls] == [array(130), array(131)]


def test_the_bytes_of_logs_are_released() -> None:
    gcs, _ = start(interval=2)
    log(gcs, LONG, 0, 6)
    log(gcs, SHORT, 0, 6)
    gcs.handle("node:0", SaveActor(LONG, 0, 4, b"state"))
    assert gcs.actors.log_bytes == 8 * ONE
    gcs.handle("node:0", KillActor(SHORT, ActorDeath(DeathCause.KILLED)))
    assert gcs.actors.log_bytes == 2 * ONE == gcs.actors.rows[LONG].log_bytes
