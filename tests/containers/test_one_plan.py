"""One fault plan in every world: the same faults, the same values."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.plan_files import load
from raytwin.chaos.faults.recovery_summary import observed
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.figures import availability, fig11a, partition, recovery, slow_network
from tests.chaos.test_link_faults import Program
from tests.containers.conftest import Start
from tests.containers.programs import Counter, double, doubles_are_right, on
from tests.processes.helpers import LIMIT_S, eventually
from tests.scenarios.test_execute_under_faults import survives

pytestmark = pytest.mark.docker

PLAN = """{"steps": [
  {"at_s": 0.1, "action": "kill", "target": "node:1"},
  {"after": "node_died:1", "delay_s": 0.1, "action": "restart", "target": "node:1"},
  {"after": "node_added:1", "action": "pause", "target": "node:2"},
  {"after": "node_added:1", "delay_s": 0.1, "action": "resume", "target": "node:2"},
  {"after": "node_added:1", "delay_s": 0.2, "action": "kill", "target": "worker:2.0"},
  {"after": "node_added:1", "delay_s": 0.25, "action": "pause", "target": "actor:0"},
  {"after": "node_added:1", "delay_s": 0.28, "action": "resume", "target": "actor:0"},
  {"after": "node_added:1", "delay_s": 0.3, "action": "kill", "target": "actor:0"},
  {"after": "node_added:1", "delay_s": 0.4, "action": "add_node", "target": "cluster"},
  {"after": "node_added:3", "action": "remove_node", "target": "node:2"},
  {"after": "node_died:2", "action": "kill", "target": "node:0"}
]}"""
STEPS = PLAN.count("action")


def run_under_the_plan(
    start: Start, backend: str, plan: Path
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the faults in the order in which they were injected, what became of nodes, and the
    program's values."""
    session = start(backend=backend, heartbeat_timeout_s=5.0)
    counter = on(Counter, 0).remote()
    ray.get([counter.add.remote(0), *(on(double, node).remote(0) for node in range(3))])
    injector = attach(session, load(plan))
    deadline = time.monotonic() + 2 * LIMIT_S
    rounds = 0
    while len(injector.injections) < STEPS:
        rounds += 1
        assert time.monotonic() < deadline, injector.injections
        assert ray.get(counter.add.remote(1), timeout=LIMIT_S) == rounds
        doubles_are_right(20)
        ray.sleep(0.01)
    injector.stop()
    values = ray.get([double.remote(i) for i in range(100)], timeout=LIMIT_S)
    rows = session.query("events")
    nodes = [(kind, node) for _, kind, node, *_ in rows if kind in ("node_added", "node_died")]
    ray.shutdown()
    return [(str(each.step), each.error) for each in injector.injections], nodes, values


