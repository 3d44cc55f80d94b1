"""Partition: a majority goes on and a minority is given up, in both worlds; checks can fail."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.chaos.faults.plan import Plan
from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import partition
from raytwin.scenarios.figures.partition import CUTS, MAJORITY, MINORITY, SCENARIO, minority_of


def settings(**changed: Any) -> dict[str, Any]:
    return {**SCENARIO.settings("quick", {}), **changed}


def test_every_partition_in_virtual_time() -> None:
    outcome = partition.run(Request("sim", settings=settings()))
    assert all(check.ok for check in outcome.checks), outcome.checks
    rows = [row for row in outcome.rows if "recovered" in row]
    assert [row["cut"] for row in rows] == list(CUTS)
    assert [row["nodes_fenced"] for row in rows] == [2, 2, 2, 0]
    spans_s = [event["dur"] / 1e6 for event in outcome.timeline if event.get("cat") == "recovery"]
    assert spans_s == pytest.approx([row["full_s"] for row in rows if row["full_s"] is not None])
    assert {band.label for band in outcome.bands} == {*CUTS, "minority given up"}
    limit_s = settings()["limit_s"]
    assert all(row["fenced_s"] > limit_s / 2 for row in rows[:3])
    # Nothing new reaches the minority once the majority has given it up.
    cut = next(row for row in rows if row["cut"] == "both ways")
    late = [
        row for row in outcome.rows
        if row.get("side") and row["cut"] == "both ways"
        and cut["fenced_s"] + 0.1 < row["since_cut_s"] < cut["healed_s"]
    ]  # fmt: skip
    assert sum(row["began_per_s"] for row in late if row["side"] == MINORITY) == 0
    assert sum(row["began_per_s"] for row in late if row["side"] == MAJORITY) > 0


def test_the_same_seed_gives_the_same_rows() -> None:
    one, other = (partition.run(Request("sim", settings=settings())) for _ in range(2))
    assert one.rows == other.rows


def check_values(outcome: Outcome) -> None:
    """Right values and plans that are carried out; rates belong to quiet machines."""
    ok = {check.name: check.ok for check in outcome.checks}
    for name in (
        "every step of the plans was carried out",
        "no operation hangs",
        "every task came to its value, and every call took effect once, in order",
    ):
        assert ok[name], outcome.checks
    rows = [row for row in outcome.rows if "recovered" in row]
    lasting = [row for row in rows if row["nodes_expected"]]
    assert lasting and all(row["nodes_fenced"] == row["nodes_expected"] for row in lasting)


@pytest.mark.slow
def test_on_real_processes() -> None:
    check_values(partition.run(Request("local", settings=settings(limit_s=1.0))))


def test_the_minority_has_less_than_half() -> None:
    for count in range(3, 12):
        minority = minority_of(count)
        assert 0 < 2 * len(minority) < count
        assert 0 not in minority
    assert minority_of(5) == [3, 4]


def test_one_way_the_first_set_is_not_heard() -> None:
    def lost(cut: str) -> set[str]:
        plan: Plan = partition.plan(cut, 3, 1.0)
        step = plan.steps[0]
        parts = step.target.expand(step.action, step.parameters, ())
        return {str(target) for _, _, target, _ in parts}

    assert lost("minority not heard") == {"link:2>head", "link:2>0", "link:2>1"}
    assert lost("minority hears nothing") == {"link:head>2", "link:0>2", "link:1>2"}
    assert lost("both ways") == lost("minority not heard") | lost("minority hears nothing")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"wrong": 1}, "every call took effect once"),
        ({"errors": 1}, "every call took effect once"),
        ({"hung": 1}, "hangs"),
        ({"steps_missed": 1}, "every step"),
        ({"nodes_fenced": 1}, "given up"),
        ({"others_died": 1}, "given up"),
        ({"majority_per_s": 20.0}, "majority went on"),
        ({"recovered": False}, "full throughput"),
    ],
)
def test_checks_fail(changed: dict[str, Any], says: str) -> None:
    good = {
        "cut": "both ways", "recovered": True, "fenced_s": 0.6, "healed_s": 1.2, "full_s": 0.7,
        "latency_max_s": 0.7, "majority_per_s": 60.0, "offered_per_s": 60, "executed_again": 1,
        "operations": 10, "wrong": 0, "errors": 0, "hung": 0, "steps_missed": 0,
        "nodes_fenced": 2, "nodes_expected": 2, "others_died": 0,
    }  # fmt: skip
    outcome = Outcome(rows=[good, {**good, **changed}])
    partition._judge(outcome)
    failed = [check.name for check in outcome.checks if not check.ok]
    assert len(failed) == bool(says)
    assert all(says in name for name in failed)


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 3 nodes, not 2"):
        partition.run(Request("sim", nodes=(2,), settings=settings()))
