"""The items of calls, for callers that repeat them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.actors.actor_record import REPLY_BYTES_MAX
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import (
    OK,
    STREAM,
    SYSTEM_ERROR,
    ActorCalls,
    ActorInfo,
    ActorLineage,
    AssignTasks,
    CallRecord,
    CallsLogged,
    FetchLineage,
    RangeResult,
    StreamItems,
    TaskExtra,
    TaskResults,
    TaskSpec,
)
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W2, Node

ACTOR = array(1)
FAR, FARTHER = "worker:1.4", "worker:2.4"


def creation(incarnation: int = 0, restarts: int = 0) -> TaskSpec:
    info = ActorInfo(restarts, incarnation=incarnation)
    return replace(spec(1, demand=""), extra=TaskExtra(actor=info))


def call(number: int, owner: str) -> TaskSpec:
    made = spec(number, owner=owner, demand="", retries=-1)
    return replace(made, extra=TaskExtra(call=ACTOR, method="m", stream=STREAM))


def item(number: int, index: int, nbytes: int = 10) -> RangeResult:
    return result(number, STREAM_BASE + index, payload=bytes(nbytes))


def told(node: Node, to: str) -> list[tuple[int, int]]:
    """Return the items and ends that a node was sent: (index or -1 for the end, status)."""
    results = [each for m in node.ctx.take(TaskResults, to) for each in m.results]
    return [(r.start - STREAM_BASE if r.start else -1, r.status) for r in results]


def hosting(restarts: int = 0) -> Node:
    """A node with an actor; its worker is the second."""
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(0, restarts)]))
    node.done(W2, (1, 0, 1))
    node.turn("node:1", ActorCalls(ACTOR, 0, [call(2, FAR)]))
    node.ctx.sent.clear()
    return node


def test_a_repeated_call_gets_earlier_and_later_items() -> None:
    node = hosting()
    node.turn(W2, StreamItems([item(2, 0)]))
    node.turn(W2, StreamItems([item(2, 1)]))
    assert told(node, "node:1") == [(0, OK), (1, OK)]
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    assert told(node, "node:2") == [(0, OK), (1, OK)]
    node.turn(W2, StreamItems([item(2, 2)]))
    node.done(W2, (2, 0, 1))
    assert told(node, "node:2") == [(2, OK), (-1, OK)]
    node.turn("node:3", ActorCalls(ACTOR, 0, [call(2, "worker:3.1")]))
    assert told(node, "node:3") == [(0, OK), (1, OK), (2, OK), (-1, OK)]


def test_forgotten_items_are_lost_and_not_skipped() -> None:
    """Neither the items that come later are sent, nor an end that counts them."""
    node = hosting()
    node.turn(W2, StreamItems([item(2, 0, REPLY_BYTES_MAX)]))
    node.ctx.sent.clear()
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    assert told(node, "node:2") == [(-1, SYSTEM_ERROR)]
    node.turn(W2, StreamItems([item(2, 1)]))
    node.done(W2, (2, 0, 1))
    assert told(node, "node:2") == []
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    assert told(node, "node:2") == [(-1, SYSTEM_ERROR)]


def test_items_come_once_more_while_the_end_waits_for_the_log() -> None:
    node = hosting(-1)
    node.turn(W2, StreamItems([item(2, 0)]))
    node.done(W2, (2, 0, 1))
    assert told(node, "node:1") == [(0, OK)]
    node.turn("node:2", ActorCalls(ACTOR, 0, [call(2, FARTHER)]))
    assert told(node, "node:2") == [(0, OK)]
    node.turn("gcs", CallsLogged(ACTOR, 0, 1))
    assert told(node, "node:2") == [(-1, OK)]


@pytest.mark.parametrize("owner", [FAR, "driver:1.0"])
def test_a_replayed_stream_yields_to_its_present_caller(owner: str) -> None:
    """Its end was in the log, and had not left when the actor died."""
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(1, -1)]))
    assert len(node.ctx.take(FetchLineage)) == 1
    record = CallRecord(call(2, owner), result(2, node=1))
    node.turn("gcs", ActorLineage(ACTOR, 1, 0, b"", [record], []))
    node.done(W2, (1, 0, 1))
    node.turn(W2, StreamItems([item(2, 0)]))
    node.done(W2, (2, 0, 1))
    node.ctx.sent.clear()
    node.turn("node:1", ActorCalls(ACTOR, 1, [call(2, owner)]))
    assert told(node, "node:1") == [(0, OK), (-1, OK)]


def test_a_driver_calls_once_and_its_items_are_not_remembered() -> None:
    node = hosting()
    node.done(W2, (2, 0, 1))
    node.turn("node:1", ActorCalls(ACTOR, 0, [call(3, DRIVER)]))
    node.turn(W2, StreamItems([item(3, 0)]))
    actor = node.scheduler.actors.actors[ACTOR]
    assert actor.replies.find(array(3)) is None and actor.replies.find(array(2)) is not None
