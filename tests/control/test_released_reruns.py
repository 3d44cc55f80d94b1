"""Ranges that run once more: for a lost value of others, while their own owner releases them, or
after the death of their node, unless their owner has the results."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.ids import STREAM_BASE, object_id
from raytwin.runtime.control.messages import (
    AssignTasks,
    CancelTask,
    PlaceTasks,
    RangeResult,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskUpdates,
)
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W1, Node


def ended(node: Node) -> list[bytes]:
    """The arrays of which the node reports ended ranges to the GCS."""
    node.ctx.pass_time(1.0)
    node.scheduler.end_turn()
    return [row[0] for message in node.ctx.take(TaskUpdates, "gcs") for row in message.done]


def test_a_rerun_that_its_owner_releases_before_its_end_is_reported() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.given()
    node.done(W1, (1, 0, 1))
    node.ctx.sent.clear()
    again = replace(spec(1), extra=TaskExtra(attempt=1))
    node.turn("global", AssignTasks([again]))
    assert [row[0] for row in node.given()] == [array(1)]
    node.turn(DRIVER, Release([array(1)]))
    node.ctx.sent.clear()
    node.done(W1, (1, 0, 1))
    assert ended(node) == [array(1)]


AGAIN = replace(spec(1, deps=(object_id(array(9), 0, 0),)), extra=TaskExtra(attempt=1))
"""A task that was unfinished on a node that has died."""


def owner_of(*results: RangeResult) -> Node:
    """Return the node of a task's owner, to which another node has sent results."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, demand="CPU:5")]))
    if results:
        node.turn("node:1", TaskResults(DRIVER, list(results)))
    node.ctx.sent.clear()
    return node


def test_a_node_reports_the_result_that_a_dead_node_has_sent_to_its_client() -> None:
    node = owner_of(result(1, node=1))
    node.turn("gcs", PlaceTasks([AGAIN]))
    [news] = node.ctx.take(TaskUpdates, "gcs")
    assert news.done == [(array(1), 0, 1, ())]
    assert not node.ctx.take(PlaceTasks)


@pytest.mark.parametrize("lost", [(), (result(1, node=1, size=200_000, offset=7),)])
def test_a_node_has_its_clients_tasks_placed_again_without_results(
    lost: tuple[RangeResult, ...],
) -> None:
    node = owner_of(*lost)
    node.turn("gcs", PlaceTasks([AGAIN]))
    assert [m.tasks for m in node.ctx.take(PlaceTasks, "global")] == [[AGAIN]]
    assert not node.ctx.take(TaskUpdates)


def test_a_cancellation_follows_a_task_that_its_owner_s_node_has_placed_again() -> None:
    """The GCS has named this node, since it has not heard of the placement yet."""
    node = owner_of()
    node.turn("gcs", PlaceTasks([AGAIN]))
    cancel = CancelTask(array(1), 0, 1, False, True, nodes=(0,))
    node.turn("global", cancel)
    assert node.ctx.take(CancelTask, "global") == [cancel]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("size", [0, 200_000])
def test_a_stream_runs_again_unless_all_its_items_and_its_end_are_here(
    ended: bool, size: int
) -> None:
    item = result(1, STREAM_BASE, node=1, size=size)
    node = owner_of(item, *([result(1, node=1)] if ended else []))
    stream = replace(AGAIN, extra=TaskExtra(attempt=1, stream=1))
    node.turn("gcs", PlaceTasks([stream]))
    whole = ended and not size
    assert bool(node.ctx.take(PlaceTasks, "global")) != whole
    done = [row[1] for news in node.ctx.take(TaskUpdates, "gcs") for row in news.done]
    assert sorted(done) == ([0, STREAM_BASE] if whole else [])


def test_a_node_reports_the_elements_of_a_range_that_it_has() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, count=6, demand="CPU:5")]))
    node.turn("node:1", TaskResults(DRIVER, [result(1, 0, 3, node=1)]))
    node.ctx.sent.clear()
    node.turn("gcs", PlaceTasks([replace(AGAIN, start=1, count=4, deps=())]))
    [news] = node.ctx.take(TaskUpdates, "gcs")
    assert news.done == [(array(1), 1, 2, ())]
    [left] = [task for m in node.ctx.take(PlaceTasks, "global") for task in m.tasks]
    assert (left.start, left.count) == (3, 2)
