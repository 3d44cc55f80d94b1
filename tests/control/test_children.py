"""The children of a task end when it is cancelled, or when its process dies for good."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.submitter import CHILDREN_MAX
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import ELEMENTS_MAX, task_id
from raytwin.runtime.control.gcs.array_store import ORPHANED_S
from raytwin.runtime.control.local_scheduler.cancellation import STUCK_S
from raytwin.runtime.control.messages import (
    AssignTasks,
    CancelTask,
    ForwardResults,
    KillWorker,
    NodeChanged,
    NodeInfo,
    PlaceTasks,
    Release,
    SubmitTasks,
    TakeBack,
    TakenBack,
    TaskResults,
    TaskUpdates,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.alone import Alone, array, spec
from tests.control.one_node import DRIVER, W1, Node, ready
from tests.control.test_lost_inputs import Table

ELSEWHERE = "X:1"


def submit(node: Node, *children: int) -> None:
    """Worker 1 submits what its node cannot run, so that it is passed on."""
    node.turn(W1, SubmitTasks([spec(n, owner=W1, demand=ELSEWHERE) for n in children]))


def kill(
    node: Node, number: int, index: int = 0, count: int = 1, recursive: bool = True
) -> list[tuple[str, ...]]:
    """Cancel elements with force; return the workers all of whose tasks end everywhere."""
    running = max(index, node.scheduler.dispatcher.workers[W1].assigned[0].start)
    node.turn(DRIVER, CancelTask(array(number), index, count, True, recursive))
    [asked] = node.ctx.take(TakeBack, W1)
    # Of the range that it runs, it has begun those before and this one.
    node.turn(W1, TakenBack([(array(number), running + 1, 2 - running)], asked.number))
    assert node.ctx.take(KillWorker)
    node.ctx.take(CancelTask)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    return ends(node)


def ends(node: Node) -> list[tuple[str, ...]]:
    """Return the workers that the node has named in requests to end all of their tasks."""
    asked = node.ctx.take(CancelTask, "global")
    assert all(message.force and not message.array for message in asked)
    return [message.owners for message in asked]


@pytest.fixture
def node() -> Node:
    """Its worker has run task 1, which submitted 11 and 12, and runs task 2."""
    made = Node()
    made.turn(DRIVER, SubmitTasks([spec(1)]))
    submit(made, 11, 12)
    made.done(W1, (1, 0, 1))
    made.turn(DRIVER, SubmitTasks([spec(2, 0, 3)]))
    return made


@pytest.mark.parametrize("recursive", [True, False])
def test_a_killed_worker_ends_all_its_tasks(node: Node, recursive: bool) -> None:
    """Also what an earlier task has submitted, and what it has released: its owner is dead."""
    submit(node, 21, 22)
    node.turn(W1, Release([array(21)]))
    assert kill(node, 2, recursive=recursive) == [(W1,)]


def test_children_of_other_tasks_go_on(node: Node) -> None:
    """It was in the same range, as far as its node knows, and goes on where it runs again."""
    submit(node, 21)
    node.turn(DRIVER, CancelTask(array(2), 2, 1, True, True))
    node.ctx.pass_time(2 * STUCK_S)
    assert node.ctx.take(KillWorker)
    node.ctx.take(CancelTask)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert not node.ctx.take(CancelTask, "global")


@pytest.mark.parametrize("retries", [0, 1])
def test_the_tasks_of_a_dead_worker_end_unless_its_task_runs_again(retries: int) -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=retries)]))
    submit(node, 11)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert ends(node) == ([] if retries else [(W1,)])


def test_the_next_run_ends_what_it_took_over() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=1)]))
    submit(node, 11)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert not ends(node)
    node.turn("worker:0.2", WorkerReady(2))
    child = spec(11, owner="worker:0.2", demand=ELSEWHERE)
    node.turn("worker:0.2", SubmitTasks([child]))
    node.turn("pool:0", WorkerDied("worker:0.2", "killed"))
    assert ends(node) == [(W1, "worker:0.2")]


def test_what_the_next_run_does_not_take_over_ends() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=1)]))
    submit(node, 11)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.ctx.pass_time(ORPHANED_S)
    (asked,) = node.ctx.take(CancelTask, "global")
    assert (asked.array, asked.force, asked.owners) == (array(11), True, (W1,))


OWNER = "worker:5.1"
"""A worker of another node."""


def end_all(*owners: str) -> CancelTask:
    return CancelTask(b"", 0, ELEMENTS_MAX, True, False, owners=owners)


def test_what_runs_waits_or_arrives_for_a_dead_worker_ends() -> None:
    node = Node()
    node.turn("global", AssignTasks([spec(n, owner=OWNER) for n in (11, 12)]))
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn("global", end_all(OWNER))
    assert [killed.worker for killed in node.ctx.take(KillWorker)] == [W1]
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.turn("global", AssignTasks([spec(13, owner=OWNER)]))
    ended = [r.array for m in node.ctx.take(TaskResults, "node:5") for r in m.results]
    assert sorted(ended) == [array(11), array(12), array(13)]
    assert [left.array for left in ready(node)] == [array(1)]


def test_what_another_client_has_taken_over_goes_on() -> None:
    node = Node()
    node.turn("global", AssignTasks([spec(11, owner=OWNER)]))
    node.turn("gcs", ForwardResults(array(11), 0, 1, "worker:6.1"))
    node.turn("global", end_all(OWNER))
    assert not node.ctx.take(KillWorker)
    node.turn("global", end_all("worker:6.1"))
    assert node.ctx.take(KillWorker)


def test_the_global_scheduler_asks_all_other_nodes() -> None:
    ctx = Alone()
    scheduler = GlobalScheduler(ctx, Config())
    for number in range(3):
        scheduler.handle("gcs", NodeChanged(NodeInfo(number, "host", 0, {"CPU": 1.0})))
    scheduler.handle("node:1", PlaceTasks([spec(11, owner="worker:1.1", demand=ELSEWHERE)]))
    scheduler.handle("node:1", end_all("worker:1.1"))
    asked = [to for to, message in ctx.sent if isinstance(message, CancelTask)]
    assert asked == ["node:0", "node:2"]
    assert not scheduler.infeasible


@pytest.mark.parametrize("retries", [0, 1])
def test_the_tasks_of_a_dead_node_end_at_once_if_it_ran_nothing_that_runs_again(
    retries: int,
) -> None:
    table = Table()
    parent = spec(1, owner="driver:0.0", retries=retries)
    table.gcs.handle("global", TaskUpdates(1, [parent], [], [], [], incarnation=1))
    child = spec(11, owner="worker:1.1")
    table.gcs.handle("global", TaskUpdates(2, [child], [], [], [], incarnation=1))
    table.kill(1)
    asked = table.ctx.take(CancelTask, "node:2")
    assert len(asked) == (0 if retries else 1)
    table.ctx.pass_time(ORPHANED_S)
    asked += table.ctx.take(CancelTask, "node:2")
    assert [(message.array, message.force) for message in asked] == [(array(11), True)]


def test_all_of_many_children_are_cancelled() -> None:
    ctx = Alone()
    client = Client(ctx, W1, 0, Config())
    client.submitter.begin_task(task_id(array(2), 0))
    made = []
    for _ in range(CHILDREN_MAX + 10):
        made.append(client.submitter.next_child())
        client.submitter.submit(made[-1], [replace(spec(1), array=made[-1])], 1, 1)
    client.submitter.cancel_children(task_id(array(2), 0), False)
    assert [message.array for message in ctx.take(CancelTask)] == made
