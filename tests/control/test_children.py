"""The children of a cancelled task end with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.submitter import CHILDREN_MAX
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.local_scheduler.cancellation import STUCK_S
from raytwin.runtime.control.messages import (
    CancelTask,
    KillWorker,
    Release,
    SubmitTasks,
    TakeBack,
    TakenBack,
    WorkerDied,
)
from tests.control.alone import Alone, array, spec
from tests.control.one_node import DRIVER, W1, Node

ELSEWHERE = "X:1"


def submit(node: Node, *children: int) -> None:
    """Worker 1 submits what its node cannot run, so that it is passed on."""
    node.turn(W1, SubmitTasks([spec(n, owner=W1, demand=ELSEWHERE) for n in children]))


def kill(
    node: Node, number: int, index: int = 0, count: int = 1, recursive: bool = True
) -> set[bytes]:
    """Cancel elements with force; return what is cancelled with the first that is not done."""
    running = max(index, node.scheduler.dispatcher.workers[W1].assigned[0].start)
    node.turn(DRIVER, CancelTask(array(number), index, count, True, recursive))
    [asked] = node.ctx.take(TakeBack, W1)
    # Of the range that it runs, it has begun those before and this one.
    node.turn(W1, TakenBack([(array(number), running + 1, 2 - running)], asked.number))
    assert node.ctx.take(KillWorker)
    node.ctx.take(CancelTask)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    return {message.array for message in node.ctx.take(CancelTask, "global")}


@pytest.fixture
def node() -> Node:
    """Its worker has run task 1, which submitted 11 and 12, and runs task 2."""
    made = Node()
    made.turn(DRIVER, SubmitTasks([spec(1)]))
    submit(made, 11, 12)
    made.done(W1, (1, 0, 1))
    made.turn(DRIVER, SubmitTasks([spec(2, 0, 3)]))
    return made


def test_a_killed_worker_ends_all_tasks_that_it_owned(node: Node) -> None:
    """Also what an earlier task has submitted: its owner is dead."""
    submit(node, 21)
    submit(node, 22, 23)
    assert kill(node, 2) == {array(number) for number in (11, 12, 21, 22, 23)}


def test_children_of_other_tasks_go_on(node: Node) -> None:
    """It was in the same range, as far as its node knows, and goes on where it runs again."""
    submit(node, 21)
    node.turn(DRIVER, CancelTask(array(2), 2, 1, True, True))
    node.ctx.pass_time(2 * STUCK_S)
    assert node.ctx.take(KillWorker)
    node.ctx.take(CancelTask)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert not node.ctx.take(CancelTask, "global")


def test_released_children_are_not_cancelled(node: Node) -> None:
    submit(node, 21, 22)
    node.turn(W1, Release([array(21)]))
    assert kill(node, 2) == {array(11), array(12), array(22)}


def test_without_recursion_all_children_go_on(node: Node) -> None:
    submit(node, 21)
    assert kill(node, 2, recursive=False) == set()


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
