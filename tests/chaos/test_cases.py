"""What is drawn for the seeds of the fuzz, and that what is drawn is run as such."""

from __future__ import annotations

import pytest

from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.programs.program import Beside, Handing
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.api.exceptions import WorkerCrashedError


def test_a_case_is_data() -> None:
    case = draw_case(5)
    assert isinstance(case, Case)
    assert draw_case(5) == case


def test_later_kinds_are_drawn_and_leave_the_rest_of_a_program_as_it_was() -> None:
    drawn = [draw_case(seed) for seed in range(60)]
    does = {op.do for case in drawn for op in case.program.ops}
    assert {"kill", "gone", "group", "reserved", "remove"} <= does
    tellers = [op.teller for case in drawn for op in case.program.ops]
    assert {each.coroutines for each in tellers if isinstance(each, Beside)} == {True, False}
    for case in drawn:
        before = draw_case(case.seed, kinds=())
        kept = iter(case.program.ops)
        later = [op for op in before.program.ops if not isinstance(op, Handing)]
        assert all(op in kept for op in later), "its operations are there in their order"


def test_actors_are_called_by_tasks_and_actors_and_one_at_a_time() -> None:
    cases = [draw_case(seed, kinds=()) for seed in range(40)]
    kinds = {(op.do, bool(op.hands)) for c in cases for op in c.program.ops if type(op) is Handing}
    assert kinds == {("hand", True), ("hand", False), ("tell", True)}


def test_what_is_cancelled_is_told_from_what_took_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in map(draw_case, range(60)) if _cancels(case)]
    assert all(run_case(case).failures == [] for case in cases[:5])
    monkeypatch.setattr("raytwin.chaos.fuzz.run.api_engine.TaskCancelledError", WorkerCrashedError)
    wrong = [line for case in cases[:5] for line in run_case(case).failures]
    assert any(" and not 1" in line for line in wrong), "calls that never ran were counted"


def _cancels(case: Case) -> bool:
    return {"cancel", "tally"} <= {op.do for op in case.program.ops}
