"""Direct calls: `DirectCalls` of a driver and `Executor` of an actor's worker."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.direct_calls import ARGS_BYTES_MAX, WORKERS_MAX
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    USER_ERROR,
    ActorInfo,
    Assignment,
    CallsRan,
    CancelTask,
    DirectCall,
    DirectClosed,
    DirectOpen,
    Exit,
    FindActor,
    PutObjects,
    RangeResult,
    Release,
    RunTasks,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TasksDone,
    TaskSpec,
    Timing,
    WorkerDied,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array
from tests.control.one_node import W1, Node

NODE, DRIVER, WORKER = "node:0", "driver:0.0", "worker:0.1"
ACTOR = array(1000)
TIMING = Timing("f", 0.0, 0.1, 1)


def call_of(number: int) -> TaskSpec:
    extra = TaskExtra(call=ACTOR, method="f")
    return TaskSpec(array(number), 0, 1, b"", b"", DRIVER, "", name="f", extra=extra)


def plain_result(number: int) -> RangeResult:
    return RangeResult(array(number), 0, 1, OK, b"value", 0)


def worker(allowed: bool = True, after: int = 2) -> tuple[Alone, Executor]:
    """Return the executor of an actor's worker."""
    ctx = Alone()
    executor = Executor(ctx, 0, Config(direct_after=after))
    executor.actor = True
    executor.pack = lambda values: b"value"
    executor.direct.driver = DRIVER
    executor.direct.allowed = allowed
    return ctx, executor


def run_by_node(executor: Executor, number: int) -> None:
    executor.handle(NODE, RunTasks([Assignment(call_of(number))]))
    assert executor.next() is not None
    executor.report_plain(call_of(number), 1, 1, 0.0, 0.1)


def begun(number: int = 1) -> tuple[Alone, Executor]:
    """Return a worker that runs a direct call."""
    ctx, executor = worker()
    executor.handle(DRIVER, DirectCall(call_of(number)))
    assert executor.next() is not None
    return ctx, executor


def test_a_worker_offers_direct_calls_after_some_awaited_calls() -> None:
    ctx, executor = worker(after=3)
    for number in range(1, 3):
        run_by_node(executor, number)
    assert ctx.take(DirectOpen) == []
    run_by_node(executor, 3)
    run_by_node(executor, 4)
    assert ctx.take(DirectOpen, DRIVER) == [DirectOpen(ACTOR)]


@pytest.mark.parametrize("allowed, after", [(False, 1), (True, 0)])
def test_a_worker_that_may_not_offers_no_direct_calls(allowed: bool, after: int) -> None:
    ctx, executor = worker(allowed, after)
    for number in range(1, 20):
        run_by_node(executor, number)
    assert ctx.take(DirectOpen) == []


def test_a_plain_result_goes_to_the_driver_and_its_timing_to_the_node() -> None:
    ctx, executor = begun()
    executor.report_plain(call_of(1), 1, 1, 0.0, 0.1)
    [answer] = ctx.take(TaskResults, DRIVER)
    assert [r.array for r in answer.results] == [array(1)]
    assert ctx.sent == []
    ctx.pass_time(1.0)
    assert ctx.take(CallsRan, NODE) == [CallsRan([array(1)], [TIMING])]
    assert ctx.take(TasksDone) == []


@pytest.mark.parametrize(
    "withheld",
    [
        RangeResult(array(1), 0, 1, USER_ERROR, b"error", 0),
        RangeResult(array(1), 0, 1, OK, b"", 0, sizes=(1_000_000,)),
    ],
)
def test_any_other_result_goes_to_the_node_once_the_call_comes_by_it(
    withheld: RangeResult,
) -> None:
    ctx, executor = begun()
    executor.report(withheld, TIMING)
    assert ctx.take(DirectClosed, DRIVER) == [DirectClosed()] and ctx.sent == []
    executor.handle(NODE, RunTasks([Assignment(call_of(1))]))
    assert executor.next() is None
    assert [done.results for done in ctx.take(TasksDone, NODE)] == [[withheld]]


@pytest.mark.parametrize("ended", [False, True])
def test_a_direct_call_that_also_comes_by_the_node_runs_once(ended: bool) -> None:
    ctx, executor = begun()
    if ended:
        executor.report(plain_result(1), TIMING)
        assert len(ctx.take(TaskResults, DRIVER)) == 1
    executor.handle(NODE, RunTasks([Assignment(call_of(1)), Assignment(call_of(2))]))
    if not ended:
        executor.report(plain_result(1), TIMING)
        assert ctx.take(TaskResults) == []
    following = executor.next()
    assert following is not None and following.spec.array == array(2)
    executor.flush()
    [done] = ctx.take(TasksDone, NODE)
    assert [r.array for r in done.results] == [array(1)]


