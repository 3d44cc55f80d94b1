"""A new owner of an array gets the copies that other tasks brought to its node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    AssignTasks,
    ClaimTasks,
    LocateObjects,
    Location,
    NodeChanged,
    NodeInfo,
    ObjectLocations,
    ObjectPayload,
    PullObject,
    RangeResult,
    ResultRefs,
    ResultsMissing,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TasksClaimed,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, pack
from tests.control.alone import array, result, spec
from tests.control.test_local_scheduler import DRIVER, W1, W2, Node

CHILD = object_id(array(1), 0, 0)
LOST = pack(Loss(LossCause.OWNER_DIED))
HERE, THERE = "node:0.0", "node:1.0"


def repeated() -> Node:
    """A node whose worker runs a task that a dead node has not ended, of two nodes."""
    node = Node()
    for number in (0, 1):
        node.turn("gcs", NodeChanged(NodeInfo(number, "host", 1, {"CPU": 1.0}, incarnation=1)))
    node.turn("gcs", AssignTasks([replace(spec(9), extra=TaskExtra(attempt=1))]))
    return node


def bring(node: Node) -> None:
    """Another task here needs the value, and node 1 is asked for it."""
    node.turn(DRIVER, SubmitTasks([spec(2, deps=(CHILD,))]))
    assert CHILD in node.ctx.take(LocateObjects)[0].objects
    node.turn("gcs", ObjectLocations([Location(CHILD, (1,), 0)]))
    assert len(node.ctx.take(PullObject, "node:1")) == 1


def claim(node: Node) -> None:
    node.turn(W1, SubmitTasks([spec(1, owner=W1)]))
    assert len(node.ctx.take(ClaimTasks)) == 1


def claimed(node: Node) -> list[bytes]:
    return [child.array for message in node.ctx.take(ClaimTasks) for child in message.tasks]


def told(node: Node) -> list[RangeResult]:
    return [each for message in node.ctx.take(TaskResults, W1) for each in message.results]


def missing(node: Node) -> list[bytes]:
    """Node 1 dies; return which results this node says have not come."""
    dead = NodeInfo(1, "host", 1, {"CPU": 1.0}, alive=False, incarnation=1)
    node.turn("gcs", NodeChanged(dead))
    return [row[0] for message in node.ctx.take(ResultsMissing) for row in message.ranges]


@pytest.mark.parametrize(
    ("extra", "claims"),
    [(TaskExtra(attempt=1), True), (TaskExtra(begun=3), True), (TaskExtra(), False)],
)
def test_a_task_that_runs_on_another_node_claims_its_children(
    extra: TaskExtra, claims: bool
) -> None:
    """It was placed again, or was passed on when it had begun."""
    node = Node()
    node.turn("gcs", AssignTasks([replace(spec(9), extra=extra)]))
    node.turn(W1, SubmitTasks([spec(1, owner=W1)]))
    assert bool(node.ctx.take(ClaimTasks)) == claims


def test_a_claimed_child_that_runs_claims_its_children() -> None:
    """It may have run on a node that died, and its children may exist elsewhere; also once its
    worker here has died."""
    node = Node(2)
    node.turn("gcs", AssignTasks([replace(spec(9), extra=TaskExtra(attempt=1))]))
    assert [row[0] for row in node.given(W2)] == [array(9)]
    node.turn(W2, SubmitTasks([spec(1, owner=W2)]))
    assert claimed(node) == [array(1)]
    node.turn("gcs", TasksClaimed([spec(1, owner=W2)]))
    assert [row[0] for row in node.given(W1)] == [array(1)]
    node.turn(W1, SubmitTasks([spec(5, owner=W1)]))
    assert claimed(node) == [array(5)]
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.turn("worker:0.3", WorkerReady(3))
    assert [row[0] for row in node.given("worker:0.3")] == [array(1)]
    node.turn("worker:0.3", SubmitTasks([spec(6, owner="worker:0.3")]))
    assert claimed(node) == [array(6)]


@pytest.mark.parametrize("claimed_first", [False, True])
def test_the_new_owner_is_notified_of_present_and_later_copies(claimed_first: bool) -> None:
    node = repeated()
    bring(node)
    copy = result(1, node=1)
    if claimed_first:
        claim(node)
        assert told(node) == []
    node.turn("node:1", ObjectPayload(CHILD, copy))
    if not claimed_first:
        assert told(node) == []
        claim(node)
    assert told(node) == [copy]
    assert array(1) not in missing(node)


@pytest.mark.parametrize("claimed_first", [False, True])
def test_a_copy_with_references_is_not_the_owner_s_result(claimed_first: bool) -> None:
    """Its node is in no owner's book for it: the value is awaited, and made again."""
    node = repeated()
    bring(node)
    copy = replace(result(1, node=1), refs=ResultRefs((), ((array(5), "worker:1.1"),), THERE))
    if claimed_first:
        claim(node)
    node.turn("node:1", ObjectPayload(CHILD, copy))
    if not claimed_first:
        claim(node)
    assert told(node) == []
    assert array(1) in missing(node)
    again = replace(copy, refs=ResultRefs((), ((array(5), DRIVER),), "node:2.0"), node=2)
    node.turn("node:2", TaskResults(W1, [again]))
    [news] = told(node)
    assert news.refs is not None and news.refs.keeper == HERE
    assert array(1) not in missing(node)


@pytest.mark.parametrize("claimed_first", [False, True])
def test_an_input_that_its_first_owner_has_lost_is_not_lost_to_the_new_one(
    claimed_first: bool,
) -> None:
    node = repeated()
    bring(node)
    if claimed_first:
        claim(node)
    node.turn("node:1", ObjectPayload(CHILD, result(1, node=1, status=SYSTEM_ERROR, payload=LOST)))
    if not claimed_first:
        claim(node)
    assert told(node) == []
    assert array(1) in missing(node)
    value = result(1, node=2)
    node.turn("node:2", TaskResults(W1, [value]))
    assert told(node) == [value]


@pytest.mark.parametrize(
    "came",
    [lambda _: result(1, node=1), lambda error: error],
    ids=["another end", "the same error once more"],
)
def test_the_owners_own_error_outlives_an_unawaited_payload(
    came: Callable[[RangeResult], RangeResult],
) -> None:
    node = repeated()
    bring(node)
    claim(node)
    error = result(1, node=2, status=SYSTEM_ERROR, payload=LOST)
    node.turn("node:2", TaskResults(W1, [error]))
    assert told(node) == [error]
    node.turn("node:1", ObjectPayload(CHILD, came(error)))
    assert told(node) == []
    assert array(1) not in missing(node)