def test_a_plan_has_the_same_faults_and_values_in_every_world(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(PLAN)
    local = run_under_the_plan(start, "local", plan)
    assert [step for step, _ in local[0]] == [
        "kill node:1", "restart node:1", "pause node:2", "resume node:2", "kill worker:2.0",
        "pause actor:0", "resume actor:0", "kill actor:0", "add_node cluster",
        "remove_node node:2", "kill node:0",
    ]  # fmt: skip
    assert ["the driver's own" in error for _, error in local[0]] == [False] * 10 + [True]
    # The nodes that start with the cluster register in any order.
    assert local[1][3:] == [
        ("node_died", "node:1"), ("node_added", "node:1"),
        ("node_added", "node:3"), ("node_died", "node:2"),
    ]  # fmt: skip
    for backend in ("sim", "docker"):
        faults, nodes, values = run_under_the_plan(start, backend, plan)
        assert (faults, nodes[3:], values) == (local[0], local[1][3:], local[2])


LINKS = """
steps:
  - {at_s: 0.1, action: latency, target: "link:0>1", parameters: {latency_ms: 20, jitter_ms: 5}}
  - {at_s: 0.2, action: bandwidth, target: "link:2>head", parameters: {bytes_per_s: 1000000}}
  - {at_s: 0.3, action: reset, target: "link:1>2", parameters: {kind: rst}}
  - {at_s: 0.4, action: reset, target: "link:2>0", parameters: {kind: fin}}
  - {name: stalled, at_s: 0.5, action: stall, target: "link:1>2"}
  - {name: goes-on, after: stalled, delay_s: 0.3, action: heal, target: "link:1>2"}
  - name: apart
    after: goes-on
    delay_s: 0.1
    action: partition
    target: cluster
    parameters: {sets: [[head, "node:0", "node:1"], ["node:2"]]}
  - {after: apart, delay_s: 0.3, action: heal, target: cluster}
expect:
  - {metric: faults, equals: 19}
  - {metric: faults_failed, equals: 0}
  - {metric: errors, equals: 0}
  - {metric: nodes_died, equals: 0}
  - {metric: workers_died, equals: 0}
"""
"""A partition of one node from two and the head is six cuts; the last step heals these and the slow
link of the first step."""


@pytest.mark.toxiproxy
def test_a_plan_that_breaks_links_runs_in_every_world(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(LINKS)
    done = {}
    for backend in ("sim", "local", "docker"):
        plan = load(path)
        with observed(plan) as clusters:
            start(backend=backend, heartbeat_timeout_s=5.0)
            (recovery,) = clusters
            program = Program()
            program.run(60, lambda _: None)
            assert recovery.cluster is not None
            while not recovery.cluster[1].finished:
                ray.sleep(0.05)
            program.check()
            ray.shutdown()
        assert [finding for finding in recovery.check({}) if not finding.ok] == [], backend
        done[backend] = [str(each.step) for each in recovery.injections]
    assert done["sim"] == done["local"] == done["docker"]


@pytest.mark.parametrize("backend", ["sim", "local", "docker"])
def test_pressure_on_memory_kills_a_process_and_no_value(start: Start, backend: str) -> None:
    """A worker's, where a node has no memory of its own; the kernel may choose the node's."""
    all_of_it = {"nbytes": 1 << 40}
    plan = Plan(
        [
            Step("memory_pressure", "node:1", 0.2, parameters=all_of_it, name="full"),
            Step("heal", "node:1", None, "full", 0.2),
        ]
    )
    limits = {"container_memory_bytes": 256 << 20, "object_store_memory": 16 << 20}
    with observed(plan) as clusters:
        session = start(
            backend=backend, nodes=2, heartbeat_timeout_s=5.0,
            **(limits if backend == "docker" else {}),
        )  # fmt: skip
        (recovery,) = clusters
        assert recovery.cluster is not None
        while not recovery.cluster[1].finished:
            doubles_are_right(5)
            ray.sleep(0.05)
        doubles_are_right(20)
        while not {"worker_died", "node_died"} & {*session.query("event_counts")}:
            ray.sleep(0.05)
        ray.shutdown()
    found = recovery.numbers()
    assert found["faults_failed"] == 0 or found["nodes_died"] == 1, recovery.lines()
    assert found["errors"] == 0 and found["workers_died"] + found["nodes_died"] >= 1


def test_a_script_of_somebody_else_in_containers(docker_engine: Any, tmp_path: Path) -> None:
    """Nobody reaps a container for the head, which has the limit of silence to notice its end."""
    survives(tmp_path, "docker", "heartbeat_timeout_s=1.5", noticed="[1-4]")


def test_figure_11a_in_containers(docker_engine: Any) -> None:
    """Right values and a plan that is carried out; rates belong to quiet machines."""
    small = {"time_factor": 0.05, "task_ms": 20.0, "bucket_s": 0.1, "chains_per_cpu": 2}
    settings = {**fig11a.SCENARIO.settings("quick", {}), **small}
    outcome = fig11a.run(Request("docker", nodes=(3,), settings=settings))
    ok = {check.name: check.ok for check in outcome.checks}
    assert ok["every chain came to what a run without faults comes to"], outcome.checks
    assert ok["every step of the plan was carried out"], outcome.checks
    assert [str(step) for step in fig11a.plan({**settings, "nodes": 3}).steps] == [
        "kill node:1", "kill node:2", "restart node:1", "restart node:2",
    ]  # fmt: skip
    assert sum(row["tasks_first"] for row in outcome.rows) == outcome.metrics["links"]
    assert not ray.is_initialized()
    eventually(lambda: not docker_engine.networks.list(filters={"label": "raytwin.cluster"}))


@pytest.mark.slow
def test_partitions_of_containers(docker_engine: Any) -> None:
    """Right values, plans that are carried out, a minority of one node that is given up."""
    settings = partition.SCENARIO.settings("quick", {})
    outcome = partition.run(Request("docker", nodes=(3,), settings=settings))
    failed = {check.name for check in outcome.checks if not check.ok}
    # These are about rates, which belong to quiet machines.
    assert all("throughput" in name or "rate" in name for name in failed), outcome.checks
    assert outcome.parameters["minority"] == [2]
    local = partition.plan("both ways", 3, settings["limit_s"])
    docker = partition.plan("both ways", 3, outcome.parameters["limit_used_s"])
    assert [str(step) for step in local.steps] == [str(step) for step in docker.steps]


@pytest.mark.slow
def test_frequent_faults_of_containers(docker_engine: Any) -> None:
    """Every value is right, whatever part of them came in time."""
    settings = availability.SCENARIO.settings("quick", {})
    small = {**settings, "intervals_s": (2.0,), "limit_s": 2.0}
    outcome = availability.run(Request("docker", nodes=(3,), settings=small))
    assert all(check.ok for check in outcome.checks), outcome.checks


@pytest.mark.slow
def test_slow_links_of_containers(docker_engine: Any) -> None:
    """A call waits for the delay of two links, there and back."""
    settings = slow_network.SCENARIO.settings("quick", {})
    small = {**settings, "delays_ms": (0.0, 60.0), "tasks": 20}
    outcome = slow_network.run(Request("docker", nodes=(3,), settings=small))
    assert all(check.ok for check in outcome.checks), outcome.checks
    elapsed_s = {row["delay_ms"]: row["elapsed_s"] for row in outcome.rows
                 if row["load"] == "calls in turn"}  # fmt: skip
    assert elapsed_s[60.0] - elapsed_s[0.0] > small["in_turn"] * 2 * 0.055


@pytest.mark.slow
def test_recovery_in_containers(docker_engine: Any) -> None:
    settings = recovery.SCENARIO.settings("quick", {})
    small = {
        **settings,
        "rates_per_s": (60,),
        "faults": ("actor killed", "node killed", "link cut"),
    }
    outcome = recovery.run(Request("docker", nodes=(3,), settings=small))
    failed = {check.name for check in outcome.checks if not check.ok}
    # This check compares rates, which vary on a busy machine.
    assert failed <= {"full throughput came back after every fault"}, outcome.checks
