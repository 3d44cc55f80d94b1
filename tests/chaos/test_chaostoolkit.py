"""An experiment of Chaos Toolkit's, which Chaos Toolkit runs; and what its module refuses."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

import pytest
from chaoslib.experiment import run_experiment

import raytwin as ray
from raytwin.chaos import chaostoolkit
from raytwin.chaos.faults.plan import PlanError
from raytwin.runtime.api.exceptions import RaySystemError

EXPERIMENT = """
{
  "title": "A cluster survives the loss of a node",
  "steady-state-hypothesis": {
    "title": "All is well",
    "probes": [
      {"type": "probe", "name": "a cluster", "tolerance": true,
       "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                    "func": "start_cluster", "arguments": {"backend": "BACKEND", "nodes": 3}}},
      {"type": "probe", "name": "nodes", "tolerance": 3,
       "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                    "func": "nodes_alive"}},
      {"type": "probe", "name": "tasks", "tolerance": true,
       "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                    "func": "tasks_are_right", "arguments": {"count": 50, "timeout_s": 60}}}
    ]
  },
  "method": [
    {"type": "action", "name": "pause",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "pause_node", "arguments": {"node": 1}}},
    {"type": "action", "name": "go on",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "resume_node", "arguments": {"node": 1}}},
    {"type": "action", "name": "lose a worker",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "kill_worker", "arguments": {"node": 0}}},
    {"type": "action", "name": "lose a node",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "kill_node", "arguments": {"node": 1}}},
    {"type": "action", "name": "replace it",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "add_node", "arguments": {"resources": {"CPU": 2}}},
     "pauses": {"after": PAUSE_S}},
    {"type": "probe", "name": "time passes, virtual time, too",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "tasks_are_right", "arguments": {"count": 2000}}}
  ]
}
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    ray.shutdown()


@pytest.mark.parametrize(("backend", "pause_s"), [("sim", "0"), ("local", "5")])
def test_an_experiment(backend: str, pause_s: str) -> None:
    experiment = json.loads(EXPERIMENT.replace("BACKEND", backend).replace("PAUSE_S", pause_s))
    journal = run_experiment(experiment)
    said = [run["output"] for run in journal["run"]]
    assert said == [
        "suspend node 1.", "resume node 1.", "kill worker 0 of node 0.", "kill node 1.",
        "add a node to the cluster with CPU 2.", True,
    ]  # fmt: skip
    assert journal["status"] == "completed" and not journal["deviated"]
    assert journal["steady_states"]["after"]["steady_state_met"]
    assert chaostoolkit.event_count("node_died") == 1
    chaostoolkit.end_cluster()
    assert not ray.is_initialized()


def test_an_experiment_whose_cluster_lost_a_node_deviates() -> None:
    experiment = json.loads(EXPERIMENT.replace("BACKEND", "sim").replace("PAUSE_S", "0"))
    del experiment["method"][-2]
    assert run_experiment(experiment)["deviated"]


def test_a_plan_goes_on_while_the_experiment_does() -> None:
    chaostoolkit.start_cluster("sim")
    step = {"at_s": 1, "action": "kill", "target": "nodes:1,2"}
    assert chaostoolkit.apply_plan({"steps": [step]}) == ["1. At 1 s, kill nodes 1 and 2."]
    assert chaostoolkit.nodes_alive() == 3
    ray.sleep(2)
    assert chaostoolkit.nodes_alive() == 1
    assert chaostoolkit.tasks_are_right(10)


PARTITION = {"sets": [["head", "node:0"], ["node:1"]]}


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_an_experiment_breaks_links_and_heals_them(backend: str) -> None:
    """`start_cluster` sees to it that they can be broken."""
    chaostoolkit.start_cluster(backend, nodes=2)
    chaostoolkit.inject("latency", "link:0>1", {"latency_ms": 5})
    chaostoolkit.inject("reset", "link:1>0")
    chaostoolkit.inject("partition", "cluster", PARTITION)
    assert chaostoolkit.inject("heal", "cluster") == "heal the cluster."
    assert chaostoolkit.apply_plan(
        {"steps": [{"at_s": 0, "action": "stall", "target": "link:0>1"},
                   {"at_s": 0.2, "action": "heal", "target": "cluster"}]}
    )  # fmt: skip
    for _ in range(1000):
        if chaostoolkit.plan_carried_out():
            break
        ray.sleep(0.03)
    assert chaostoolkit.plan_carried_out()
    assert chaostoolkit.tasks_are_right(20)


def test_a_plan_that_cannot_break_links_is_refused() -> None:
    """A cluster without proxies on its links, which `start_cluster` has not started."""
    ray.init(nodes=2)
    with pytest.raises(ValueError, match="started without proxies on them"):
        chaostoolkit.apply_plan("partition")


def test_what_a_plan_could_not_do_raises_in_its_probe() -> None:
    chaostoolkit.start_cluster("sim", nodes=2)
    chaostoolkit.apply_plan(
        {"steps": [{"at_s": at_s, "action": "kill", "target": "node:0"} for at_s in (1, 9)]}
    )
    assert not chaostoolkit.plan_carried_out()
    ray.sleep(2)
    with pytest.raises(ValueError, match="kill node:0 was not possible: node 0 is the driver's"):
        chaostoolkit.plan_carried_out()
    chaostoolkit.end_cluster()
    chaostoolkit.start_cluster("sim", nodes=2)
    assert chaostoolkit.plan_carried_out()


def test_a_lost_value_is_no_steady_state() -> None:
    chaostoolkit.start_cluster("sim", nodes=1)
    chaostoolkit.pause_node(0)
    assert not chaostoolkit.tasks_are_right(10, timeout_s=1)


def test_what_cannot_be_done_raises() -> None:
    with pytest.raises(RaySystemError, match="no cluster is connected"):
        chaostoolkit.kill_node(1)
    chaostoolkit.start_cluster("sim", nodes=2)
    with pytest.raises(ValueError, match="there is no node 7"):
        chaostoolkit.kill_node(7)
    with pytest.raises(PlanError, match="no action 'kil'"):
        chaostoolkit.inject("kil", "node:1")
    with pytest.raises(ValueError, match="give it to apply_plan"):
        chaostoolkit.inject("swizzle", "nodes:0,1", {"over_s": 1})
    with pytest.raises(PlanError, match="no plan sopt"):
        chaostoolkit.apply_plan("sopt")


def test_arguments_are_plain() -> None:
    """Chaos Toolkit discovers the functions of `__all__`, and calls them with JSON."""
    for name in chaostoolkit.__all__:
        function = getattr(chaostoolkit, name)
        assert inspect.isfunction(function) and function.__doc__
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
