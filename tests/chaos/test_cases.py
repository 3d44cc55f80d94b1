"""The cases drawn for seeds of the fuzz, and that the engine runs all of their operations."""

from __future__ import annotations

import pytest

from raytwin.chaos.fuzz.generate import cases
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.api.exceptions import WorkerCrashedError


def test_a_case_is_data() -> None:
    case = draw_case(5)
    assert isinstance(case, Case)
    assert draw_case(5) == case


def test_all_operations_are_drawn() -> None:
    drawn = [draw_case(seed) for seed in range(100)]
    ops = [op for case in drawn for op in case.program.ops]
    assert {op.do for op in ops} == {
        "call", "lend", "map", "returns", "stream", "take", "put", "pack", "get", "wait", "drop",
        "actor", "tell", "yields", "tally", "cancel", "kill", "gone", "group", "reserved", "remove",
        "set_key", "read_key",
    }  # fmt: skip
    specs = [op.spec for op in ops if op.spec is not None]
    assert {each.coroutines for each in specs if each.most > 1} == {True, False}
    assert {each.exact for each in specs if each.shared} == {True, False}
    assert {op.do for op in ops if op.handles} == {"call", "tell"}


def test_features_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FEATURES", dict.fromkeys(cases.FEATURES, 0.0))
    monkeypatch.setattr(cases, "SINGLY", 0.0)
    monkeypatch.setattr(cases, "KEYS", 0.0)
    ops = [op for seed in range(60) for op in draw_case(seed).program.ops]
    assert {op.do for op in ops} == {
        "call", "lend", "map", "put", "pack", "get", "wait", "drop",
    }  # fmt: skip


@pytest.mark.slow
def test_tally_distinguishes_cancelled_calls_from_effective_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelling = [case for case in map(draw_case, range(100)) if _cancels(case)][:8]
    assert all(run_case(case).failures == [] for case in cancelling)
    monkeypatch.setattr("raytwin.chaos.fuzz.run.api_engine.TaskCancelledError", WorkerCrashedError)
    wrong = [line for case in cancelling for line in run_case(case).failures]
    assert any(" and not 1" in str(line) for line in wrong), "calls that never ran were counted"


def _cancels(case: Case) -> bool:
    return {"cancel", "tally"} <= {op.do for op in case.program.ops}
