"""Tasks that wait for results of an actor while it is reconstructed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.gcs.actor_table import ALIVE, STARTING
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorChanged,
    ActorInfo,
    ActorLineage,
    ActorPlaced,
    ActorStarted,
    AssignTasks,
    CallRecord,
    CreateActors,
    FetchLineage,
    LogCalls,
    NodeInfo,
    NodeUnreachable,
    RegisterNode,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskSpec,
    WatchActors,
)
from tests.control.alone import Alone, array, result, spec
from tests.control.test_local_scheduler import DRIVER, W1, W2, Node

ACTOR = array(1)
FAR = "worker:1.4"
NEEDED = object_id(array(9), 0, 0)


def creation(incarnation: int) -> TaskSpec:
    info = ActorInfo(-1, incarnation=incarnation)
    return replace(spec(1, demand=""), extra=TaskExtra(actor=info))


def call(number: int, owner: str, deps: tuple[bytes, ...] = ()) -> TaskSpec:
    made = spec(number, owner=owner, demand="", deps=deps, retries=-1)
    return replace(made, extra=TaskExtra(call=ACTOR, method="m"))


def rebuilt(kept: bool) -> Node:
    """A node with an actor that is to repeat a call, if that is not `kept` from before a
    checkpoint, and then another one, which needs what is not here."""
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(1)]))
    assert len(node.ctx.take(FetchLineage)) == 1
    first = CallRecord(call(2, FAR), result(2, node=1))
    second = CallRecord(call(3, DRIVER, (NEEDED,)), result(3, node=1))
    calls, before = ([second], [first]) if kept else ([first, second], [])
    node.turn("gcs", ActorLineage(ACTOR, 1, int(kept), b"", calls, before))
    return node


def told(node: Node) -> list[bytes]:
    return [r.array for m in node.ctx.take(TaskResults, "node:1") for r in m.results]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("asked_first", [False, True])
def test_a_call_is_answered_as_soon_as_it_was_repeated(kept: bool, asked_first: bool) -> None:
    node = rebuilt(kept)
    early = ActorCalls(ACTOR, 1, [], early=[call(2, FAR), call(4, FAR)])
    if asked_first:
        node.turn("node:1", early)
        # That the constructor has not run yet matters to calls that it comes before.
        assert told(node) == ([array(2)] if kept else [])
    node.done(W2, (1, 0, 1))
    if not asked_first:
        node.turn("node:1", early)
    if not kept:
        assert told(node) == []
        assert [number for number, *_ in node.given(W2)][-1:] == [array(2)]
        node.done(W2, (2, 0, 1))
    if not (kept and asked_first):
        assert told(node) == [array(2)]
    assert told(node) == []
    # What never took effect is not begun before what did.
    assert not node.ctx.take(ActorStarted)
    assert [number for number, *_ in node.given() if number == array(4)] == []


def test_an_early_request_is_answered_once_the_lineage_is_here() -> None:
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(1)]))
    node.turn("node:1", ActorCalls(ACTOR, 1, [], early=[call(2, FAR), call(4, FAR)]))
    record = CallRecord(call(2, FAR), result(2, node=1))
    node.turn("gcs", ActorLineage(ACTOR, 1, 1, b"", [], [record]))
    assert told(node) == [array(2)]


def test_waiters_ask_the_reconstructing_node_only_until_it_is_done() -> None:
    node = Node(2)
    node.turn(DRIVER, SubmitTasks([call(5, DRIVER)]))
    node.turn(W1, SubmitTasks([call(2, W1)]))
    node.turn("gcs", ActorChanged(ACTOR, STARTING, 2, 1, logged=True))
    node.turn(W2, SubmitTasks([call(3, W2)]))
    asked = node.ctx.take(ActorCalls, "node:2")
    assert [[c.array for c in m.early] for m in asked] == [[array(2)], [array(3)]]
    assert not any(m.tasks for m in asked)
    node.turn("node:2", TaskResults(W1, [result(2, node=2)]))
    assert [r.array for m in node.ctx.take(TaskResults, W1) for r in m.results] == [array(2)]
    node.turn("gcs", ActorChanged(ACTOR, ALIVE, 2, 1, logged=True))
    [calls] = node.ctx.take(ActorCalls, "node:2")
    assert [c.array for c in calls.tasks] == [array(5), array(3)] and not calls.early


def test_watchers_of_an_actor_learn_which_node_reconstructs_it() -> None:
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    for number in range(3):
        info = NodeInfo(number, "host", number, {"CPU": 1.0}, incarnation=1)
        gcs.handle(f"node:{number}", RegisterNode(info))
    gcs.handle("node:0", CreateActors([creation(0)]))
    gcs.handle("global", ActorPlaced(ACTOR, 0, 1))
    gcs.handle("node:1", ActorStarted(ACTOR, 0, 1, 0))
    gcs.handle("node:1", LogCalls(ACTOR, 0, 0, [CallRecord(call(2, FAR), result(2, node=1))]))
    gcs.handle("node:0", WatchActors([ACTOR]))
    gcs.handle("links", NodeUnreachable(1, "it burnt", 1))
    gcs.handle("global", ActorPlaced(ACTOR, 1, 2))
    ctx.sent.clear()
    gcs.handle("node:2", FetchLineage(ACTOR, 1))
    [change] = ctx.take(ActorChanged, "node:0")
    assert (change.state, change.node, change.incarnation) == (STARTING, 2, 1)
