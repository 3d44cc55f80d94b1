"""A slow network: loads wait for whole delays, in both worlds; checks can fail."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import slow_network
from raytwin.scenarios.figures.slow_network import LOADS, SCENARIO


def settings(**changed: Any) -> dict[str, Any]:
    return {**SCENARIO.settings("quick", {}), **changed}


def elapsed_s(outcome: Outcome) -> dict[tuple[str, float], float]:
    return {(row["load"], row["delay_ms"]): row["elapsed_s"] for row in outcome.rows}


def check(outcome: Outcome, most_ms: float) -> None:
    """All is right, and each load takes longer by at least two crossings of a link."""
    assert all(check.ok for check in outcome.checks), outcome.checks
    found = elapsed_s(outcome)
    for load in LOADS:
        assert found[load, most_ms] - found[load, 0.0] > 1.9 * most_ms / 1000, load


def test_in_virtual_time() -> None:
    outcome = slow_network.run(Request("sim", settings=settings()))
    check(outcome, 200.0)
    # A pass costs a message and its answer, a call the same: what is in between costs no delay.
    assert outcome.metrics["delays_per_operation_ring_of_actors"] == pytest.approx(2, rel=0.01)
    (ring,) = [finding for finding in outcome.findings if finding.startswith("Ring of actors")]
    # (171 s - 25 s) / 0.2 s / 1,000 passes.
    assert "the delay of 2 links in turn. In the ring of Ray's maintainers a pass waited" in ring
    assert "for 0.73 of them" in ring
    found = elapsed_s(outcome)
    for load in LOADS:
        assert found[load, 0.0] < found[load, 50.0] < found[load, 200.0]


def test_the_same_seed_gives_the_same_rows() -> None:
    one, other = (slow_network.run(Request("sim", settings=settings())) for _ in range(2))
    assert one.rows == other.rows


@pytest.mark.slow
def test_on_real_processes() -> None:
    small = settings(delays_ms=(0.0, 60.0), tasks=20)
    check(slow_network.run(Request("local", settings=small)), 60.0)


@pytest.mark.parametrize(
    ("right", "missed", "died", "says"),
    [
        (True, 0, 0, ""),
        (False, 0, 0, "every value"),
        (True, 1, 0, "every link"),
        (True, 0, 1, "taken for dead"),
    ],
)
def test_checks_fail(right: bool, missed: int, died: int, says: str) -> None:
    row = {"delay_ms": 0.0, "count": 1, "elapsed_s": 1.0}
    outcome = Outcome(rows=[{**row, "load": load, "right": right} for load in LOADS])
    slow_network._judge(outcome, settings(delays_ms=(0.0,)), missed, died)
    failed = [check.name for check in outcome.checks if not check.ok]
    assert len(failed) == bool(says)
    assert all(says in name for name in failed)


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 3 nodes, not 2"):
        slow_network.run(Request("sim", nodes=(2,), settings=settings()))
