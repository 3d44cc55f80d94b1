"""Figure 11b: actors move, state survives, checkpoints save replays; and checks can fail."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.scenarios.core.executions import Execution, Executions
from raytwin.scenarios.core.scenario import Request, UsageError
from raytwin.scenarios.figures import fig11b
from raytwin.scenarios.figures.fig11b import HOST, WITH, WITHOUT

SMALL = {
    "actors": 10, "steps": 8, "kill_step": 5, "period_s": 0.3, "method_s": 0.002,
    "checkpoint_interval": 2,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_actors_of_killed_nodes_move_and_lose_nothing(backend: str) -> None:
    outcome = fig11b.run(Request(backend, settings=SMALL))
    checks = {check.name: check for check in outcome.checks}
    failed = [check for check in outcome.checks if not check.ok]
    few, many = (outcome.metrics[f"replays_{policy}_checkpoints"] for policy in ("with", "without"))
    # Each actor replays one call of five with a checkpoint every two, which is more than a tenth.
    assert [check.name.partition(",")[2] for check in failed] == [
        " checkpoints save at least nine of ten replays"
    ] * (10 * few > many), checks
    if backend == "sim":
        assert (few, many) == (2, 10)
    else:
        # The call that is made when the nodes die may run before a busy machine kills them.
        assert 0 <= few <= 2 and 10 <= many <= 12
    # Counted where they happened: after the fault, not in every row.
    rows = [row for row in outcome.rows if row["policy"] == WITHOUT]
    assert sum(row["replays"] for row in rows) == many
    assert sum(row["first_executions"] for row in rows) == 80
    # A call of each actor had begun on a node that died. The actor of the node that dies first may
    # start again, and replay its calls, on the other one before that dies, too.
    at_once = 2 if backend == "sim" else 2 + SMALL["kill_step"] + 1
    assert sum(row["re_executions"] for row in rows) <= at_once
    fault_s = SMALL["kill_step"] * SMALL["period_s"]
    assert all(row["time_s"] > fault_s - SMALL["period_s"] for row in rows if row["replays"])
    assert {row["actors_moved"] for row in outcome.rows} == {2}
    spans_s = [event["dur"] / 1e6 for event in outcome.timeline if event.get("cat") == "recovery"]
    found = [value for name, value in outcome.metrics.items() if name.startswith("recovery_s")]
    assert spans_s[: len(found)] == pytest.approx(found)


def ran(first: int, replays: int) -> Executions:
    some = [Execution(b"", "worker:1.0", 1.0)]
    return Executions(some * first, [], some * replays)


def test_a_lost_call_is_seen() -> None:
    """The checks fail if one call took effect twice or not at all, or did not run."""
    outcome_of: dict[str, Any] = {
        name: fig11b._Run(0.0, [[1.0]], wrong, ran(first, replays), 2, 2, 1.0, [])
        for name, wrong, first, replays in ((WITH, 1, 79, 1), (WITHOUT, 0, 80, 20))
    }
    outcome = fig11b.Outcome(rows=[])
    fig11b._judge(outcome, HOST, outcome_of, SMALL, True)
    assert [check.ok for check in outcome.checks] == [False, True, False, True, True, True, True]


def test_actors_that_nodes_share_unevenly() -> None:
    """Fifteen actors on ten nodes: one node has two of them, another one."""
    outcome = fig11b.run(Request("sim", settings={**SMALL, "actors": 15}))
    moved = [check for check in outcome.checks if "moved" in check.name]
    assert len(moved) == 2 and all(check.ok for check in moved), moved


def test_an_actor_that_moved_without_need_is_seen() -> None:
    for moved, ok in ((1, False), (2, True), (3, False)):
        outcome = fig11b.Outcome(rows=[])
        run = fig11b._Run(0.0, [[1.0]], 0, ran(80, 20), moved, 2, 1.0, [])
        fig11b._judge(outcome, HOST, {WITH: run, WITHOUT: run}, SMALL, True)
        checks = [check.ok for check in outcome.checks if "moved" in check.name]
        assert checks == [ok, ok]


def test_checkpoints_that_save_too_few_replays_are_seen() -> None:
    for few, many, ok in ((1, 10, True), (2, 10, False), (2, 12, False), (0, 0, False)):
        outcome = fig11b.Outcome(rows=[])
        runs = {
            policy: fig11b._Run(0.0, [[1.0]], 0, ran(80, replays), 2, 2, 1.0, [])
            for policy, replays in ((WITH, few), (WITHOUT, many))
        }
        fig11b._judge(outcome, HOST, runs, SMALL, True)
        assert [check.ok for check in outcome.checks if "save" in check.name] == [ok], (few, many)


def test_a_fault_after_the_end_is_refused() -> None:
    with pytest.raises(UsageError, match="kill_step"):
        fig11b.run(Request("sim", settings={**SMALL, "kill_step": 8}))
