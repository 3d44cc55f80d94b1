"""The recovery summary: to which fault a death belongs, and what its numbers count."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.faults.plan import Plan, from_data
from raytwin.chaos.faults.recovery_summary import Recovery, observed


def run(plan: dict[str, Any], until_s: float, **options: Any) -> Recovery:
    """Keep a simulated cluster busy under a plan; return how it recovered."""
    with observed(from_data(plan)) as clusters:
        ray.init(backend="sim", **{"nodes": 3, "cpus_per_node": 2, **options})
        try:
            work = ray.remote(max_retries=-1)(lambda: ray.sleep(0.05))
            while ray.now() < until_s:
                ray.get([work.remote() for _ in range(12)])
        finally:
            ray.shutdown()
    [recovery] = clusters
    return recovery


def noticed(recovery: Recovery) -> list[str]:
    """Return the faults by which something should die, each with what reported it."""
    return [f"{each.step}: {event[1:3] if event else 'not noticed'}"
            for each, event in recovery.detections()]  # fmt: skip


KILL = {"action": "kill", "target": "node:1"}


def test_a_death_is_charged_to_the_latest_fault_that_explains_it() -> None:
    slow = {"action": "latency", "target": "link:0>1", "parameters": {"latency_ms": 5}}
    recovery = run(
        {"steps": [{"at_s": 0.5, **slow}, {"at_s": 1, **KILL},
                   {"at_s": 1.5, "action": "restart", "target": "node:1"}, {"at_s": 2.5, **KILL}],
         "expect": [{"metric": "undetected", "equals": 0},
                    {"metric": "detection_max_s", "max": 0.1}]},
        until_s=3,
    )  # fmt: skip
    assert noticed(recovery) == ["kill node:1: ('node_died', 'node:1')"] * 2
    assert all(finding.ok for finding in recovery.check({})), recovery.lines()


def test_a_partition_is_what_a_silent_node_has_died_of() -> None:
    sets = {"sets": [["head", "node:0", "node:2"], ["node:1"]]}
    recovery = run(
        {"steps": [{"at_s": 0.5, "action": "partition", "target": "cluster", "parameters": sets}]},
        until_s=3, heartbeat_timeout_s=1.0,
    )  # fmt: skip
    assert noticed(recovery) == ["cut link:head>1: ('node_died', 'node:1')"]


def test_a_restart_that_waits_for_a_death_is_not_what_was_died_of() -> None:
    silent = {"at_s": 0.5, "action": "pause", "target": "node:1"}
    back = {"after": "node_died:1", "action": "restart", "target": "node:1"}
    recovery = run({"steps": [silent, back]}, until_s=3, heartbeat_timeout_s=1.0)
    assert noticed(recovery) == ["pause node:1: ('node_died', 'node:1')"]
    assert recovery.numbers()["detection_max_s"] > 0.5


def test_a_replica_that_leaves_has_left_because_of_its_link() -> None:
    recovery = run(
        {"steps": [{"at_s": 0.5, "action": "cut", "target": "link:1>replica:0.1"}]},
        until_s=3, gcs_replicas=2, heartbeat_timeout_s=0.5,
    )  # fmt: skip
    (line,) = noticed(recovery)
    assert line.startswith("cut link:1>replica:0.1: ('replica_died', 'replica:0.")


@pytest.mark.parametrize("target", ["replica:0.1", "scheduler"])
def test_the_death_of_a_replica_is_noticed(target: str) -> None:
    plan = {"steps": [{"at_s": 0.5, "action": "kill", "target": target}]}
    recovery = run(plan, until_s=1.5, gcs_replicas=2)
    [said] = noticed(recovery)
    assert said.startswith(f"kill {target}: ('replica_died', 'replica:0.")
    numbers = recovery.numbers()
    assert (numbers["replicas_died"], numbers["heads_started"]) == (1, 0)


def test_the_first_head_has_not_come_back() -> None:
    """Nor is it among what died."""
    recovery = run({"steps": []}, until_s=0.5, gcs_replicas=2)
    assert recovery.numbers()["heads_started"] == 0
    assert "what died, and when the cluster noticed:" not in recovery.lines()


def test_a_head_that_comes_back_is_noticed() -> None:
    plan = {"steps": [{"at_s": 0.5, "action": "kill", "target": "head"}]}
    recovery = run(plan, until_s=2, gcs_storage="any")
    assert noticed(recovery) == ["kill head: ('head_started', 'master')"]
    assert recovery.numbers()["heads_started"] == 1


def test_the_latency_afterwards_is_of_tasks_that_were_accepted_afterwards() -> None:
    """What waited for the fault's end has had the latency of the fault."""
    [step] = from_data({"steps": [{"at_s": 10, **KILL}]}).steps
    recovery = Recovery(Plan([step]), [Injection(10, 10, step)], 0.0)
    recovery.events = [(15, "node_died", "node:1", "", 1)]

    def ran(start_s: float, accepted_s: float) -> list[Any]:
        return ["task", 0, 1, start_s, 1.0, 1, b"", 0, 0, "task", "ok", accepted_s, []]

    recovery.ranges = [ran(5, 4.9), ran(16, 9.5), ran(20, 19.8)]
    numbers = recovery.numbers()
    assert numbers["before_latency_p99_ms"] == pytest.approx(1100)
    assert numbers["after_latency_p99_ms"] == pytest.approx(1200)
    assert numbers["after_tasks_per_s"] == pytest.approx(2 / 6)
