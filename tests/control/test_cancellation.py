"""Cancelling tasks: which elements end, and which processes get the request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.core.task_ranges import cut
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.local_scheduler.cancellation import STUCK_S
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    Assignment,
    AssignTasks,
    CancelTask,
    KillWorker,
    NodeChanged,
    NodeInfo,
    PlaceTasks,
    RegisterNode,
    RunTasks,
    SubmitTasks,
    TakeBack,
    TakenBack,
    TaskExtra,
    TaskResults,
    TaskUpdates,
    WorkerDied,
)
from raytwin.runtime.control.messages.errors import Cancellation, Unschedulable, unpack
from raytwin.runtime.control.scheduling.candidates import NodeView
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.control.scheduling.strategies import Spreading, affinity, kept
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array, spec
from tests.control.one_node import DRIVER, W1, Node

RANGES = st.tuples(st.integers(0, 20), st.integers(1, 20))


def cancel(number: int = 1, start: int = 0, count: int = 1, force: bool = False) -> CancelTask:
    return CancelTask(array(number), start, count, force, True)


@given(RANGES, RANGES)
def test_a_cut_loses_nothing(task: tuple[int, int], message: tuple[int, int]) -> None:
    left, cancelled = cut(spec(1, *task), cancel(1, *message))
    stays = {i for part in left for i in range(part.start, part.start + part.count)}
    goes = (
        set() if cancelled is None else {*range(cancelled.start, cancelled.start + cancelled.count)}
    )
    all_of_it = set(range(task[0], sum(task)))
    assert goes == all_of_it & set(range(message[0], sum(message)))
    assert stays == all_of_it - goes


@given(st.lists(RANGES, max_size=6), RANGES)
def test_a_queue_counts_what_is_left(
    tasks: list[tuple[int, int]], message: tuple[int, int]
) -> None:
    queue = ReadyQueue()
    for at, task in enumerate(tasks):
        queue.push(spec(1 + at % 2, *task, demand=f"CPU:{1 + at % 3}"))
    before = queue.size
    gone = sum(
        part.count for part in queue.take_out(lambda task: cut(task, cancel(1, *message))[1])
    )
    left = 0
    for lane in queue.lanes():
        while queue.has(lane):
            left += queue.take(lane, 100).count
    assert left == before - gone
    assert queue.size == 0


def executor() -> tuple[Alone, Executor]:
    ctx = Alone()
    made = Executor(ctx, 0, Config())
    made.handle("node:0", RunTasks([Assignment(spec(1, 0, 5)), Assignment(spec(2))]))
    made.next()
    return ctx, made


def test_only_the_running_element_is_interrupted() -> None:
    _, made = executor()
    for other in (cancel(2), cancel(1, 1, 4), cancel(3)):
        made.handle("node:0", other)
        assert not made.interrupt
    asked: list[CancelTask] = []
    made.on_cancel = asked.append
    made.handle("node:0", cancel(1, 0, 1))
    assert made.interrupt
    assert made.cancelled == 0
    assert len(asked) == 1
    made.next()
    assert not made.interrupt


def test_one_request_interrupts_once_however_often_it_comes() -> None:
    _, made = executor()
    asked: list[CancelTask] = []
    made.on_cancel = asked.append

    def interrupts(request: str, start: int = 0, count: int = 1) -> bool:
        made.interrupt = False
        before = len(asked)
        message = CancelTask(array(1), start, count, False, True, request=request)
        made.handle("node:0", message)
        assert (len(asked) > before) == made.interrupt, "nor does it cancel children again"
        return made.interrupt

    first, second = f"{DRIVER}/1", f"{DRIVER}/2"
    assert [interrupts(first), interrupts(first)] == [True, False]
    assert [interrupts(second), interrupts(first), interrupts(second)] == [True, False, False]
    made.values.append(0)
    assert interrupts(first, 1), "the element after it is another one"
    assert not interrupts(first, 0, 5)


def test_requests_of_a_client_differ_and_keep_their_number_on_their_way() -> None:
    ctx = Alone()
    client = Client(ctx, DRIVER, 0, Config())
    for _ in range(2):
        client.submitter.cancel(object_id(array(1), 0, 0), False, False)
    first, second = ctx.take(CancelTask)
    assert first.request != second.request

    gcs_ctx = Alone()
    gcs = Gcs(gcs_ctx, Config())
    gcs.handle("node:0", RegisterNode(NodeInfo(0, "host", 0, {"CPU": 1.0}, incarnation=1)))
    gcs.handle("global", TaskUpdates(0, [spec(1)], [], [], []))
    gcs.handle("global", first)
    [back] = gcs_ctx.take(CancelTask, "global")
    assert back.request == first.request


def test_unstarted_elements_are_given_back_first() -> None:
    _, made = executor()
    made.handle("node:0", TakeBack(1))
    assert made.limit == 1
    assert not made.queue


# -- by force ---------------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    """Its worker runs elements 0 to 2 of an array."""
    made = Node()
    made.turn(DRIVER, SubmitTasks([spec(1, 0, 3)]))
    return made


def ended(node: Node) -> list[int]:
    return [
        r.start for m in node.ctx.take(TaskResults) for r in m.results if r.status == SYSTEM_ERROR
    ]


def test_a_worker_that_runs_another_element_goes_on(node: Node) -> None:
    node.turn(DRIVER, cancel(1, 2, force=True))
    [asked] = node.ctx.take(TakeBack, W1)
    node.turn(W1, TakenBack([(array(1), 1, 2)], asked.number))
    node.ctx.pass_time(2 * STUCK_S)
    assert not node.ctx.take(KillWorker)
    assert ended(node) == [2]


def test_force_kills_the_worker_that_runs_the_element(node: Node) -> None:
    node.turn(DRIVER, cancel(1, 2, force=True))
    [asked] = node.ctx.take(TakeBack, W1)
    assert not node.ctx.take(KillWorker)
    node.done(W1, (1, 0, 2))
    node.turn(W1, TakenBack([], asked.number))
    assert node.ctx.take(KillWorker) == [KillWorker(W1)]
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert ended(node) == [2]


def test_force_kills_a_worker_that_does_not_answer(node: Node) -> None:
    node.turn(DRIVER, cancel(1, 2, force=True))
    assert not node.ctx.take(KillWorker)
    node.ctx.pass_time(2 * STUCK_S)
    assert node.ctx.take(KillWorker) == [KillWorker(W1)]


def test_a_worker_that_finished_meanwhile_is_not_killed(node: Node) -> None:
    node.turn(DRIVER, cancel(1, 0, 3, force=True))
    node.done(W1, (1, 0, 3))
    node.ctx.pass_time(2 * STUCK_S)
    assert not node.ctx.take(KillWorker)
    assert not ended(node)


def global_scheduler(nodes: int) -> tuple[Alone, GlobalScheduler]:
    ctx = Alone()
    made = GlobalScheduler(ctx, Config())
    for node in range(nodes):
        info = NodeInfo(node, "host", 0, {"CPU": 1.0, f"node:{node}": 1.0})
        made.handle("gcs", NodeChanged(info))
    return ctx, made


def test_an_infeasible_task_ends_at_the_global_scheduler() -> None:
    ctx, made = global_scheduler(1)
    made.handle("node:0", PlaceTasks([spec(1, 0, 4, demand="GPU:1")]))
    made.handle("node:0", cancel(1, 1, 2))
    (told,) = ctx.take(TaskResults)
    assert (told.results[0].start, told.results[0].count) == (1, 2)
    assert told.results[0].status == SYSTEM_ERROR
    assert isinstance(unpack(told.results[0].payload), Cancellation)
    assert [(s.start, s.count) for s in made.infeasible] == [(0, 1), (3, 1)]


def test_a_task_that_is_being_located_is_never_assigned() -> None:
    ctx, made = global_scheduler(2)
    made.handle("node:0", PlaceTasks([spec(1, deps=(b"x" * 18,))]))
    made.handle("node:0", cancel(1))
    assert len(ctx.take(TaskResults)) == 1
    assert not made._locating
    assert not ctx.take(AssignTasks)


def test_the_accepting_node_gets_the_cancellation() -> None:
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    for node in range(3):
        info = NodeInfo(node, "host", 0, {"CPU": 1.0}, incarnation=1)
        gcs.handle(f"node:{node}", RegisterNode(info))
    gcs.handle("global", TaskUpdates(2, [spec(1)], [], [], []))
    gcs.handle("global", cancel(1))
    (asked,) = ctx.take(CancelTask, "global")
    assert set(asked.nodes) == {0, 2}
    gcs.handle("global", cancel(9))
    assert not ctx.take(CancelTask)

    ctx, made = global_scheduler(3)
    made.handle("gcs", asked)
    assert sorted(to for to, m in ctx.sent if isinstance(m, CancelTask)) == ["node:0", "node:2"]


def view(node: int, queue: int = 0) -> NodeView:
    return NodeView(node, queue, 2, 0.0, 0, 0.0)


def test_affinity() -> None:
    hard, soft = affinity(1, soft=False), affinity(1, soft=True)
    _, made = global_scheduler(2)
    able = made.node_index.able(made.nodes, "CPU:1")
    assert [v.node for v in able.allowed(hard, 0, -1)] == [1]
    assert [v.node for v in able.allowed(soft, 0, -1)] == [1]
    _, made = global_scheduler(1)
    able = made.node_index.able(made.nodes, "CPU:1")
    assert able.allowed(hard, 0, -1) == []
    assert [v.node for v in able.allowed(soft, 0, -1)] == [0]
    assert kept(hard, 1, 5, feasible=True, alone=False) == 5
    assert kept(hard, 0, 5, feasible=True, alone=False) == 0
    assert kept(hard, 1, 5, feasible=False, alone=False) == 0


def test_hard_affinity_to_a_missing_node_is_an_error() -> None:
    ctx, made = global_scheduler(2)
    task = spec(1)
    task.extra = TaskExtra(strategy=affinity(5, soft=False))
    made.handle("node:0", PlaceTasks([task]))
    (told,) = ctx.take(TaskResults)
    assert isinstance(unpack(told.results[0].payload), Unschedulable)
    assert not made.infeasible


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 30))
def test_spreading_levels_queues(queues: list[int], pieces: int) -> None:
    views = [view(node, queue) for node, queue in enumerate(queues)]
    chosen = Spreading().spread(views, [1] * pieces)
    assert len(chosen) == pieces
    level = [v.queue // v.slots for v in views]
    raised = {v.node for v in chosen}
    # Nothing was put upon a queue while another one was shorter by a round.
    assert all(level[node] <= min(level) + 1 for node in raised)
