"""Recovery: each fault is measured in both worlds, and its checks can fail."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api.backend import current
from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import recovery
from raytwin.scenarios.figures.recovery import QUICK, SCENARIO
from raytwin.scenarios.workloads.episodes import Pace, run_episode
from raytwin.scenarios.workloads.single_faults import FAULTS, NOTICED
from raytwin.scenarios.workloads.steady_load import Answer, SteadyLoad, nodes


def settings(**changed: Any) -> dict[str, Any]:
    return {**SCENARIO.settings("quick", {}), **changed}


def episodes(outcome: Outcome) -> list[dict[str, Any]]:
    return [row for row in outcome.rows if "recovered" in row]


def test_every_fault_in_virtual_time() -> None:
    outcome = recovery.run(Request("sim", settings=settings(faults=tuple(FAULTS))))
    assert all(check.ok for check in outcome.checks), outcome.checks
    found = episodes(outcome)
    assert [(row["fault"], row["offered_per_s"]) for row in found] == [
        (fault, rate) for rate in (60, 150) for fault in FAULTS
    ]
    assert {row["fault"] for row in found if row["detect_s"] is not None} == set(NOTICED)
    limit_s = settings()["limit_s"]
    for row in found:
        if row["fault"] == "node silent":
            # The last thing that the cluster heard of it was at most a heartbeat earlier.
            assert limit_s - 0.2 < row["detect_s"] <= row["first_result_s"] <= row["full_s"]
        elif row["fault"] in ("link cut", "link stalled"):
            assert row["executed_again"] == 0
            assert row["first_result_s"] >= 0.25 * limit_s - 1e-6
        # Where a replica of the GCS is killed, something waits for the GCS.
        waited_s = row["gcs_latency_max_s"]
        assert (waited_s is not None) == (row["fault"] == "GCS replica killed")
        name = f"{row['fault'].replace(' ', '_')}_{row['offered_per_s']}_per_s"
        assert outcome.metrics[f"latency_max_s_p50_{name}"] == row["latency_max_s"], name
        if waited_s is not None:
            assert outcome.metrics[f"gcs_latency_max_s_p99_{name}"] == waited_s > 0
    assert [band.label for band in outcome.bands] == list(FAULTS)
    spans_s = [event["dur"] / 1e6 for event in outcome.timeline if event.get("cat") == "recovery"]
    full_s = [row["full_s"] for row in found if row["full_s"] is not None]
    assert spans_s == pytest.approx(full_s), "the timeline has what the rows have"
    assert {row["fault"] for row in outcome.rows if row.get("ended_per_s")} == set(FAULTS)


def test_the_same_seed_gives_the_same_rows() -> None:
    few = settings(faults=("node killed",), rates_per_s=(60,))
    one, other = (recovery.run(Request("sim", settings=few)) for _ in range(2))
    assert one.rows == other.rows


@pytest.mark.slow
def test_on_real_processes() -> None:
    """Right values, and plans that are carried out; times belong to quiet machines."""
    small = settings(rates_per_s=(60,), limit_s=4.0)
    outcome = recovery.run(Request("local", settings=small))
    ok = {check.name: check.ok for check in outcome.checks}
    full = ok.pop("full throughput came back after every fault")
    assert all(ok.values()), outcome.checks
    assert full or any(not row["recovered"] for row in episodes(outcome))
    assert [row["fault"] for row in episodes(outcome)] == list(QUICK)


def judged(**changed: Any) -> list[str]:
    """Return which checks fail if one episode of three is as given."""
    good = {
        "fault": "node killed", "offered_per_s": 60, "gcs_latency_max_s": None,
        "recovered": True, "detect_s": 0.1, "first_result_s": 0.2,
        "full_s": 0.3, "latency_max_s": 0.3, "dip_operations": 2, "over_s": 0.3,
        "executed_again_per_useful": 0.1, "executed_again": 1, "replayed": 0, "operations": 10,
        "wrong": 0, "errors": 0, "hung": 0, "steps_missed": 0, "nodes_given_up": 0,
    }  # fmt: skip
    outcome = Outcome(rows=[good, good, {**good, **changed}])
    outcome.metrics["hung"] = changed.get("hung", 0)
    recovery._judge(outcome, settings(faults=("node killed",)))
    return [check.name for check in outcome.checks if not check.ok]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"wrong": 1}, "every call took effect once"),
        ({"errors": 1}, "every call took effect once"),
        ({"hung": 1}, "hangs"),
        ({"steps_missed": 1}, "every step"),
        ({"detect_s": None}, "noticed every death"),
        ({"recovered": False, "full_s": None}, "full throughput"),
    ],
)
def test_checks_fail(changed: dict[str, Any], says: str) -> None:
    failed = judged(**changed)
    assert len(failed) == bool(says)
    assert all(says in name for name in failed)


def test_a_node_that_no_plan_starts_again_is_back_for_the_next_episode() -> None:
    """As when a busy machine takes it for dead: what is pinned to it must not wait for ever."""
    ray.init(backend="sim", nodes=nodes(2, 2), heartbeat_timeout_s=0.5)
    try:
        load = SteadyLoad(40, 0.02, 2, True, "")
        load.warm_up(4)
        killed = Plan([Step("kill", "node:1", 0.0)])
        episode = run_episode(current(), load, killed, Pace(0.2, 0.3, 5.0))
        assert episode.unplanned == (1,)
        assert load.finish(5.0) == 0
        assert {each.answer for each in load.operations} == {Answer.RIGHT}
        assert run_episode(current(), load, Plan(), Pace(0.2, 0.3, 5.0)).unplanned == ()
    finally:
        ray.shutdown()


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 3 nodes, not 2"):
        recovery.run(Request("sim", nodes=(2,), settings=settings()))
