"""Two living callers of one call both get the reply, whichever asked last."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.actors.actor_record import ReplyCache
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import (
    OK,
    STREAM,
    SYSTEM_ERROR,
    ActorCalls,
    ActorInfo,
    AssignTasks,
    CallsLogged,
    CancelCall,
    ClaimTasks,
    NodeChanged,
    NodeInfo,
    StreamItems,
    TaskExtra,
    TaskResults,
    TasksDone,
    TaskSpec,
    TaskUpdates,
    Timing,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, pack
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W2, Node
from tests.control.test_lost_inputs import Table

ACTOR = array(1)
FAR, FARTHER = "worker:1.4", "worker:2.4"


def call(number: int, owner: str, stream: int = 0) -> TaskSpec:
    made = spec(number, owner=owner, demand="", retries=-1)
    return replace(made, extra=TaskExtra(call=ACTOR, method="m", stream=stream))


def hosting(*calls: TaskSpec, restarts: int = 0) -> Node:
    """A node with an actor that node 1 has called; its worker is the second."""
    node = Node(2)
    creation = replace(spec(1, demand=""), extra=TaskExtra(actor=ActorInfo(restarts)))
    node.turn("gcs", AssignTasks([creation]))
    node.done(W2, (1, 0, 1))
    node.turn("node:1", ActorCalls(ACTOR, 0, list(calls)))
    node.ctx.sent.clear()
    return node


def told(node: Node, to: str) -> list[bytes]:
    return [r.array for m in node.ctx.take(TaskResults, to) for r in m.results]


def test_each_node_but_the_owners_has_one_waiter() -> None:
    replies = ReplyCache()
    replies.add_waiter(b"c", "worker:1.1", "worker:1.2")
    assert not replies.has_waiters
    replies.add_waiter(b"c", "worker:1.2", "worker:2.1")
    replies.add_waiter(b"c", "worker:2.1", "worker:3.1")
    assert replies.waiters(b"c") == ["worker:1.2", "worker:2.1"] and replies.waiters(b"d") == []
    replies.add_waiter(b"c", "worker:3.1", "worker:1.3")
    assert replies.take_waiters(b"c") == ["worker:2.1", "worker:3.1"]
    assert replies.take_waiters(b"c") == [] and not replies.has_waiters


@pytest.mark.parametrize("restarts", [0, -1])
def test_both_callers_have_the_answer(restarts: int) -> None:
    node = hosting(call(2, FAR), restarts=restarts)
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    node.done(W2, (2, 0, 1))
    if restarts:
        assert told(node, "node:") == []
        node.turn("gcs", CallsLogged(ACTOR, 0, 1))
    assert told(node, "node:1") == told(node, "node:2") == [array(2)]
    assert not node.scheduler.actors.actors[ACTOR].replies.has_waiters


def test_both_callers_have_a_reply_that_waits_for_the_log() -> None:
    node = hosting(call(2, FAR), restarts=-1)
    node.done(W2, (2, 0, 1))
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    node.turn("gcs", CallsLogged(ACTOR, 0, 1))
    assert told(node, "node:1") == told(node, "node:2") == [array(2)]


def test_both_callers_have_replies_of_a_batch() -> None:
    """The second caller has asked for all of them."""
    calls = [call(number, FAR) for number in (2, 3)]
    node = hosting(*calls)
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(number, FARTHER) for number in (2, 3)]))
    run = replace(result(2, count=2), calls=array(2) + array(3))
    node.turn(W2, TasksDone([run], [Timing("t", 0.0, 1e-4, 2)]))
    assert told(node, "node:1") == told(node, "node:2") == [array(2), array(3)]


def test_both_callers_have_the_cancellation_of_an_unstarted_call() -> None:
    node = hosting(call(2, DRIVER))
    waits = replace(call(3, FAR), deps=(array(9) + bytes(6),))
    for to, owner in (("node:1", FAR), ("node:2", FARTHER)):
        node.turn(to, ActorCalls(ACTOR, 0, [replace(waits, owner=owner)]))
    node.turn("node:2", CancelCall(ACTOR, array(3)))
    assert told(node, "node:1") == told(node, "node:2") == [array(3)]


def test_large_values_have_two_owners_then() -> None:
    node = hosting(call(2, FAR))
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    made = result(2, size=500_000, offset=64)
    node.turn(W2, TasksDone([made], [Timing("t", 0.0, 1e-4, 1)]))
    owners = [(a, owner) for m in node.ctx.take(TaskUpdates) for a, owner, _ in m.calls]
    assert owners == [(array(2), FARTHER), (array(2), FAR)]
    [sent] = [r for m in node.ctx.take(TaskResults, "node:1") for r in m.results]
    assert (sent.node, sent.sizes, sent.offsets) == (0, (500_000,), (64,))


def test_both_have_the_items_of_a_stream() -> None:
    node = hosting(call(2, FAR, STREAM))
    node.turn(W2, StreamItems([result(2, STREAM_BASE)]))
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER, STREAM)]))
    node.turn(W2, StreamItems([result(2, STREAM_BASE + 1)]))
    node.done(W2, (2, 0, 1))
    assert told(node, "node:1") == told(node, "node:2") == [array(2)] * 3


def test_a_dead_caller_gets_no_reply() -> None:
    node = hosting(call(2, FAR))
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    dead = NodeInfo(1, "host", 1, {"CPU": 1.0}, alive=False, incarnation=1)
    node.turn("gcs", NodeChanged(dead))
    node.done(W2, (2, 0, 1))
    assert told(node, "node:1") == [] and told(node, "node:2") == [array(2)]


def test_both_owners_of_a_task_are_notified_of_its_loss() -> None:
    table = Table()
    first = spec(1, owner="worker:0.1", retries=0)
    table.gcs.handle("global", TaskUpdates(1, [first], [], [], [], incarnation=1))
    table.gcs.handle("node:3", ClaimTasks([replace(first, owner="worker:3.1")]))
    table.kill(1)
    assert table.placed() == []
    for node in (0, 3):
        [failed] = table.ctx.take(TaskResults, f"node:{node}")
        assert failed.owner == f"worker:{node}.1"
        assert [r.status for r in failed.results] == [SYSTEM_ERROR]


def test_a_loss_does_not_replace_a_value_that_one_owner_has() -> None:
    node = Node()
    node.scheduler.objects.owners.own(array(1), DRIVER)
    node.turn("node:1", TaskResults(DRIVER, [result(1, node=1)]))
    failed = result(1, status=SYSTEM_ERROR, payload=pack(Loss(LossCause.RELEASED)), node=-1)
    node.turn("gcs", TaskResults(DRIVER, [failed]))
    value = node.scheduler.objects.memory.lookup(array(1) + bytes(6))
    assert value is not None and value.status == OK
