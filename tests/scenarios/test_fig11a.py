"""Figure 11a: when its checks of throughput fail, and when throughput is back."""

from __future__ import annotations

import pytest

from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.faults.plan import Step
from raytwin.chaos.faults.targets import Node
from raytwin.scenarios.figures import fig11a


def rows(before: float, without: float, after: float) -> list[dict[str, float]]:
    """Return a row for each 5 s of the paper's time: rates of five nodes, two and five."""
    found = []
    for time_s in range(0, int(fig11a.END_S), 5):
        rate, nodes = (before, 5) if time_s < fig11a.REMOVED_S[0] else (without, 2)
        if time_s >= fig11a.ADDED_S:
            rate, nodes = after, 5
        found.append(
            {"paper_time_s": time_s, "tasks_per_s": rate, "tasks_per_s_per_node": rate / nodes}
        )
    return found


@pytest.mark.parametrize(
    ("rates", "stable", "returns"),
    [
        ((100, 40, 100), True, True),
        ((78, 40, 92), True, True),
        ((60, 40, 92), True, True),
        ((100, 31, 86), True, True),
        ((100, 29, 100), False, True),
        ((100, 40, 84), True, False),
        ((100, 20, 40), False, False),
    ],
)
def test_only_lower_rates_fail(
    rates: tuple[float, float, float], stable: bool, returns: bool
) -> None:
    assert [check.ok for check in fig11a.throughput_checks(rows(*rates))] == [stable, returns]


def test_throughput_is_back_with_the_first_stretch_that_has_it_after_the_nodes_return() -> None:
    steps = [("kill", 1, 25.0), ("kill", 2, 50.0), ("restart", 1, 210.0), ("restart", 2, 211.0)]
    injections = [
        Injection(at_s, 1000.0 + at_s, Step(action, Node(node), at_s))
        for action, node, at_s in steps
    ]
    found = [{**row, "time_s": row["paper_time_s"] + 2.5} for row in rows(100, 40, 90)]
    for row in found:
        if row["time_s"] == 217.5:
            row["tasks_per_s"] = 60.0
    spans = fig11a._recovery(found, {"bucket_s": 5.0}, 1000.0, injections)
    assert [(span["ts"] / 1e6, span["dur"] / 1e6) for span in spans] == [
        (1025.0, 200.0), (1050.0, 175.0),
    ]  # fmt: skip
    never = [{**row, "tasks_per_s": 84.0} if row["time_s"] > 200 else row for row in found]
    assert fig11a._recovery(found, {"bucket_s": 5.0}, 1000.0, injections[:2]) == []
    assert fig11a._recovery(never, {"bucket_s": 5.0}, 1000.0, injections) == []
