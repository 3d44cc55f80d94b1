"""A node and the arrays of a worker that has died."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.gcs.array_store import ORPHANED_S
from raytwin.runtime.control.messages import (
    OK,
    ForwardResults,
    JobEnded,
    PutObjects,
    RangeResult,
    Release,
    SubmitTasks,
    TaskResults,
    TaskUpdates,
    WorkerDied,
    WorkerReady,
)
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W1, W2, Node

OTHER = "worker:1.1"


def put(node: Node, worker: str, *numbers: int) -> None:
    results = [RangeResult(array(n), 0, 1, OK, b"value", 0) for n in numbers]
    node.turn(worker, PutObjects(results))


def news(node: Node) -> list[TaskUpdates]:
    """Return what the GCS is told, at once or after the log has lingered."""
    node.ctx.pass_time(1.0)
    node.turn("gcs")
    return node.ctx.take(TaskUpdates, "gcs")


def lost(node: Node) -> set[bytes]:
    """Return which arrays the GCS is told are lost with their owner."""
    told = news(node)
    assert all(set(update.owner_died) <= set(update.released) for update in told)
    return {each for update in told for each in update.owner_died}


def after(retries: int) -> Node:
    """Return a node whose first worker has died in a task that had put arrays 11 and 12."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=retries)]))
    put(node, W1, 11, 12)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.turn(W2, WorkerReady(1))
    return node


def test_objects_of_a_worker_without_a_retry_are_lost_at_once() -> None:
    node = after(retries=0)
    assert lost(node) == {array(11), array(12)}
    assert not node.scheduler.objects.owners.keys() & {array(11), array(12)}
    assert not node.scheduler.objects.has_array(array(11))


def test_objects_of_an_idle_worker_are_lost_at_once() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    put(node, W1, 11)
    node.done(W1, (1, 0, 1))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert lost(node) == {array(11)}


def test_objects_of_a_retried_tasks_worker_wait_to_be_claimed() -> None:
    node = after(retries=3)
    node.ctx.pass_time(ORPHANED_S - 2.0)
    assert lost(node) == set()
    assert node.scheduler.objects.has_array(array(11))
    put(node, W2, 11)
    node.ctx.pass_time(2.0)
    assert lost(node) == {array(12)}
    assert node.scheduler.objects.owners.owners_of(array(11)) == [W2]


def test_borrowers_learn_of_the_owners_death_when_the_next_owner_releases() -> None:
    node = after(retries=3)
    put(node, W2, 11)
    put(node, W2, 13)
    node.turn(W2, Release([array(11), array(13)]))
    assert lost(node) == {array(11)}
    node.ctx.pass_time(ORPHANED_S)
    assert lost(node) == {array(12)}
    assert not node.scheduler.objects.owners.died


def test_the_next_owner_dies_too_and_the_wait_begins_anew() -> None:
    node = after(retries=3)
    node.ctx.pass_time(ORPHANED_S - 5.0)
    put(node, W2, 11)
    node.turn("pool:0", WorkerDied(W2, "killed"))
    node.ctx.pass_time(10.0)
    assert lost(node) == {array(12)}
    node.ctx.pass_time(ORPHANED_S)
    assert lost(node) == {array(11)}


def test_objects_claimed_on_another_node_are_lost_with_their_first_owner() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=3)]))
    node.turn(W1, SubmitTasks([spec(11, owner=W1)]))
    node.scheduler.results.finish(result(11), W1)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.turn("gcs", ForwardResults(array(11), 0, 1, OTHER))
    assert [each.owner for each in node.ctx.take(TaskResults, "node:1")] == [OTHER]
    node.ctx.pass_time(ORPHANED_S)
    assert lost(node) == {array(11)}
    assert not node.scheduler.objects.has_array(array(11))


@pytest.mark.parametrize("again", [True, False])
def test_a_jobs_end_leaves_nothing(again: bool) -> None:
    node = after(retries=3)
    if again:
        put(node, W2, 11)
    node.turn("gcs", JobEnded(job_of(array(1)), "its driver has left"))
    assert not node.scheduler.objects.owners.died
    assert not node.scheduler.objects.owners
