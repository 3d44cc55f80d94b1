"""A worker's late reply, or its death, concerns only the work it had at that time."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.local_scheduler.worker_leases import STUCK_AHEADS
from raytwin.runtime.control.messages import (
    RETRY,
    SYSTEM_ERROR,
    ActorInfo,
    AssignTasks,
    Blocked,
    CancelTask,
    KillWorker,
    SubmitTasks,
    TakeBack,
    TakenBack,
    TaskExtra,
    TaskResults,
    TasksDone,
    TaskSpec,
    Timing,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import Cancellation, unpack
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W1, W2, Node, ready


def cancel(number: int, force: bool = False) -> CancelTask:
    return CancelTask(array(number), 0, 1, force, False)


def creation(number: int = 9) -> TaskSpec:
    made = spec(number)
    made.extra = TaskExtra(actor=ActorInfo("A"))
    return made


def cancelled(node: Node) -> list[bytes]:
    """Return the tasks that have ended because they were cancelled."""
    return [
        r.array
        for m in node.ctx.take(TaskResults, DRIVER)
        for r in m.results
        if r.status == SYSTEM_ERROR and isinstance(unpack(r.payload), Cancellation)
    ]


def given(node: Node, worker: str = "worker:") -> list[bytes]:
    return [given[0] for given in node.given(worker)]


def asked(node: Node) -> list[int]:
    return [m.number for m in node.ctx.take(TakeBack, W1)]


@pytest.mark.parametrize("by", ["cancel", "watch"])
def test_an_actor_keeps_its_worker_when_an_answer_comes_late(by: str) -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2)]))
    if by == "cancel":
        node.turn(DRIVER, cancel(1))
    else:
        node.ctx.pass_time(3 * STUCK_AHEADS * Config().ahead_s)
    (number,) = asked(node)
    node.turn("global", AssignTasks([creation()], 1))
    node.given()
    node.done(W1, (1, 0, 1), (2, 0, 1))
    assert given(node, W1) == [creation().array]
    node.turn(W1, TakenBack([], number))
    assert node.free() == {"CPU": 0}
    node.turn(DRIVER, SubmitTasks([spec(3)]))
    assert given(node) == []


def test_a_node_takes_back_from_workers_that_were_silent_between_two_looks() -> None:
    node, look_s = Node(), STUCK_AHEADS * Config().ahead_s
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2), spec(3)]))
    node.ctx.pass_time(1.1 * look_s)
    node.done(W1, (1, 0, 1))
    node.ctx.pass_time(look_s)
    assert asked(node) == []
    node.ctx.pass_time(look_s)
    assert asked(node) == [1]


def test_a_late_reply_does_not_concern_later_assignments() -> None:
    """Asked twice for one, the second answer comes when the worker was asked for another."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn(DRIVER, cancel(1))
    node.turn("global", cancel(1))
    first, second = asked(node)
    node.turn(W1, TakenBack([], first))
    node.done(W1, (1, 0, 1))
    node.turn(DRIVER, SubmitTasks([spec(2), spec(3)]))
    assert given(node, W1) == [array(1), array(2), array(3)]
    node.turn("global", cancel(3))
    (third,) = asked(node)
    node.turn(W1, TakenBack([], second))
    assert cancelled(node) == []
    node.turn(W1, TakenBack([(array(3), 0, 1)], third))
    assert cancelled(node) == [array(3)]
    assert list(ready(node)) == []


def test_cancelled_work_given_back_before_the_reply_is_not_assigned() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2)]))
    node.turn("global", cancel(2))
    node.turn(W1, TakenBack([(array(2), 0, 1)]), Blocked())
    assert cancelled(node) == [array(2)], "it gave that back before it was asked"


@pytest.mark.parametrize("how", ["death", "retry"])
def test_a_cancelled_task_does_not_run_again(how: str) -> None:
    node = Node()
    one = spec(1)
    one.extra = TaskExtra(retry_on=b"any")
    node.turn(DRIVER, SubmitTasks([one]))
    node.turn("global", cancel(1))
    if how == "death":
        node.turn("pool:0", WorkerDied(W1, "killed"))
    else:
        again = result(1, status=RETRY)
        node.turn(W1, TasksDone([again], [Timing("t", 0.0, 1e-4, 1)]))
    assert cancelled(node) == [array(1)]
    assert list(ready(node)) == []


def test_nothing_begins_on_a_worker_that_is_about_to_be_killed() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn(DRIVER, cancel(1, force=True))
    assert node.ctx.take(KillWorker) == [KillWorker(W1)]
    node.turn("global", AssignTasks([creation()], 1))
    node.given()
    node.done(W1, (1, 0, 1))
    assert given(node) == [], "it was done just then"
    node.turn("pool:0", WorkerDied(W1, "killed by SIGKILL"))
    node.turn(W2, WorkerReady(2))
    assert given(node, W2) == [creation().array]


def test_every_task_for_which_a_worker_is_killed_ends() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 2), spec(2), spec(1, 4, 3)]))
    node.turn(DRIVER, CancelTask(array(1), 0, 9, True, False))
    node.turn("pool:0", WorkerDied(W1, "killed by SIGKILL"))
    assert set(cancelled(node)) == {array(1)}
    assert [s.array for s in ready(node)] == [array(2)]
    assert node.scheduler.leases.assigned == 0


@pytest.mark.parametrize("source", ["global", "gcs", "gcs.2"])
def test_a_cancel_that_was_passed_on_goes_nowhere_else(source: str) -> None:
    """With shards it comes from one of those, which would send it here again, and so on."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.ctx.sent.clear()
    node.turn(source, cancel(1))
    assert [to for to, m in node.ctx.sent if isinstance(m, CancelTask)] == [W1]
    node.ctx.sent.clear()
    node.turn(DRIVER, cancel(1))
    assert [to for to, m in node.ctx.sent if isinstance(m, CancelTask)] == [W1, "global"]