def test_an_answer_takes_earlier_results_to_the_node_along() -> None:
    ctx, executor = worker()
    executor.handle(NODE, RunTasks([Assignment(call_of(1)), Assignment(call_of(2))]))
    executor.handle(DRIVER, DirectCall(call_of(3)))
    for number in (1, 2, 3):
        assert executor.next() is not None
        executor.report_plain(call_of(number), 1, 1, 0.0, 0.1)
    results = [r for done in ctx.take(TasksDone, NODE) for r in done.results]
    assert sum(max(1, len(r.calls) // 12) for r in results) == 2
    assert len(ctx.take(TaskResults, DRIVER)) == 1


@pytest.mark.parametrize("sent", [False, True])
def test_a_call_that_has_submitted_something_is_answered_through_the_node(sent: bool) -> None:
    """The driver may not act on the answer before the node has what the call has sent it."""
    ctx, executor = begun()
    effects = [0]

    def flush() -> None:
        effects[0] += 1

    executor.direct.effects = lambda: effects[0]
    if sent:
        flush()
    else:
        executor.before_results = flush  # still in the worker's buffer
    executor.report_plain(call_of(1), 1, 1, 0.0, 0.1)
    assert ctx.take(TaskResults) == [] and ctx.take(DirectClosed, DRIVER) == [DirectClosed()]
    executor.handle(NODE, RunTasks([Assignment(call_of(1))]))
    assert len(ctx.take(TasksDone, NODE)) == 1


def test_a_worker_offers_again_after_an_error() -> None:
    ctx, executor = worker()
    for number in (1, 2):
        run_by_node(executor, number)
    assert len(ctx.take(DirectOpen)) == 1
    executor.handle(DRIVER, DirectCall(call_of(3)))
    executor.next()
    executor.report(RangeResult(array(3), 0, 1, USER_ERROR, b"error", 0), TIMING)
    executor.handle(NODE, RunTasks([Assignment(call_of(3))]))
    for number in (4, 5):
        run_by_node(executor, number)
    assert ctx.take(DirectOpen, DRIVER) == [DirectOpen(ACTOR)]


def test_a_call_that_is_published_is_reported_once() -> None:
    ctx, executor = begun()
    executor.report_plain(call_of(1), 1, 1, 0.0, 0.1)
    executor.handle(NODE, RunTasks([Assignment(call_of(1))]))
    ctx.pass_time(1.0)
    assert len(ctx.take(TasksDone, NODE)) == 1 and ctx.take(CallsRan) == []


@pytest.mark.parametrize("how", ["released", "left", "crashed"])
def test_a_worker_reports_all_answered_calls_before_it_ends(how: str) -> None:
    ctx, executor = begun()
    executor.report_plain(call_of(1), 1, 1, 0.0, 0.1)
    assert ctx.take(CallsRan) == []
    if how == "released":
        executor.handle(NODE, Exit())
    elif how == "left":
        executor.leave(ActorDeath(DeathCause.EXITED))
    else:
        executor.crash(ActorDeath(DeathCause.EXITED))
    assert [message.calls for message in ctx.take(CallsRan)] == [[array(1)]]


def test_a_worker_whose_actor_leaves_takes_no_direct_call() -> None:
    _, executor = worker()
    executor.leave(ActorDeath(DeathCause.EXITED))
    executor.handle(DRIVER, DirectCall(call_of(1)))
    assert not executor.queue


def test_a_direct_call_that_is_cancelled_in_the_queue_does_not_begin() -> None:
    ctx, executor = worker()
    executor.handle(NODE, RunTasks([Assignment(call_of(1))]))
    executor.next()
    executor.handle(DRIVER, DirectCall(call_of(2)))
    executor.handle(DRIVER, CancelTask(array(2), 0, 1, False, False))
    assert not executor.queue and ctx.take(DirectClosed, DRIVER) == [DirectClosed()]
    executor.handle(NODE, RunTasks([Assignment(call_of(2))]))
    executor.report(plain_result(1), TIMING)
    results = [r for done in ctx.take(TasksDone, NODE) for r in done.results]
    assert sorted((r.array, r.status) for r in results) == [(array(1), OK), (array(2), NOT_BEGUN)]


# -- the driver ------------------------------------------------------------------


class Driver:
    """A driver's client that has created an actor."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.client = Client(self.ctx, DRIVER, 0, Config())
        self.client.submitter.submit(ACTOR, [call_of(1000)], 1, 1)
        self.client.entries[ACTOR].refs = 1
        self.client.handle(NODE, TaskResults(DRIVER, [RangeResult(ACTOR, 0, 1, OK, b"", 0)]))
        self.ctx.sent.clear()
        self.extra = TaskExtra(call=ACTOR, method="f")

    def call(self, number: int, args: bytes = b"") -> Any:
        entry = self.client.submitter.call(
            array(number), self.extra, "f", 0, args, ACTOR + b"\0\0\0\0"
        )
        entry.refs += 1
        return entry

    def answer(self, number: int, source: str = WORKER) -> None:
        self.client.handle(source, TaskResults(DRIVER, [plain_result(number)]))

    def flushed(self, kind: type) -> list[Any]:
        self.client.buffer.flush()
        return self.ctx.take(kind, NODE)


@pytest.fixture
def driver() -> Driver:
    """A driver that may call its actor directly, and has had a call answered through the node."""
    made = Driver()
    made.call(900)
    made.client.buffer.flush()
    made.answer(900, NODE)
    made.ctx.sent.clear()
    made.client.handle(WORKER, DirectOpen(ACTOR))
    return made


def test_a_driver_calls_through_the_node_while_the_node_may_be_behind(driver: Driver) -> None:
    driver.client.submitter.submit(array(50), [call_of(50)], 1, 1)
    driver.call(1)
    driver.client.submitter.kill_actor(array(51), False)
    driver.answer(50, NODE)
    driver.answer(1, NODE)
    driver.call(2)
    assert driver.ctx.take(DirectCall) == []
    driver.client.buffer.flush()
    driver.answer(2, NODE)
    driver.call(3)
    assert [m.task.array for m in driver.ctx.take(DirectCall, WORKER)] == [array(3)]


def test_a_handle_that_was_serialized_ends_direct_calls(driver: Driver) -> None:
    driver.client.direct.share(ACTOR)
    driver.call(1)
    driver.client.handle(WORKER, DirectOpen(ACTOR))
    driver.client.buffer.flush()
    driver.answer(1, NODE)
    driver.call(2)
    assert driver.ctx.take(DirectCall) == []


def test_an_actor_is_created_behind_the_direct_results_that_it_gets(driver: Driver) -> None:
    driver.call(1)
    driver.answer(1)
    spec = call_of(60)
    spec.deps = (array(1) + b"\0\0\0\0",)
    spec.extra = TaskExtra(actor=ActorInfo(0, 1, 0))
    driver.client.requests.find_actor("", "name", spec, holds=())
    kinds = [type(message) for _, message in driver.ctx.sent]
    assert kinds.index(PutObjects) < kinds.index(FindActor)


def test_a_driver_that_waits_for_no_other_call_calls_directly(driver: Driver) -> None:
    driver.call(1)
    driver.call(2)
    assert [m.task.array for m in driver.ctx.take(DirectCall, WORKER)] == [array(1)]
    [submitted] = driver.flushed(SubmitTasks)
    assert [spec.array for spec in submitted.tasks] == [array(2)]
    driver.answer(1)
    driver.call(3)
    assert driver.ctx.take(DirectCall) == []
    driver.answer(2, NODE)
    driver.answer(3, NODE)
    driver.call(4, b"x" * (ARGS_BYTES_MAX + 1))
    assert driver.ctx.take(DirectCall) == []
    driver.flushed(SubmitTasks)
    driver.answer(4, NODE)
    driver.call(5)
    assert len(driver.ctx.take(DirectCall, WORKER)) == 1


def test_the_node_hears_nothing_of_a_result_that_the_driver_drops(driver: Driver) -> None:
    entry = driver.call(1)
    driver.answer(1)
    assert entry.result is not None
    driver.client.references.drop_ref(array(1) + b"\0\0\0\0")
    assert driver.flushed(Release) == [] and driver.flushed(SubmitTasks) == []
    assert array(1) not in driver.client.entries


def test_a_published_result_is_put_once_and_released(driver: Driver) -> None:
    entry = driver.call(1)
    driver.answer(1)
    for _ in range(2):
        driver.client.references.hold(array(1))
    assert driver.flushed(PutObjects) == [PutObjects([entry.result])]
    for _ in range(2):
        driver.client.references.end_hold(array(1))
    driver.client.references.drop_ref(array(1) + b"\0\0\0\0")
    assert driver.flushed(Release) == [Release([array(1)])]


def test_only_the_nodes_answer_counts_for_a_call_that_is_published(driver: Driver) -> None:
    entry = driver.call(1)
    driver.client.references.hold(array(1))
    [submitted] = driver.flushed(SubmitTasks)
    assert [spec.array for spec in submitted.tasks] == [array(1)]
    driver.answer(1)
    assert entry.result is None
    driver.call(2)
    assert len(driver.ctx.take(DirectCall)) == 1, "the worker may not know of the first yet"
    driver.answer(1, NODE)
    assert entry.result is not None


def test_a_call_without_an_answer_goes_by_the_node_when_the_worker_is_gone(driver: Driver) -> None:
    driver.call(1)
    driver.client.handle(WORKER, DirectClosed())
    [submitted] = driver.flushed(SubmitTasks)
    assert [spec.array for spec in submitted.tasks] == [array(1)]
    driver.answer(1, NODE)
    driver.call(2)
    assert len(driver.flushed(SubmitTasks)) == 1


def test_a_cancellation_follows_a_direct_call_to_its_worker(driver: Driver) -> None:
    driver.call(1)
    driver.client.references.hold(array(1))
    driver.client.submitter.cancel(array(1) + b"\0\0\0\0", False, False)
    assert [m.array for m in driver.ctx.take(CancelTask, WORKER)] == [array(1)]


def test_a_driver_has_a_bounded_number_of_direct_workers(driver: Driver) -> None:
    for number in range(2 * WORKERS_MAX):
        driver.client.entries[array(2000 + number)] = Entry(array(2000 + number), 1, 1, 0)
        driver.client.handle(f"worker:0.{number + 2}", DirectOpen(array(2000 + number)))
    assert len(driver.client.direct.workers) == WORKERS_MAX


# -- results of tasks -------------------------------------------------------------


def task_of(number: int, owner: str = DRIVER) -> TaskSpec:
    return TaskSpec(array(number), 0, 1, b"f", b"", owner, "", name="f")


def task_worker(after: int = 2) -> tuple[Alone, Executor]:
    ctx, executor = worker(after=after)
    executor.actor = False
    return ctx, executor


def run_task(executor: Executor, number: int, owner: str = DRIVER, behind: int = 0) -> None:
    """Run a task; another is in the queue if its number is `behind`."""
    tasks = [Assignment(task_of(each, owner)) for each in (number, behind) if each]
    executor.handle(NODE, RunTasks(tasks))
    assert executor.next() is not None
    executor.report_plain(task_of(number, owner), 1, 1, 0.0, 0.1)


def to_driver(ctx: Alone) -> list[bytes]:
    return [r.array for m in ctx.take(TaskResults, DRIVER) for r in m.results]


def answered(ctx: Alone) -> list[bool]:
    return [message.answered for message in ctx.take(TasksDone, NODE)]


def test_a_worker_sends_results_of_single_tasks_to_the_node_and_then_to_the_driver() -> None:
    ctx, executor = task_worker(after=2)
    for number in range(1, 4):
        run_task(executor, number)
    kinds = [type(message) for _, message in ctx.sent]
    assert kinds == [TasksDone, TasksDone, TasksDone, TaskResults]
    assert answered(ctx) == [False, False, True] and to_driver(ctx) == [array(3)]


@pytest.mark.parametrize("why", ["another owner", "an effect", "more tasks", "unread", "off"])
def test_a_worker_sends_other_results_through_the_node(why: str) -> None:
    ctx, executor = task_worker(after=0 if why == "off" else 1)
    run_task(executor, 1)
    effects = iter(range(100))
    if why == "an effect":
        executor.direct.effects = lambda: next(effects)
    if why == "unread":
        executor.direct.is_ready = lambda: False
    owner = "driver:1.0" if why == "another owner" else DRIVER
    run_task(executor, 2, owner, behind=3 if why == "more tasks" else 0)
    executor.flush()
    assert to_driver(ctx) == [] and not any(answered(ctx))


def test_a_driver_takes_a_tasks_result_once(driver: Driver) -> None:
    driver.client.submitter.submit(array(1), [task_of(1)], 1, 1)
    entry = driver.client.entries[array(1)]
    entry.refs = 1
    driver.answer(1, WORKER)
    first = entry.result
    assert first is not None
    driver.answer(1, NODE)
    driver.answer(1, WORKER)
    assert entry.result is first and driver.client.buffer.answered


def test_a_node_delivers_an_answer_again_only_when_its_worker_dies() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([task_of(1)]))
    node.turn(W1, TasksDone([plain_result(1)], [TIMING], answered=True))
    assert to_driver(node.ctx) == []
    assert node.scheduler.objects.has_array(array(1))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert to_driver(node.ctx) == [array(1)]


def test_a_node_delivers_no_answer_again_that_was_released() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([task_of(1)]))
    node.turn(W1, TasksDone([plain_result(1)], [TIMING], answered=True))
    node.turn(DRIVER, Release([array(1)]))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert to_driver(node.ctx) == []
