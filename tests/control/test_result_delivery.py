"""The node delivers again what a worker delivered to its owner itself, if it is not released."""

from __future__ import annotations

from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.messages import (
    JobEnded,
    Release,
    SubmitTasks,
    TaskResults,
    TasksDone,
    Timing,
)
from raytwin.runtime.control.objects.result_manager import DELIVER_LATER_S
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W1, Node


def test_a_driver_is_told_later_what_its_worker_has_told_it_already() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2)]))
    for number in (1, 2):
        node.turn(W1, TasksDone([result(number)], [Timing("t", 0.0, 1e-4, 1)], told=True))
    assert node.ctx.take(TaskResults) == []
    assert node.free() == {"CPU": 1.0}
    assert node.scheduler.objects.has_array(array(1)), "who has it as an input finds it"
    node.turn(DRIVER, Release([array(1)]))
    node.ctx.pass_time(2 * DELIVER_LATER_S)
    told = [r.array for m in node.ctx.take(TaskResults, DRIVER) for r in m.results]
    assert told == [array(2)], "what was let go of needs no telling"
    node.ctx.pass_time(1.0)
    assert node.ctx.take(TaskResults) == []


def test_what_is_told_later_is_not_told_of_a_job_that_has_ended() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn(W1, TasksDone([result(1)], [Timing("t", 0.0, 1e-4, 1)], told=True))
    node.turn("gcs", JobEnded(job_of(array(1)), "over"))
    node.ctx.take(TaskResults)
    node.ctx.pass_time(1.0)
    assert node.ctx.take(TaskResults) == []
