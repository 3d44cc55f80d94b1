"""The scenario that holds all policies to the same tasks."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.runtime.control.scheduling.policies import POLICIES
from raytwin.scenarios.core.scenario import Outcome, Request
from raytwin.scenarios.figures import policies
from raytwin.scenarios.figures.policies import EVEN, INPUTS, SCENARIO

SKEWED = "10 times as long"


def settings(**given: Any) -> dict[str, Any]:
    return {**SCENARIO.settings("quick", {}), **given}


def run(backend: str, **given: Any) -> Outcome:
    nodes = given.pop("nodes", (4,))
    return policies.run(Request(backend, nodes=nodes, settings=settings(**given)))


def test_every_policy_runs_every_load_and_all_checks_hold() -> None:
    outcome = run("sim")
    assert [check.name for check in outcome.checks if not check.ok] == []
    assert len(outcome.checks) == 4
    loads = [EVEN, SKEWED, INPUTS]
    assert [(row["policy"], row["load"]) for row in outcome.rows] == [
        (policy, load) for policy in POLICIES for load in loads
    ]
    # What is offered is done: the driver does not wait for the tasks.
    rates = {row["tasks_per_s"] for row in outcome.rows if row["load"] == EVEN}
    assert max(rates) <= 1.2 * 0.8 * 4 * 2 / 0.02
    again = run("sim", policies=("batch-sampling",))
    assert again.rows == [row for row in outcome.rows if row["policy"] == "batch-sampling"]


def test_real_processes_run_the_same_loads() -> None:
    compared = ("bottom-up", "batch-sampling", "work-stealing")
    outcome = run("local", policies=compared, tasks_per_cpu=4, nodes=(2,))
    assert [row["right"] for row in outcome.rows] == [True] * 9
    assert {row["tasks"] for row in outcome.rows} == {16}
    # A wait begins when the task is submitted.
    assert all(row["wait_p99_ms"] >= row["wait_p50_ms"] > 0 for row in outcome.rows)


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"right": False}, "every value is right"),
        ({"load": INPUTS, "policy": "random", "moved_bytes": 0}, "who knows where inputs are"),
        ({"load": EVEN, "policy": "power-of-two", "wait_mean_ms": 9.0}, "more choices shorten"),
        ({"load": SKEWED, "policy": "work-stealing", "wait_p99_ms": 5.0}, "stealing shortens"),
    ],
)
def test_each_check_can_fail(change: dict[str, Any], failed: str) -> None:
    waits_ms = {"batch-sampling": 1.0, "power-of-two": 2.0}
    rows = [
        {
            "policy": policy, "nodes": 4, "load": load, "tasks": 8, "tasks_per_s": 9.0,
            "wait_mean_ms": waits_ms.get(policy, 3.0), "wait_p50_ms": 1.0,
            "wait_p99_ms": 4.0 if policy == "work-stealing" else 5.0,
            "moved_bytes": 10 if policy in policies.BLIND else 5, "right": True,
        }
        for load in (EVEN, SKEWED, INPUTS)
        for policy in POLICIES
    ]  # fmt: skip
    outcome = Outcome(rows=rows)
    policies._judge(Request("sim", settings=settings()), outcome)
    assert all(check.ok for check in outcome.checks)
    where = {name: change[name] for name in ("load", "policy") if name in change}
    for row in rows:
        if where.items() <= row.items():
            row.update(change)
    outcome = Outcome(rows=rows)
    policies._judge(Request("sim", settings=settings()), outcome)
    assert [c.name.startswith(failed) for c in outcome.checks if not c.ok] == [True]
