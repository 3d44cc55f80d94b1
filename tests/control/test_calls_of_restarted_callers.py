"""Calls of a caller that runs again, maybe on another node than before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.call_batches import batch_of
from raytwin.runtime.control.gcs.actor_table import ALIVE, DEAD, PENDING, STARTING
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorChanged,
    ActorInfo,
    AssignTasks,
    CallsDrained,
    CallsLogged,
    CancelCall,
    CancelTask,
    KillActor,
    LogCalls,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, ActorUnavailable, DeathCause, unpack
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, Node

ACTOR = array(1)
W1, W2, FAR, FARTHER = "worker:0.1", "worker:0.2", "worker:1.4", "worker:2.4"


def creation(max_restarts: int = 0) -> TaskSpec:
    return replace(spec(1, demand=""), extra=TaskExtra(actor=ActorInfo(max_restarts)))


def call(number: int, owner: str, retries: int = 0) -> TaskSpec:
    made = spec(number, owner=owner, demand="", retries=retries)
    return replace(made, extra=TaskExtra(call=ACTOR, method="m"))


def changed(state: str, incarnation: int = 0) -> ActorChanged:
    return ActorChanged(ACTOR, state, 2, incarnation, logged=True)


def calling(*calls: TaskSpec) -> Node:
    """A node with a worker that has called an actor of node 2."""
    node = Node(2)
    node.turn(W1, SubmitTasks(list(calls)))
    node.turn("gcs", changed(ALIVE))
    node.ctx.take(ActorCalls)
    return node


def sent(node: Node) -> list[tuple[bytes, str, int]]:
    specs = [spec for m in node.ctx.take(ActorCalls, "node:2") for spec in m.tasks]
    return [(spec.array, spec.owner, spec.retries) for spec in specs]


def told(node: Node, to: str) -> list[bytes]:
    return [r.array for m in node.ctx.take(TaskResults, to) for r in m.results]


def hosting(max_restarts: int = 0) -> Node:
    """A node with an actor; its worker is the second."""
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(max_restarts)]))
    node.done(W2, (1, 0, 1))
    node.ctx.sent.clear()
    return node


# -- the caller's node ----------------------------------------------------------


def test_a_later_incarnation_replies_to_a_cancelled_call_or_cancels_it() -> None:
    """It may have taken effect, or have been cancelled with the report on its way."""
    node = calling(call(2, W1, retries=-1), call(3, W1, retries=-1))
    node.turn(W1, CancelTask(array(2), 0, 1, False, True))
    assert len(node.ctx.take(CancelCall)) == 1
    node.turn("gcs", changed(ALIVE, 1))
    assert [each for each, *_ in sent(node)] == [array(2), array(3)]
    assert [message.call for message in node.ctx.take(CancelCall)] == [array(2)]
    assert not node.ctx.take(TaskResults, W1)


def test_a_call_without_a_result_is_resent_for_its_present_caller() -> None:
    """The answer may have gone to an earlier incarnation of the caller, on another node."""
    node = calling(call(2, W1), call(3, W1))
    node.turn("node:2", TaskResults(W1, [result(3, node=2)]))
    node.turn(W2, SubmitTasks([call(2, W2), call(3, W2), call(4, W2)]))
    assert sent(node) == [(array(2), W2, 0), (array(4), W2, 0)]
    assert told(node, W2) == [array(3)]


def test_calls_of_a_batch_are_resent_one_by_one() -> None:
    node = calling(call(9, W1))
    for worker in (W1, W2):
        first = call(2, worker)
        assert first.extra is not None
        run = batch_of(first, first.extra, [array(2), array(3)], [b"", b""])
        node.turn(worker, SubmitTasks([run]))
    *_, again = node.ctx.take(ActorCalls, "node:2")
    assert [(each.array, each.owner) for each in again.tasks] == [(array(2), W2), (array(3), W2)]


def test_a_call_that_has_not_left_is_sent_once() -> None:
    node = Node(2)
    node.turn(W1, SubmitTasks([call(2, W1)]))
    node.turn(W2, SubmitTasks([call(2, W2)]))
    node.turn("gcs", changed(ALIVE))
    assert sent(node) == [(array(2), W2, 0)]


def test_a_call_that_is_sent_once_more_has_no_more_retries_than_before() -> None:
    """Without any its caller gets an error: it may have taken effect in the old incarnation."""
    node = calling(call(2, W1), call(3, W1, 2))
    node.turn(W2, SubmitTasks([call(2, W2), call(3, W2, 2)]))
    sent(node)
    node.turn("gcs", changed(ALIVE, 1))
    assert sent(node) == [(array(3), W2, 1)]
    [answer] = [each for m in node.ctx.take(TaskResults, W2) for each in m.results]
    assert answer.array == array(2)
    assert isinstance(unpack(answer.payload), ActorUnavailable)


@pytest.mark.parametrize("state", [PENDING, STARTING])
def test_a_resent_call_waits_until_the_actor_is_alive(state: str) -> None:
    """Somebody may have wanted to kill it, and may not: then it is the same."""
    node = calling(call(2, W1))
    node.turn("gcs", changed(state))
    node.turn(W2, SubmitTasks([call(2, W2)]))
    assert sent(node) == []
    node.turn("gcs", changed(ALIVE))
    assert sent(node) == [(array(2), W2, 0)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_no_incarnation_gets_a_call_that_was_made_after_a_kill_for_good(
    restart: bool, known: bool
) -> None:
    """The GCS may not know of the kill yet when it reports that the actor is alive."""
    node = Node(2)
    node.turn(W1, SubmitTasks([call(2, W1, retries=-1)]))
    if known:
        node.turn("gcs", changed(ALIVE))
    node.ctx.take(ActorCalls)
    node.turn(W1, KillActor(ACTOR, ActorDeath(DeathCause.KILLED), restart))
    node.turn(W1, SubmitTasks([call(3, W1, retries=-1)]))
    for state in (PENDING, STARTING, ALIVE):
        node.turn("gcs", changed(state, 1))
    late = [each for each, *_ in sent(node)]
    assert late == ([array(2), array(3)] if restart else [])
    if not restart:
        killed = ActorDeath(DeathCause.KILLED)
        node.turn("gcs", ActorChanged(ACTOR, DEAD, 2, 1, killed, logged=True))
        node.turn("node:2", CallsDrained(ACTOR))
        assert told(node, W1) == [array(2), array(3)]


# -- the actor's node -----------------------------------------------------------


def test_the_last_caller_gets_the_reply() -> None:
    """The first life of the caller was here, its second one elsewhere, its third one here."""
    node = hosting()
    node.turn("gcs", ActorChanged(ACTOR, ALIVE, 0, 0))
    node.turn(W1, SubmitTasks([call(2, W1)]))
    node.turn("gcs", ActorChanged(ACTOR, ALIVE, 0, 0))
    assert [each for each, *_ in node.given(W2)] == [array(2)]
    node.turn("node:1", ActorCalls(ACTOR, 0, [call(2, FAR)]))
    node.turn(W1, SubmitTasks([call(2, W1)]))
    node.done(W2, (2, 0, 1))
    assert told(node, W1) == [array(2)]
    assert node.given(W2) == []


def test_a_call_that_is_not_logged_yet_is_not_answered_when_it_comes_again() -> None:
    """What anybody has seen is not lost with the actor."""
    node = hosting(-1)
    node.turn("node:1", ActorCalls(ACTOR, 0, [call(2, FAR), call(3, DRIVER)]))
    node.done(W2, (2, 0, 1))
    assert len(node.ctx.take(LogCalls)) == 1
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    assert told(node, "node:") == []
    node.turn("gcs", CallsLogged(ACTOR, 0, 1))
    assert told(node, "node:2") == [array(2)]
