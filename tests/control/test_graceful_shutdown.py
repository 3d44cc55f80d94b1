"""Graceful ends of actors: their node's part until their process is gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.actor_table import ALIVE, ActorTable
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ActorFailed,
    ActorInfo,
    ActorPlaced,
    ActorStarted,
    AssignTasks,
    CreateActors,
    Exit,
    ExitActor,
    KillActor,
    KillWorker,
    NodeInfo,
    RegisterNode,
    StopActor,
    TaskExtra,
    TasksDone,
    TaskSpec,
    Timing,
    WorkerDied,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from tests.control.alone import Alone, array, result, spec
from tests.control.one_node import W1, Node

EXITED = ActorDeath(DeathCause.EXITED)
LIMIT_S = Config().actor_end_s


def creation(restarts: int = 0) -> TaskSpec:
    made = spec(9)
    made.extra = TaskExtra(actor=ActorInfo(restarts))
    return made


def living(restarts: int = 0) -> tuple[Node, bytes]:
    """Return a node with an actor that takes calls on its only worker, and the actor."""
    node = Node()
    made = creation(restarts)
    node.turn("global", AssignTasks([made], 1))
    node.turn(W1, TasksDone([result(9)], [Timing("t", 0.0, 1e-4, 1)]))
    assert node.ctx.take(ActorStarted)
    assert node.free() == {"CPU": 0.0}
    node.ctx.sent.clear()
    return node, made.array


def test_an_unreferenced_actor_is_asked_to_exit() -> None:
    node, actor = living()
    node.turn("gcs", StopActor(actor, 0, graceful=True))
    assert node.ctx.take(Exit, W1) and not node.ctx.take(KillWorker)
    assert node.free() == {"CPU": 0.0}, "its process is there yet"
    node.turn("pool:0", WorkerDied(W1, "exit code 0"))
    assert node.free() == {"CPU": 1.0}
    assert not node.ctx.take(ActorFailed), "the GCS knows it already"


def test_a_killed_actor_is_not_asked_to_exit() -> None:
    node, actor = living()
    node.turn("gcs", StopActor(actor, 0))
    assert node.ctx.take(KillWorker) == [KillWorker(W1)] and not node.ctx.take(Exit)


def test_an_actor_exits_after_its_constructor() -> None:
    node = Node()
    node.turn("global", AssignTasks([creation()], 1))
    node.turn("gcs", StopActor(creation().array, 0, graceful=True))
    assert node.ctx.take(Exit, W1) and not node.ctx.take(KillWorker)


def test_an_actor_that_waits_for_resources_is_dropped_at_once() -> None:
    node, _ = living()
    waiting = replace(creation(), array=array(2))
    node.turn("global", AssignTasks([waiting], 1))
    node.turn("gcs", StopActor(waiting.array, 0, graceful=True))
    assert not node.ctx.take(KillWorker) and not node.ctx.take(Exit)
    assert array(2) not in node.scheduler.actors.actors


@pytest.mark.parametrize("how", ["asked", "itself"])
def test_an_actor_that_exits_too_slowly_is_killed(how: str) -> None:
    node, actor = living(restarts=-1)
    if how == "asked":
        node.turn("gcs", StopActor(actor, 0, graceful=True))
    else:
        node.turn(W1, ExitActor(EXITED))
    node.ctx.pass_time(LIMIT_S - 0.001)
    assert not node.ctx.take(KillWorker)
    node.ctx.pass_time(0.001)
    assert node.ctx.take(KillWorker) == [KillWorker(W1)]
    assert node.free() == {"CPU": 1.0}
    assert all(failed.final for failed in node.ctx.take(ActorFailed))


def test_the_timeout_of_a_gone_actor_kills_no_other() -> None:
    node, actor = living()
    node.turn("gcs", StopActor(actor, 0, graceful=True))
    node.turn("pool:0", WorkerDied(W1, "exit code 0"))
    node.ctx.pass_time(2 * LIMIT_S)
    assert not node.ctx.take(KillWorker)


def test_an_exiting_actor_ends_with_its_process_and_does_not_restart() -> None:
    node, _ = living(restarts=-1)
    node.turn(W1, ExitActor(EXITED))
    assert not node.ctx.take(ActorFailed), "what it does at its end is not over"
    worker = node.scheduler.dispatcher.workers[W1]
    assert not node.scheduler.actors.may_restart(worker)
    node.turn("pool:0", WorkerDied(W1, "killed by SIGSEGV"))
    (failed,) = node.ctx.take(ActorFailed, "gcs")
    assert failed.final and failed.reason == EXITED
    assert node.free() == {"CPU": 1.0}


@pytest.mark.parametrize("graceful", [False, True])
def test_the_gcs_passes_on_how_an_actor_is_to_end(graceful: bool) -> None:
    ctx: Any = Alone()
    gcs = Gcs(ctx, Config())
    gcs.handle("node:0", RegisterNode(NodeInfo(0, "localhost", 1, {"CPU": 1.0})))
    made = creation()
    gcs.handle("node:0", CreateActors([made]))
    gcs.handle("global", ActorPlaced(made.array, 0, 0))
    gcs.handle("node:0", ActorStarted(made.array, 0, 0))
    table: ActorTable = gcs.actors
    assert table.rows[made.array].state == ALIVE
    gcs.handle(
        "node:0",
        KillActor(made.array, ActorDeath(DeathCause.NO_OWNER), owner=made.owner, graceful=graceful),
    )
    assert ctx.take(StopActor, "node:0") == [StopActor(made.array, 0, False, graceful)]
