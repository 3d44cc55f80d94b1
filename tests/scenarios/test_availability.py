"""Availability: goodput falls with the rate of faults, and nothing is lost; checks can fail."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import availability
from raytwin.scenarios.figures.availability import SCENARIO, plan


def settings(**changed: Any) -> dict[str, Any]:
    return {**SCENARIO.settings("quick", {}), **changed}


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [row for row in outcome.rows if "goodput" in row]


def test_in_virtual_time() -> None:
    few = settings(intervals_s=(20.0, 1.0), faults=6)
    outcome = availability.run(Request("sim", settings=few))
    assert all(check.ok for check in outcome.checks), outcome.checks
    rare, frequent = rows(outcome)
    assert frequent["goodput"] < rare["goodput"] <= 1
    assert frequent["latency_p99_s"] > rare["latency_p99_s"]
    assert len(outcome.bands) == 6
    faults = [event["pid"] for event in outcome.timeline if event.get("cat") == "fault"]
    assert {pid.partition(":")[0] for pid in faults} == {"every 20 s", "every 1 s"}
    assert all(band.start <= band.end for band in outcome.bands)


def test_the_same_seed_gives_the_same_rows() -> None:
    few = settings(intervals_s=(1.0,))
    one, other = (availability.run(Request("sim", settings=few)) for _ in range(2))
    assert one.rows == other.rows


@pytest.mark.slow
def test_on_real_processes() -> None:
    """Right values and plans that are carried out; goodput belongs to quiet machines."""
    small = settings(real_interval_max_s=1.0, limit_s=2.0)
    outcome = availability.run(Request("local", settings=small))
    assert all(check.ok for check in outcome.checks), outcome.checks
    assert [row["interval_s"] for row in rows(outcome)] == [1.0]


def test_a_plan_is_the_seeds() -> None:
    one, same, other = (plan(10.0, 6, 1.0, 3, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert [step.action for step in one.steps] == [
        "kill", "restart", "pause", "restart", "kill",
        "kill", "restart", "pause", "restart", "kill",
    ]  # fmt: skip
    assert all(step.at_s < 60 for step in one.steps)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"wrong": 1}, "every call took effect once"),
        ({"errors": 1}, "every call took effect once"),
        ({"hung": 1}, "hangs"),
        ({"steps_missed": 1}, "every step"),
    ],
)
def test_checks_fail(changed: dict[str, Any], says: str) -> None:
    good = {
        "interval_s": 1.0, "goodput": 0.9, "operations": 10, "latency_p99_s": 0.5,
        "executed_again": 1, "replayed": 0, "wrong": 0, "errors": 0, "hung": 0, "steps_missed": 0,
    }  # fmt: skip
    outcome = Outcome(rows=[good, {**good, **changed}])
    availability._judge(outcome)
    failed = [check.name for check in outcome.checks if not check.ok]
    assert len(failed) == bool(says)
    assert all(says in name for name in failed)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request("sim", nodes=(2,), settings=settings()), "at least 3 nodes, not 2"),
        (Request("local", settings=settings(real_interval_max_s=0.5)), "real_interval_max_s"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        availability.run(request_)
