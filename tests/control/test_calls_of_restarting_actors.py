"""Calls of an actor that has failed and is not alive again."""

from __future__ import annotations

from raytwin.runtime.control.gcs.actor_table import ALIVE, PENDING, STARTING
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorChanged,
    KillActor,
    SubmitTasks,
    TaskResults,
)
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    ActorUnavailable,
    DeathCause,
    unpack,
)
from tests.control.alone import array
from tests.control.one_node import Node
from tests.control.test_calls_of_restarted_callers import ACTOR, W1, call, calling, changed, sent

DIED = ActorDeath(DeathCause.WORKER_DIED)


def restarts(state: int = PENDING) -> ActorChanged:
    node = -1 if state == PENDING else 3
    return ActorChanged(ACTOR, state, node, 1, DIED, logged=True)


def unavailable(node: Node) -> list[bytes]:
    """The calls that have ended, each with that error."""
    results = [r for m in node.ctx.take(TaskResults, W1) for r in m.results]
    assert all(isinstance(unpack(r.payload), ActorUnavailable) for r in results)
    return [r.array for r in results]


def test_calls_without_retries_end_as_soon_as_their_actor_fails() -> None:
    node = calling(call(2, W1), call(3, W1, 2))
    node.turn("gcs", restarts())
    assert unavailable(node) == [array(2)]
    node.turn(W1, SubmitTasks([call(4, W1), call(5, W1, 1)]))
    assert unavailable(node) == [array(4)]
    node.turn("gcs", restarts(STARTING))
    node.turn(W1, SubmitTasks([call(6, W1)]))
    assert unavailable(node) == [array(6)]
    node.ctx.take(ActorCalls)
    node.turn("gcs", changed(ALIVE, 1))
    node.turn(W1, SubmitTasks([call(7, W1)]))
    assert sent(node) == [(array(3), W1, 1), (array(5), W1, 1), (array(7), W1, 0)]
    assert unavailable(node) == []


def test_a_call_in_the_turn_of_the_failure_does_not_leave() -> None:
    node = calling(call(3, W1, -1))
    node.scheduler.handle(W1, SubmitTasks([call(2, W1)]))
    node.turn("gcs", restarts())
    assert unavailable(node) == [array(2)]
    assert sent(node) == []


def test_calls_before_the_first_start_wait_for_a_restart() -> None:
    node = Node(2)
    node.turn(W1, SubmitTasks([call(2, W1)]))
    node.turn("gcs", restarts())
    node.turn("gcs", changed(ALIVE, 1))
    assert sent(node) == [(array(2), W1, 0)]
    assert unavailable(node) == []


def test_calls_after_a_kill_end_whether_or_not_the_restart_is_known() -> None:
    killed = ActorDeath(DeathCause.KILLED)
    for known in (True, False):
        node = calling(call(2, W1))
        restart = ActorChanged(ACTOR, PENDING, -1, 1, killed, logged=True)
        node.turn(W1, KillActor(ACTOR, killed, restart=True))
        if known:
            node.turn("gcs", restart)
        node.turn(W1, SubmitTasks([call(3, W1), call(4, W1, 1)]))
        if not known:
            assert unavailable(node) == []
            node.turn("gcs", restart)
        assert unavailable(node) == [array(2), array(3)]
        node.ctx.take(ActorCalls)
        node.turn("gcs", changed(ALIVE, 1))
        assert sent(node) == [(array(4), W1, 1)]
