"""The cases drawn for seeds of the fuzz, and that the engine runs all of their operations."""

from __future__ import annotations

import pytest

from raytwin.chaos.faults.cluster_operations import backends_with
from raytwin.chaos.faults.targets import TARGETS, Link, Nodes
from raytwin.chaos.fuzz.generate import asides, cases
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.generate.plans import cut_for_good
from raytwin.chaos.fuzz.programs.program import MORE_THAN_A_NODE, NODES_MAX
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.api.exceptions import WorkerCrashedError
from raytwin.runtime.control.scheduling.policies import POLICIES


def test_a_case_is_data() -> None:
    case = draw_case(5)
    assert isinstance(case, Case)
    assert draw_case(5) == case


def test_all_operations_are_drawn() -> None:
    drawn = [draw_case(seed) for seed in range(100)]
    ops = [op for case in drawn for op in case.program.ops]
    assert {op.do for op in ops} == {
        "call", "lend", "map", "returns", "stream", "take", "put", "pack", "get", "wait", "drop",
        "actor", "tell", "tells", "yields", "tally", "cancel", "kill", "gone", "group", "reserved",
        "remove", "set_key", "read_key", "query", "find", "ready", "waits", "look_up",
    }  # fmt: skip
    calls = [call for case in drawn for call in case.program.calls]
    assert {each.strategy for each in calls} >= {"", "SPREAD", "0", "1!", f"{NODES_MAX}!"}
    assert any(each.flaky for each in calls)
    assert any(each.cpus == MORE_THAN_A_NODE for each in calls)
    assert {each.gpus for each in calls} == {0.0, 0.5, 1.0, 2.0}
    assert {each.policy for each in drawn} == {*POLICIES, cases.BY_PATH} - {*cases.NOT_DRAWN}
    specs = [op.spec for op in ops if op.spec is not None]
    assert {each.coroutines for each in specs if each.most > 1} == {True, False}
    assert {each.exact for each in specs if each.shared} == {True, False}
    assert {op.do for op in ops if op.handles} == {"call", "tell"}


def test_all_faults_are_drawn() -> None:
    steps = [step for seed in range(300) for step in draw_case(seed).plan.steps]
    able = {
        (kind, action)
        for kind, target in TARGETS.items()
        for action, operations in target.operations.items()
        if "sim" in backends_with(operations)
    }
    # Steps on several nodes, and an end of all faults of links, are steps on single ones.
    able -= {("nodes", action) for action in Nodes.operations if action != "swizzle"}
    able -= {("cluster", "heal")}
    assert {(step.target.kind, step.action) for step in steps} == able


def test_links_between_all_kinds_of_processes_are_drawn() -> None:
    links = [
        step.target
        for seed in range(300)
        for step in draw_case(seed).plan.steps
        if isinstance(step.target, Link)
    ]
    kinds = {frozenset(end.partition(":")[0] for end in (a.source, a.destination)) for a in links}
    assert kinds == {
        frozenset(each)
        for each in (
            ("node",), ("node", "head"), ("node", "replica"), ("head", "replica"), ("replica",)
        )
    }  # fmt: skip


def test_the_driver_s_node_and_the_head_are_never_cut_off_for_good() -> None:
    cut = [link for seed in range(300) for link in cut_for_good(draw_case(seed).plan)]
    assert {link.source for link in cut} >= {"head", "node:0", "node:1"}
    home = {"head", "node:0"}
    assert all({link.source, link.destination} != home for link in cut)


def test_features_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FEATURES", dict.fromkeys(cases.FEATURES, 0.0))
    monkeypatch.setattr(cases, "SINGLY", 0.0)
    monkeypatch.setattr(cases, "KEYS", 0.0)
    monkeypatch.setattr(cases, "ASKING", 0.0)
    monkeypatch.setattr(asides, "ASIDES", 0.0)
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
