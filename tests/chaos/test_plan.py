"""Plans are data: valid ones, invalid ones, and the errors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from raytwin.chaos.faults import cluster_operations
from raytwin.chaos.faults.actions import ACTIONS
from raytwin.chaos.faults.cluster_operations import (
    CLUSTERS,
    ClusterOperations,
    backends_with,
    cluster_class,
)
from raytwin.chaos.faults.plan import Plan, PlanError, Step, from_data
from raytwin.chaos.faults.targets import TARGETS, Link, links_between

KILL = {"at_s": 1, "action": "kill", "target": "node:1"}
SLOW = {"at_s": 1, "action": "latency", "target": "link:0>1"}
CLUSTER = {"at_s": 1, "target": "cluster"}


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({**KILL, "action": "kil"}, "did you mean 'kill'"),
        ({**KILL, "target": "nod:1"}, "did you mean 'node'"),
        ({**KILL, "target": "node:x"}, "it is written node:3"),
        ({**KILL, "target": "node:" + "9" * 5000}, "it is written node:3"),
        ({**KILL, "target": "nodes:1,1"}, "it is written nodes:1,2,3"),
        ({**KILL, "target": "head:"}, "it is written head"),
        ({**KILL, "target": "worker:1"}, "it is written worker:3.1"),
        ({**KILL, "target": "link:1>1"}, "it is written link:1>2"),
        ({**KILL, "target": "link:1>worker:1.1"}, "it is written link:1>2"),
        ({**KILL, "target": "link:0>1"}, "applies to node and nodes and worker"),
        ({**KILL, "target": "worker:0.1", "action": "restart"}, "it applies to node"),
        ({**KILL, "at_s": -1}, "at least 0"),
        ({**KILL, "at_s": float("nan")}, "at least 0"),
        ({**KILL, "at_s": 10**400}, "at least 0"),
        ({**KILL, "at_s": True}, "at least 0"),
        ({**KILL, "after": "node_died:1"}, "either at_s or after"),
        ({"action": "kill", "target": "node:1"}, "either at_s or after"),
        ({"after": "noon", "action": "kill", "target": "node:1"}, "node_added:1"),
        ({"after": "step:x", "action": "kill", "target": "node:1"}, "no event 'step:x'"),
        ({**KILL, "delay_s": 1}, "with after"),
        ({**KILL, "name": "a b"}, "a step's name is a letter"),
        ({**KILL, "name": 3}, "name is a text"),
        ({**KILL, "parameters": {"hard": True}}, "it takes none"),
        ({**KILL, "tarqet": "node:1"}, "did you mean 'target'"),
        ({**KILL, "target": 3}, "it needs target"),
        ({"after": 3, "action": "kill", "target": "node:1"}, "after is a text"),
        ({**KILL, "parameters": []}, "parameters is an object"),
        (SLOW, "give latency_ms"),
        ({**SLOW, "parameters": {"latency_ms": 1, "jitter": 1}}, "it takes latency_ms, jitter_ms"),
        ({**SLOW, "action": "bandwidth", "parameters": {"bytes_per_s": 0}}, "above 0"),
        ({**SLOW, "action": "loss", "parameters": {"probability": 1}}, "above 0 and below 1"),
        ({**SLOW, "action": "reset", "parameters": {"kind": "syn"}}, "rst or fin"),
        ({**CLUSTER, "action": "add_node", "parameters": {"resources": 3}}, 'such as {"CPU": 2}'),
        ({**CLUSTER, "action": "partition", "parameters": {"sets": [["head"]]}}, "two or more"),
        (
            {**CLUSTER, "action": "partition", "parameters": {"sets": [["head"], ["head"]]}},
            "none of them twice",
        ),
        (
            {**CLUSTER, "action": "partition", "parameters": {"sets": [["head"], ["nod:1"]]}},
            "lists of endpoints",
        ),
        (
            {**CLUSTER, "action": "lose", "parameters": {"kind": "Heart", "probability": 0.1}},
            "the class of a control-plane message",
        ),
        (
            {**CLUSTER, "action": "lose", "parameters": {"kind": "any", "probability": 2}},
            "from 0 to 1",
        ),
        ("kill", "a step is an object"),
    ],
)
def test_a_bad_step_gets_one_line_with_the_valid_values(step: Any, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_data({"steps": [KILL, step]})
    assert says in str(caught.value)
    assert str(caught.value).startswith("step 2: ")
    assert caught.value.place[:2] == ("steps", 1)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("expectation", "says"),
    [
        ("calm", "an expectation is an object"),
        ({"min": 1}, "it needs metric"),
        ({"metric": "x"}, "one of min, max, equals"),
        ({"metric": "x", "min": "1"}, "give min, a number"),
        ({"metric": "x", "minimum": 1}, "did you mean 'min'"),
        ({"metric": "x", "min": 1, "relative_to": 3}, "give relative_to"),
    ],
)
def test_a_bad_expectation_gets_one_line(expectation: Any, says: str) -> None:
    with pytest.raises(PlanError, match="expectation 1: ") as caught:
        from_data({"steps": [], "expect": [expectation]})
    assert says in str(caught.value)
    assert caught.value.place[:2] == ("expect", 0)


def test_expectations_are_bounds_of_metrics() -> None:
    data = [
        {"metric": "after", "min": 0.8, "relative_to": "before"},
        {"metric": "after", "max": 9},
        {"metric": "after", "equals": 8},
        {"metric": "aftr", "min": 0},
    ]
    plan = from_data({"steps": [], "expect": data})
    assert plan.to_data()["expect"] == data
    found = [each.check({"before": 10.0, "after": 8.0}) for each in plan.expect]
    assert [each.ok for each in found] == [True, True, True, False]
    assert found[0].name == "expected after ≥ 0.8 × before"
    assert "did you mean 'after'" in found[3].detail
    worse = [each.check({"before": 11.0, "after": 8.5}) for each in plan.expect]
    assert [each.ok for each in worse] == [False, True, False, False]


def test_a_step_may_come_after_another_one() -> None:
    after = {"after": "first", "action": "kill", "target": "node:2"}
    plan = from_data({"steps": [after, {**KILL, "name": "first"}]})
    assert plan.steps[0].after == "first"
    with pytest.raises(PlanError, match=r"no event 'frist': .* which are first"):
        from_data({"steps": [{**after, "after": "frist"}, {**KILL, "name": "first"}]})
    with pytest.raises(PlanError, match="step 2: another step is named 'first'"):
        from_data({"steps": [{**KILL, "name": "first"}, {**KILL, "name": "first"}]})


def test_a_cycle_is_named() -> None:
    def step(name: str, after: str) -> Step:
        return Step("kill", "node:1", None, after, name=name)

    with pytest.raises(PlanError, match="a after c after b after a") as caught:
        Plan([step("d", "a"), step("a", "c"), step("b", "a"), step("c", "b")])
    assert caught.value.place == ("steps", 0, "after")
    with pytest.raises(PlanError, match="a after a;"):
        Plan([step("a", "a")])
    Plan([step("a", "node_died:1"), step("b", "a"), step("c", "a")])


def test_a_backend_that_cannot() -> None:
    plan = Plan([Step("slow_cores", "node:1", 1, parameters={"factor": 2})])
    with pytest.raises(PlanError, match="does not work on local: it does on sim"):
        plan.check_backend("local")
    with pytest.raises(PlanError, match="no faults on backend 'moon': possible: sim, local"):
        plan.check_backend("moon")


def test_what_a_backend_can_is_what_its_cluster_has(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        def cut(self) -> None: ...

    monkeypatch.setattr(cluster_operations, "CLUSTERS", {"half": f"{__name__}:Half"})
    monkeypatch.setattr(cluster_operations, "cluster_class", lambda backend: Half)
    assert backends_with(("cut",)) == ["half"]
    assert backends_with(("cut", "heal")) == []


def test_every_action_has_a_target_and_every_operation_a_description() -> None:
    used = {name for target in TARGETS.values() for name in target.operations}
    assert used == set(ACTIONS)
    operations = {
        name
        for target in TARGETS.values()
        for names in target.operations.values()
        for name in names
    }
    assert operations == {name for name in vars(ClusterOperations) if not name.startswith("_")}


@pytest.mark.parametrize("backend", CLUSTERS)
def test_a_clusters_operations_take_the_same_parameters(backend: str) -> None:
    cluster = cluster_class(backend)
    names = [name for name in vars(ClusterOperations) if not name.startswith("_")]
    there = [name for name in names if hasattr(cluster, name)]
    assert "kill_node" in there
    for name in there:
        described, own = (
            list(inspect.signature(getattr(of, name)).parameters)
            for of in (ClusterOperations, cluster)
        )
        assert described == own, name


class Recorder:
    """A cluster that notes the operations that are called."""

    resources = ({"CPU": 1.0},)

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in vars(ClusterOperations):
            raise AttributeError(name)

        def call(*args: Any) -> None:
            self.called.append(f"{name}{args}")

        return call


@pytest.mark.parametrize(
    ("action", "target", "parameters", "called"),
    [
        ("kill", "node:1", {}, "kill_node(1,)"),
        ("kill", "worker:1.2", {}, "kill_worker(1, 2)"),
        ("resume", "worker:1.2", {}, "resume_workers(1,)"),
        ("kill", "actor:3", {}, "kill_actor(3,)"),
        ("kill", "replica:0.1", {}, "kill_member(0, 1)"),
        ("pause", "head", {}, "pause_head()"),
        ("add_node", "cluster", {}, "add_node({'CPU': 1.0},)"),
        ("latency", "link:0>1", {"latency_ms": 20, "jitter_ms": 1},
         "set_latency('node:0', 'node:1', 0.02, 0.001)"),
        ("bandwidth", "link:head>2", {"bytes_per_s": 100},
         "set_bandwidth('head', 'node:2', 100.0)"),
        ("loss", "link:1>head", {"probability": 0.1}, "lose_packets('node:1', 'head', 0.1)"),
        ("reset", "link:2>head", {}, "reset_links('node:2', 'head', True)"),
        ("reset", "link:2>head", {"kind": "fin"}, "reset_links('node:2', 'head', False)"),
        ("stall", "link:1>replica:0.1", {}, "stall_link('node:1', 'replica:0.1')"),
        ("heal", "link:1>node:02", {}, "heal('node:1', 'node:2')"),
        ("disk_full", "node:1", {}, "fill_disk(1,)"),
        ("disk_slow", "node:1", {"bytes_per_s": 5}, "slow_disk(1, 5.0)"),
        ("memory_pressure", "node:1", {"nbytes": 5}, "press_memory(1, 5)"),
        ("slow_cores", "node:1", {"factor": 2}, "slow_cores(1, 2.0)"),
        ("clock_skew", "node:1", {"skew_ms": -500}, "skew_clock(1, -0.5)"),
        ("heal", "node:1", {}, "heal_node(1,)"),
        ("lose", "cluster", {"kind": "any", "probability": 0.5}, "lose_frames('any', 0.5)"),
        ("double", "cluster", {"kind": "any", "probability": 1}, "double_frames('any', 1.0)"),
        ("delay", "cluster", {"kind": "any", "probability": 1, "delay_ms": 5},
         "delay_frames('any', 1.0, 0.005)"),
    ],
)  # fmt: skip
def test_a_step_calls_one_operation_in_its_units(
    action: str, target: str, parameters: dict[str, Any], called: str
) -> None:
    step, cluster = Step(action, target, 0, parameters=parameters), Recorder()
    step.target.apply(cluster, step.action, step.parameters)
    assert cluster.called == [called]
    assert Step(**step.to_data()) == step


def test_a_set_stands_for_each_of_its_nodes() -> None:
    step = Step("kill", "nodes:3,1", 0)
    parts = step.target.expand(step.action, step.parameters, ())
    assert [(delay_s, action, str(target)) for delay_s, action, target, _ in parts] == [
        (0.0, "kill", "node:3"), (0.0, "kill", "node:1")
    ]  # fmt: skip


def test_a_partition_cuts_the_links_between_its_sets() -> None:
    sets = [["head", "node:0"], ["node:1"]]
    both = {str(link) for link in links_between(sets)}
    assert both == {"link:head>1", "link:0>1", "link:1>head", "link:1>0"}
    one_way = {str(link) for link in links_between(sets, one_way=True)}
    assert one_way == {"link:head>1", "link:0>1"}


def test_swizzle_cuts_every_link_and_heals_it_later() -> None:
    step = Step("swizzle", "nodes:0,1,2", 0, parameters={"over_s": 2, "seed": 7})
    parts = step.target.expand(step.action, step.parameters, ())
    assert parts == step.target.expand(step.action, step.parameters, ())
    assert [part[0] for part in parts] == sorted(part[0] for part in parts)
    orders = {
        action: [str(part[2]) for part in parts if part[1] == action] for action in ("cut", "heal")
    }
    pairs = {f"link:{a}>{b}" for a in range(3) for b in range(3) if a != b}
    assert set(orders["cut"]) == set(orders["heal"]) == pairs
    assert len(parts) == 2 * len(pairs)
    assert orders["cut"] != orders["heal"]
    other = Step("swizzle", "nodes:0,1,2", 0, parameters={"over_s": 2, "seed": 8})
    assert parts != other.target.expand(other.action, other.parameters, ())


def test_the_whole_cluster_heals_what_is_broken() -> None:
    step = Step("heal", "cluster", 0)
    link = Link(0, 1)
    assert step.target.expand("heal", {}, [link]) == [(0.0, "heal", link, {})]


def test_a_plan_in_words() -> None:
    plan = from_data(
        {
            "steps": [
                {**KILL, "name": "loss", "target": "nodes:1,2"},
                {"after": "node_died:1", "delay_s": 0.5, "action": "restart", "target": "node:1"},
                {"after": "loss", "action": "latency", "target": "link:head>1",
                 "parameters": {"latency_ms": 20, "jitter_ms": 5}},
                {**SLOW, "parameters": {"latency_ms": 0, "jitter_ms": 5}},
            ],
            "expect": [{"metric": "nodes_died", "equals": 2}],
        }
    )  # fmt: skip
    assert plan.sentences() == [
        "1. At 1 s, kill nodes 1 and 2 (step 'loss').",
        "2. 0.5 s after node 1 was declared dead, start node 1 again, empty.",
        "3. After step 'loss', set the latency of what head sends to node 1 to 20 ms ± up to 5 ms.",
        "4. At 1 s, set the latency of what node 0 sends to node 1 to its own ± up to 5 ms.",
        "Expected: nodes_died = 2.",
    ]


def test_the_nodes_that_a_plan_needs() -> None:
    assert from_data({"steps": []}).nodes() == 1
    assert from_data({"steps": [{**KILL, "target": "nodes:4,2"}]}).nodes() == 5
    added = {**CLUSTER, "action": "add_node"}
    assert from_data({"steps": [added, {**KILL, "target": "node:3"}]}).nodes() == 3
    sets = {"sets": [["head", "node:0"], ["node:6"]]}
    cut = {**CLUSTER, "action": "partition", "parameters": sets}
    assert from_data({"steps": [cut]}).nodes() == 7


@pytest.mark.parametrize(
    ("steps", "proxied"),
    [
        ([{**KILL}], []),
        ([{**SLOW, "parameters": {"latency_ms": 1}}], ["local", "docker", "ray"]),
        ([{**KILL, "action": "cut", "target": "link:1>head"}], ["local", "ray"]),
        ([{**KILL, "action": "cut", "target": "link:0>head"}], ["local", "docker", "ray"]),
        ([{**KILL, "action": "reset", "target": "link:0>1"}], ["local", "ray"]),
        ([{**KILL, "action": "reset", "target": "link:0>1", "parameters": {"kind": "fin"}}],
         ["local", "docker", "ray"]),
        ([{**KILL, "action": "cut", "target": "link:1>replica:0.1"}], ["local", "docker", "ray"]),
        ([{**CLUSTER, "action": "partition", "parameters": {"sets": [["head"], ["node:1"]]}}],
         ["local", "ray"]),
        ([{**CLUSTER, "action": "partition", "parameters": {"sets": [["head"], ["node:0"]]}}],
         ["local", "docker", "ray"]),
        ([{**KILL, "action": "swizzle", "target": "nodes:0,1", "parameters": {"over_s": 1}}],
         ["local", "ray"]),
    ],
)  # fmt: skip
def test_a_plan_has_proxies_where_nothing_else_breaks_its_links(
    steps: list[Any], proxied: list[str]
) -> None:
    assert from_data({"steps": steps}).proxied_on == proxied


@pytest.mark.parametrize("link", ["link:head>1", "link:1>head", "link:1>replica:0.1"])
def test_a_link_of_ray_has_nodes_at_its_ends(link: str) -> None:
    with pytest.raises(PlanError, match="the GCS of Ray is on node 0: name a node in place of"):
        Plan([Step("cut", link, 1.0)]).check_backend("ray")
    Plan([Step("cut", "link:0>1", 1.0)]).check_backend("ray")


def test_packets_are_lost_in_virtual_time_and_between_containers_without_proxies() -> None:
    loss = Step("loss", "link:0>1", 1.0, parameters={"probability": 0.1})
    for backend in ("sim", "docker"):
        Plan([loss, Step("cut", "link:1>head", 1.0)]).check_backend(backend)
    with pytest.raises(PlanError, match="does not work on local: it does on sim and docker"):
        Plan([loss]).check_backend("local")
    slow = Step("latency", "link:1>2", 0, parameters={"latency_ms": 5})
    home = Step("loss", "link:0>head", 1.0, parameters={"probability": 0.1})
    for plan in (Plan([slow, loss]), Plan([home])):
        plan.check_backend("sim")
        with pytest.raises(PlanError, match=r"does not work on docker: packets .* needs proxies"):
            plan.check_backend("docker")


@pytest.mark.parametrize("backend", ["local", "docker", "ray"])
@pytest.mark.parametrize("name", ["latency_ms", "jitter_ms"])
def test_a_latency_that_toxiproxy_rounds_to_nothing_is_refused(backend: str, name: str) -> None:
    def plan(ms: float) -> Plan:
        given = {"latency_ms": 0.0, name: ms}
        return Plan([Step("latency", "link:0>1", 0, parameters=given)])

    for ms in (0.0, 0.6, 20.0):
        plan(ms).check_backend(backend)
    for ms in (0.4, 0.5):
        plan(ms).check_backend("sim")
        with pytest.raises(PlanError, match=f"{backend}: Toxiproxy rounds {name} of {ms} to 0: "):
            plan(ms).check_backend(backend)


@pytest.mark.parametrize("action", ["disk_full", "heal"])
def test_node_0_on_docker_is_in_no_container(action: str) -> None:
    plan = Plan([Step(action, "nodes:1,0", 1.0)])
    plan.check_backend("sim")
    with pytest.raises(PlanError, match="does not work on docker: node 0 is in no container"):
        plan.check_backend("docker")
    Plan([Step(action, "nodes:1,2", 1.0)]).check_backend("docker")


@pytest.mark.parametrize(
    ("step", "needs"),
    [
        ({**KILL}, []),
        ({**KILL, "target": "replica:0.1"}, ["replicas of the GCS"]),
        ({**KILL, "target": "replica:3.1"},
         ["replicas of the GCS", "shards of the GCS: init(gcs_shards=3)"]),
        ({**KILL, "action": "cut", "target": "link:1>replica:0.1"}, ["replicas of the GCS"]),
        ({**CLUSTER, "action": "partition",
          "parameters": {"sets": [["replica:0.0"], ["node:1"]]}}, ["replicas of the GCS"]),
        ({**KILL, "target": "head"}, ["a head that comes back"]),
        ({**KILL, "target": "scheduler"}, ["a scheduler that comes back"]),
        ({**KILL, "action": "pause", "target": "head"}, []),
    ],
)  # fmt: skip
def test_what_a_plan_needs_is_said(step: dict[str, Any], needs: list[str]) -> None:
    nodes, *more = from_data({"steps": [step]}).needs()
    assert "nodes or more at its start" in nodes
    assert len(more) == len(needs)
    assert all(f"It needs {need}" in said for need, said in zip(needs, more, strict=True))
