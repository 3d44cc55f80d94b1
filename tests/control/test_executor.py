"""`Executor`: when a worker reports results, and which work it gives back."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    Assignment,
    Blocked,
    Exit,
    ExitActor,
    Resume,
    RunTasks,
    TakeBack,
    TakenBack,
    TasksDone,
    Timing,
    Unblocked,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array, result, spec

NODE = "node:0"


def made(*ranges: tuple[int, int, int]) -> tuple[Alone, Executor]:
    """Return an executor that runs the first of these ranges."""
    ctx = Alone()
    executor = Executor(ctx, 0, Config(linger_s=1.0))
    executor.handle(NODE, RunTasks([Assignment(spec(*r)) for r in ranges]))
    assert executor.next() is not None
    return ctx, executor


def ran(executor: Executor, number: int, start: int, count: int = 1) -> None:
    executor.report(result(number, start, count), Timing("t", 0.0, 0.1, count))


def test_results_travel_together_until_the_queue_is_empty() -> None:
    ctx, executor = made((1, 0, 1), (2, 0, 1), (3, 0, 1))
    ran(executor, 1, 0)  # nothing was sent for long: it goes at once
    assert len(ctx.take(TasksDone)) == 1
    executor.next()
    ran(executor, 2, 0)
    assert ctx.sent == []
    executor.next()
    ran(executor, 3, 0)
    [done] = ctx.take(TasksDone, NODE)
    assert [r.array for r in done.results] == [array(2), array(3)]
    assert len(done.timings) == 2
    assert executor.running is None and executor.next() is None
    ctx.pass_time(5.0)
    assert ctx.sent == []


def test_results_do_not_wait_longer_than_the_linger() -> None:
    ctx, executor = made((1, 0, 1), (2, 0, 1), (3, 0, 1))
    ran(executor, 1, 0)
    executor.next()
    ran(executor, 2, 0)
    ctx.sent.clear()
    ctx.pass_time(1.0)
    [done] = ctx.take(TasksDone)
    assert [r.array for r in done.results] == [array(2)]


def test_the_tail_of_the_running_range_goes_back_but_not_what_has_started() -> None:
    ctx, executor = made((1, 10, 10), (2, 0, 5))
    ran(executor, 1, 10, 2)
    executor.values += ["twelve", "thirteen"]  # done, not reported; 14 runs
    executor.handle(NODE, TakeBack(1))
    [back] = ctx.take(TakenBack, NODE)
    assert back.ranges == [(array(1), 15, 5), (array(2), 0, 5)]
    assert executor.limit == 15 and executor.alerts and not executor.queue
    executor.values.append("fourteen")
    ran(executor, 1, 12, 3)
    assert executor.running is None
    assert sum(r.count for d in ctx.take(TasksDone) for r in d.results) == 5


def test_reported_results_are_sent_before_work_is_given_back() -> None:
    ctx, executor = made((1, 0, 5), (2, 0, 1))
    ran(executor, 1, 0)
    ran(executor, 1, 1)
    executor.handle(NODE, TakeBack(1))
    kinds = [type(m) for _, m in ctx.sent]
    assert kinds.index(TakenBack) == len(kinds) - 1 and kinds.count(TasksDone) == 2


def test_take_back_is_always_answered() -> None:
    ctx, executor = made((1, 0, 1))
    executor.handle(NODE, TakeBack(1))
    assert ctx.take(TakenBack) == [TakenBack([], 1)]


def test_a_blocked_range_gives_back_all_other_work() -> None:
    ctx, executor = made((1, 0, 3), (2, 0, 1))
    executor.block()
    assert [type(m) for _, m in ctx.sent] == [TakenBack, Blocked]
    assert executor.suspended
    assert ctx.take(TakenBack)[0].ranges == [(array(1), 1, 2), (array(2), 0, 1)]
    # What was on its way to it may be what it waits for.
    executor.handle(NODE, RunTasks([Assignment(spec(3))]))
    assert ctx.take(TakenBack)[0].ranges == [(array(3), 0, 1)]
    executor.unblock()
    assert len(ctx.take(Unblocked, NODE)) == 1 and executor.suspended
    executor.handle(NODE, Resume())
    assert not executor.suspended
    executor.handle(NODE, RunTasks([Assignment(spec(4))]))
    assert len(executor.queue) == 1 and not ctx.take(TakenBack)


def test_exit_and_nonsense() -> None:
    _, executor = made((1, 0, 1))
    executor.handle(NODE, Exit())
    assert executor.exiting
    with pytest.raises(AssertionError):
        executor.handle(NODE, Blocked())


def test_an_actor_that_leaves_has_one_reason_and_does_not_come_back() -> None:
    terminated = ActorDeath(DeathCause.TERMINATED)
    ctx, executor = made((1, 0, 1))
    executor.leave(terminated)
    executor.leave(ActorDeath(DeathCause.EXITED))
    leaves = ExitActor(terminated)
    assert executor.exiting and ctx.take(ExitActor, NODE) == [leaves], "what runs goes on"
    crash = ActorDeath(DeathCause.WORKER_DIED, detail="a call raised SystemExit")
    executor.crash(crash)
    assert executor.crashed and not ctx.take(ExitActor, NODE), "it leaves for good"


def test_results_do_not_wait_long_for_a_late_timer() -> None:
    ctx = Alone()
    executor = Executor(ctx, 0, Config(linger_s=1.0))
    executor.pack = lambda values: repr(values).encode()
    executor.handle(NODE, RunTasks([Assignment(spec(number)) for number in range(1, 9)]))
    executor.next()
    sent = []
    for now_s in (1.0, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5):  # a linger is 1 s
        ctx.time_s = now_s
        assert executor.running is not None
        executor.report_plain(executor.running, 1, 16, now_s, now_s)
        sent.append(len(ctx.take(TasksDone, NODE)))
        executor.next()
    assert sent == [1, 0, 0, 0, 0, 0, 1]
