"""Figure 11a: when its checks of throughput fail."""

from __future__ import annotations

import pytest

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
