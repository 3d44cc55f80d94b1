"""What ends with a task that is cancelled: its own children, and nobody else's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.child_tasks import KEPT_MAX, Children
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
    TaskExtra,
    WorkerDied,
)
from tests.control.alone import Alone, array, spec
from tests.control.one_node import DRIVER, W1, Node

ELSEWHERE = "X:1"


def submit(node: Node, parent: bytes, *children: int) -> None:
    """Worker 1 submits what its node cannot run, so that it is passed on."""
    node.turn(W1, SubmitTasks([spec(n, owner=W1, demand=ELSEWHERE) for n in children], parent))


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
    submit(made, task_id(array(1), 0), 11, 12)
    made.done(W1, (1, 0, 1))
    made.turn(DRIVER, SubmitTasks([spec(2, 0, 3)]))
    return made


def test_who_is_killed_takes_its_children_along_and_not_an_earlier_tasks(node: Node) -> None:
    submit(node, task_id(array(2), 0), 21)
    submit(node, task_id(array(2), 0), 22, 23)
    assert kill(node, 2) == {array(21), array(22), array(23)}


def test_who_has_submitted_nothing_takes_nothing_along(node: Node) -> None:
    assert kill(node, 2) == set()


def test_another_elements_children_go_on(node: Node) -> None:
    submit(node, task_id(array(2), 0), 21)
    submit(node, task_id(array(2), 1), 22)
    assert kill(node, 2, 1) == {array(22)}


@pytest.mark.parametrize("cause", [(0, 3), (1, 1), (1, 2)])
def test_an_element_that_is_done_has_children_of_its_own(
    node: Node, cause: tuple[int, int]
) -> None:
    """The one that runs has submitted nothing."""
    submit(node, task_id(array(2), 0), 21)
    node.done(W1, (2, 0, 1))
    assert kill(node, 2, *cause) == set()


def test_children_of_one_that_is_not_cancelled_go_on(node: Node) -> None:
    """It was in the same range, as far as its node knows, and goes on where it runs again."""
    submit(node, task_id(array(2), 0), 21)
    node.turn(DRIVER, CancelTask(array(2), 2, 1, True, True))
    node.ctx.pass_time(2 * STUCK_S)
    assert node.ctx.take(KillWorker)
    node.ctx.take(CancelTask)
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert not node.ctx.take(CancelTask, "global")


def test_what_has_been_released_is_not_cancelled(node: Node) -> None:
    submit(node, task_id(array(2), 0), 21, 22)
    node.turn(W1, Release([array(21)]))
    assert kill(node, 2) == {array(22)}


def test_without_recursion_they_all_go_on(node: Node) -> None:
    submit(node, task_id(array(2), 0), 21)
    assert kill(node, 2, recursive=False) == set()


def test_calls_of_a_run_are_children_too(node: Node) -> None:
    ctx = Alone()
    client = Client(ctx, W1, 0, Config())
    client.submitter.begin_task(task_id(array(2), 0))
    extra = TaskExtra(call=array(99))
    calls = [client.submitter.next_child() for _ in range(2)]
    for call in calls:
        client.submitter.call(call, extra, "call", 0, b"args", array(99))
    client.buffer.flush()
    node.turn(W1, *ctx.take(SubmitTasks))
    assert set(node.scheduler.dispatcher.workers[W1].children.arrays) == set(calls)


def test_a_batch_has_one_parent() -> None:
    ctx = Alone()
    client = Client(ctx, W1, 0, Config())
    for number in (1, 2):
        client.submitter.begin_task(task_id(array(number), 0))
        child = client.submitter.next_child()
        for start in range(2):
            client.submitter.submit(child, [spec(number, start)], 2, 1)
    client.submitter.begin_task(task_id(array(3), 0))
    extra = TaskExtra(call=array(99))
    client.submitter.call(client.submitter.next_child(), extra, "call", 0, b"", array(99))
    client.submitter.call(array(3), extra, "call", 0, b"", array(99))
    client.submitter.begin_task(task_id(array(4), 0))
    client.buffer.flush()
    batches = [(m.parent, {s.array for s in m.tasks}) for m in ctx.take(SubmitTasks)]
    assert sorted({parent for parent, _ in batches}) == [task_id(array(n), 0) for n in (1, 2, 3)]
    for parent, arrays in batches:
        if parent != task_id(array(3), 0):
            assert {task_id(each, 0) for each in arrays} == {parent}


def test_who_submits_many_cancels_them_all() -> None:
    ctx = Alone()
    client = Client(ctx, W1, 0, Config())
    client.submitter.begin_task(task_id(array(2), 0))
    made = []
    for _ in range(KEPT_MAX + 10):
        made.append(client.submitter.next_child())
        client.submitter.submit(made[-1], [replace(spec(1), array=made[-1])], 1, 1)
    client.submitter.cancel_children(task_id(array(2), 0), False)
    assert [message.array for message in ctx.take(CancelTask)] == made


def test_of_what_is_gone_nothing_is_kept() -> None:
    children = Children()
    children.begin(b"parent")
    for number in range(3 * KEPT_MAX):
        children.add(array(number), lambda kept: kept < array(10))
        assert len(children.arrays) <= KEPT_MAX
    assert list(children.arrays)[:10] == [array(number) for number in range(10)]


def test_what_is_there_is_kept_however_much_it_is() -> None:
    children = Children()
    looked = 0

    def is_there(_: bytes) -> bool:
        nonlocal looked
        looked += 1
        return True

    for number in range(8 * KEPT_MAX):
        children.add(array(number), is_there)
        children.add(array(number), is_there)  # its next part
    assert len(children.arrays) == 8 * KEPT_MAX
    assert looked < 2 * len(children.arrays), "each time that it has doubled"
