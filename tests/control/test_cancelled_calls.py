"""Calls of an actor that are cancelled while they run: what their worker says of them, and
what becomes of it where the actor is rebuilt."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    SYSTEM_ERROR,
    Assignment,
    CancelTask,
    RangeResult,
    RunTasks,
    TasksDone,
    Timing,
)
from raytwin.runtime.control.messages.errors import Cancellation, pack
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array, spec

NODE = "node:0"
FIRST, SECOND = array(1), array(2)


def made(concurrent: bool, *assignments: Assignment) -> tuple[Alone, Executor]:
    """Return an actor's executor that runs the first call; several may run at a time."""
    ctx = Alone()
    executor = Executor(ctx, 0, Config(linger_s=0.0))
    executor.actor = True
    executor.handle(NODE, RunTasks([*assignments]))
    begin(executor, concurrent)
    return ctx, executor


def begin(executor: Executor, concurrent: bool) -> None:
    assignment = executor.next()
    assert assignment is not None
    if concurrent:
        executor.run_concurrently(assignment.spec)


def cancel(executor: Executor, call: bytes) -> None:
    executor.handle(NODE, CancelTask(call, 0, 1, False, False))


def ended(ctx: Alone, executor: Executor, call: bytes, status: int) -> RangeResult:
    """End a call and return its result as its node gets it."""
    payload = pack(Cancellation("f", begun=True)) if status != OK else b"v"
    report = executor.report_call if executor.concurrent else executor.report
    report(RangeResult(call, 0, 1, status, payload, 0), Timing("f", 0.0, 0.1, 1))
    (done,) = [r for m in ctx.take(TasksDone, NODE) for r in m.results]
    return done


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_running_call_is_notified_and_its_result_is_a_cancellation(concurrent: bool) -> None:
    ctx, executor = made(concurrent, Assignment(spec(1)))
    assert not executor.is_cancelled(FIRST)
    cancel(executor, FIRST)
    assert executor.is_cancelled(FIRST)
    assert not executor.interrupt
    assert ended(ctx, executor, FIRST, SYSTEM_ERROR).cancelled == 0
    assert not executor.is_cancelled(FIRST)


@pytest.mark.parametrize("concurrent", [False, True])
def test_only_the_cancelled_call_is_notified(concurrent: bool) -> None:
    ctx, executor = made(concurrent, Assignment(spec(1)), Assignment(spec(2)))
    if concurrent:
        begin(executor, concurrent)
    cancel(executor, SECOND)
    if not concurrent:
        # It has not begun, and never does.
        assert executor.next() is None
        executor.flush()
        (gone,) = [r for m in ctx.take(TasksDone, NODE) for r in m.results]
        assert (gone.array, gone.status, gone.cancelled) == (SECOND, NOT_BEGUN, -1)
    assert executor.is_cancelled(SECOND) == concurrent
    assert not executor.is_cancelled(FIRST)
    assert ended(ctx, executor, FIRST, SYSTEM_ERROR).cancelled == -1


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_ended_call_keeps_its_result(concurrent: bool) -> None:
    ctx, executor = made(concurrent, Assignment(spec(1)))
    cancel(executor, FIRST)
    # Its value was on its way when the cancellation came.
    assert ended(ctx, executor, FIRST, OK).cancelled == -1
    cancel(executor, FIRST)
    assert not executor.cancelled_calls


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("items", [0, 3])
def test_a_replayed_stream_is_cancelled_after_the_same_item(concurrent: bool, items: int) -> None:
    ctx, executor = made(concurrent, Assignment(spec(1)))
    for index in range(items):
        executor.items([RangeResult(FIRST, STREAM_BASE + index, 1, OK, b"", 0)])
    cancel(executor, FIRST)
    after = ended(ctx, executor, FIRST, SYSTEM_ERROR).cancelled
    assert after == items
    ctx, executor = made(concurrent, Assignment(spec(1), cancelled=after))
    told = []
    for index in range(items):
        told.append(executor.is_cancelled(FIRST))
        executor.items([RangeResult(FIRST, STREAM_BASE + index, 1, OK, b"", 0)])
    assert not any(told)
    assert executor.is_cancelled(FIRST)
    assert ended(ctx, executor, FIRST, SYSTEM_ERROR).cancelled == items


def test_a_coroutine_is_cancelled_where_it_waits_if_it_runs() -> None:
    _, executor = made(True, Assignment(spec(1)), Assignment(spec(2)))
    told: list[bytes] = []
    executor.on_cancel_call = told.append
    cancel(executor, SECOND)
    cancel(executor, array(9))
    assert told == []
    cancel(executor, FIRST)
    assert told == [FIRST]
