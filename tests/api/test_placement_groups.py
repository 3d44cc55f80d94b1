"""Placement groups are reserved as a whole, used and released."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    TaskPlacementGroupRemoved,
)
from raytwin.runtime.api.backend import current
from raytwin.runtime.control.scheduling import placement_groups
from raytwin.simulator.cluster.simulated_cluster import HEAD_NUMBER
from raytwin.util.placement_group import PlacementGroup
from raytwin.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

LIMIT_S = 30.0


@pytest.fixture(params=["sim", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Three nodes with two CPUs each."""
    yield ray.init(backend=request.param, nodes=3, cpus_per_node=2)
    ray.shutdown()


@ray.remote
def node(seconds: float = 0.0) -> str:
    ray.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


@ray.remote
def group_here() -> Any:
    return ray.util.get_current_placement_group()


@ray.remote
def group_of_child() -> Any:
    return ray.get(group_here.remote())


def into(group: PlacementGroup, task: Any, index: int = -1, capture: bool = False) -> Any:
    return task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index, capture))


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def until(condition: Any) -> None:
    end_s = ray.now() + LIMIT_S
    while not condition():
        assert ray.now() < end_s, "it never came to be"
        ray.sleep(0.02)


def free_cpus() -> float:
    return ray.available_resources().get("CPU", 0.0)


def reserve(bundles: list[dict[str, float]], strategy: str = "PACK", **more: Any) -> PlacementGroup:
    group = ray.util.placement_group(bundles, strategy, **more)
    assert group.wait(LIMIT_S)
    return group


def nodes_of(group: PlacementGroup) -> list[str]:
    at = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return [at[index] for index in sorted(at)]


def test_the_resources_of_a_group_cannot_be_asked_for_by_name(cluster: Any) -> None:
    """They would be a way into other jobs' groups, too."""
    group = ray.util.placement_group([{"CPU": 1}])
    for name in (f"CPU_group_{group.id.hex()}", f"bundle_group_0_{group.id.hex()}"):
        with pytest.raises(ValueError, match="is a placement group's"):
            node.options(resources={name: 1})
    assert node.options(resources={"CPU_group_ab": 1, "my_group": 1})


def test_available_resources_are_part_of_the_total(cluster: Any) -> None:
    """As in Ray; the names in the group were missing."""
    before = ray.cluster_resources()
    group = reserve([{"CPU": 1}, {"CPU": 2}])
    total, free = ray.cluster_resources(), ray.available_resources()
    assert {name: total[name] - amount for name, amount in free.items()} == {
        name: 3.0 if name == "CPU" else 0.0 for name in free
    }
    of_group = {name for name in total if name.endswith(f"_group_{group.id.hex()}")}
    assert total[f"CPU_group_{group.id.hex()}"] == 3.0
    assert len(of_group) == 2, "CPU and bundle"
    assert total["CPU"] == before["CPU"] == 6
    ray.util.remove_placement_group(group)
    until(lambda: ray.cluster_resources() == before)


def test_removed_groups_do_not_slow_resource_queries(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 1,500 was a row of each answer: 5 ms."""
    gone = reserve([{"CPU": 1}], name="mine")
    ray.util.remove_placement_group(gone)
    group = reserve([{"CPU": 1}], name="mine")
    session = current()
    asks, states = session.query, []

    def query(kind: str) -> Any:
        rows = asks(kind)
        if kind != "nodes":
            states.extend(row[5] for row in rows)
        return rows

    monkeypatch.setattr(session, "query", query)
    assert f"CPU_group_{group.id.hex()}" in ray.cluster_resources()
    assert ray.util.get_placement_group("mine") == group
    assert states == ["CREATED"] * 2
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    # A query for a removed group still returns its row.
    assert ray.util.placement_group_table(gone)["state"] == "REMOVED"
    assert len(ray.util.placement_group_table()) == 2


@pytest.mark.parametrize(
    ("strategy", "bundles", "distinct"),
    [
        ("PACK", [{"CPU": 1}] * 2, 1),
        ("STRICT_PACK", [{"CPU": 1}] * 2, 1),
        ("SPREAD", [{"CPU": 1}] * 3, 3),
        ("STRICT_SPREAD", [{"CPU": 2}] * 3, 3),
        ("SPREAD", [{"CPU": 1}] * 5, 3),
        ("PACK", [{"CPU": 2}, {"CPU": 1}, {"CPU": 1}], 2),
    ],
)
def test_strategies(cluster: Any, strategy: str, bundles: Any, distinct: int) -> None:
    group = reserve(bundles, strategy)
    assert get(group.ready()) == group
    assert group.bundle_specs == bundles
    assert group.bundle_count == len(bundles)
    at = nodes_of(group)
    assert len(set(at)) == distinct
    for index, place in enumerate(at):
        assert get(into(group, node, index).remote()) == place
    total = sum(bundle["CPU"] for bundle in bundles)
    until(lambda: free_cpus() == 6 - total)
    ray.util.remove_placement_group(group)
    until(lambda: free_cpus() == 6)
    assert ray.util.placement_group_table(group)["state"] == "REMOVED"


def test_a_group_without_room_waits_and_reserves_nothing(cluster: Any) -> None:
    first = reserve([{"CPU": 2}] * 2, "STRICT_SPREAD")
    second = ray.util.placement_group([{"CPU": 2}] * 2, "STRICT_SPREAD")
    assert not second.wait(0.5)
    assert ray.util.placement_group_table(second)["state"] == "PENDING"
    assert get(node.options(num_cpus=2).remote()) not in nodes_of(first)
    ray.util.remove_placement_group(first)
    assert second.wait(LIMIT_S)
    never = ray.util.placement_group([{"CPU": 3}])
    assert not never.wait(0.3)


def test_tasks_share_the_resources_of_their_group(cluster: Any) -> None:
    group = reserve([{"CPU": 1}, {"CPU": 1}], "STRICT_PACK")
    began_s = ray.now()
    assert len(set(get([into(group, node).remote(0.3) for _ in range(4)]))) == 1
    assert ray.now() - began_s >= 0.6
    with pytest.raises(ValueError, match="no bundle"):
        into(group, node.options(num_cpus=2)).remote()
    with pytest.raises(ValueError, match="bundles 0 to 1"):
        into(group, node, 2).remote()


def test_tasks_submitted_before_it_is_ready_run_then(cluster: Any) -> None:
    group = ray.util.placement_group([{"CPU": 1}])
    assert get([into(group, node, 0).remote() for _ in range(4)]) == [nodes_of(group)[0]] * 4


def test_children_run_in_the_group_if_it_captures_them(cluster: Any) -> None:
    group = reserve([{"CPU": 1}, {"CPU": 1}])
    assert get(into(group, group_here).remote()) == group
    assert get(into(group, group_of_child).remote()) is None
    assert get(into(group, group_of_child, capture=True).remote()) == group
    assert get(group_here.remote()) is None
    assert ray.util.get_current_placement_group() is None


def test_removal_ends_tasks_in_it(cluster: Any) -> None:
    group = reserve([{"CPU": 1}])
    running = into(group, node).remote(1000.0)
    queued = into(group, node).remote()
    ray.sleep(0.3)
    ray.util.remove_placement_group(group)
    for ref in (running, queued, into(group, node).remote()):
        with pytest.raises(TaskPlacementGroupRemoved):
            get(ref)
    until(lambda: free_cpus() == 6)
    assert not group.wait(LIMIT_S)


def test_names(cluster: Any) -> None:
    group = reserve([{"CPU": 1}], name="mine")
    assert ray.util.get_placement_group("mine") == group
    with pytest.raises(ValueError, match="already"):
        ray.util.placement_group([{"CPU": 1}], name="mine")
    ray.util.remove_placement_group(group)
    with pytest.raises(ValueError, match="no placement group"):
        ray.util.get_placement_group("mine")
    again = reserve([{"CPU": 1}], name="mine")
    assert again != group
    assert set(ray.util.placement_group_table()) >= {group.id.hex(), again.id.hex()}


@ray.remote(num_cpus=0)
def make_same(at_s: float) -> str:
    ray.sleep(max(0.0, at_s - ray.now()))
    try:
        return str(ray.util.placement_group([{"CPU": 0.5}], name="same").id.hex())
    except ValueError as error:
        assert "there is a placement group 'same' already" in str(error)
        return ""


def test_only_one_of_concurrent_creators_gets_a_name(cluster: Any) -> None:
    for _ in range(3):
        at_s = ray.now() + 0.5
        found = [group for group in get([make_same.remote(at_s) for _ in range(6)]) if group]
        assert len(found) == 1, "each had asked first, and nobody had it"
        group = ray.util.get_placement_group("same")
        assert group.id.hex() == found[0]
        assert group.wait(LIMIT_S)
        assert ray.available_resources()["CPU"] == 5.5
        ray.util.remove_placement_group(group)
        until(lambda: free_cpus() == 6)


def test_a_task_that_runs_again_has_the_group_that_it_had_made(cluster: Any) -> None:
    """It was told that there is one of that name: its own."""

    @ray.remote(num_cpus=0, max_retries=-1)
    def make() -> str:
        group = ray.util.placement_group([{"CPU": 1}], name="mine")
        ray.sleep(1.0)
        return str(group.id.hex())

    made = make.options(scheduling_strategy=NodeAffinitySchedulingStrategy("2", True)).remote()
    until(lambda: any(row["name"] == "mine" for row in ray.util.placement_group_table().values()))
    group = ray.util.get_placement_group("mine")
    kill(cluster, 2)
    assert get(made) == group.id.hex()
    assert len(ray.util.placement_group_table()) == 1


def test_tasks_in_a_long_removed_group_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement_groups, "REMOVED_MAX", 8)
    ray.init(backend="sim", nodes=2, cpus_per_node=2)
    try:
        first = reserve([{"CPU": 1}])
        ray.util.remove_placement_group(first)
        for _ in range(8):
            ray.util.remove_placement_group(reserve([{"CPU": 1}]))
        assert ray.util.placement_group_table(first) == {}
        assert 4 <= len(ray.util.placement_group_table()) <= 8
        with pytest.raises(TaskPlacementGroupRemoved):
            get(into(first, node).remote())
        with pytest.raises(ActorPlacementGroupRemoved):
            get(into(first, Resident).remote().one.remote())
        assert not first.wait(LIMIT_S)
    finally:
        ray.shutdown()


@ray.remote(num_cpus=0)
class User:
    """Submits to a group that somebody else has made."""

    def use(self, group: PlacementGroup) -> str:
        return str(ray.get(into(group, node).remote()))


def test_a_handle_may_be_used_on_another_node_however_slow_the_creators_link_is() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)
    try:
        on_other = NodeAffinitySchedulingStrategy("1", False)
        user = User.options(scheduling_strategy=on_other).remote()
        get(user.__ray_ready__.remote())
        # Calls go from node to node, creations and placements by way of the head.
        session.cluster.network.set_latency(0, HEAD_NUMBER, latency_s=1.0)
        for name in ("", "mine"):
            group = ray.util.placement_group([{"CPU": 1}], name=name)
            assert get(user.use.remote(group)) in ("0", "1")
    finally:
        ray.shutdown()


def test_bundles_of_a_dead_node_are_placed_again(cluster: Any) -> None:
    group = reserve([{"CPU": 1}] * 2, "STRICT_SPREAD")
    at = nodes_of(group)
    lost = next(place for place in at if place != "0")  # the driver is on node 0
    kill(cluster, int(lost))
    until(lambda: [r["Alive"] for r in ray.nodes() if r["NodeID"] == lost] == [False])
    found = [get(into(group, node, index).remote()) for index in range(2)]
    assert lost not in found
    assert len(set(found)) == 2
    until(lambda: ray.util.placement_group_table(group)["state"] == "CREATED")
    ray.util.remove_placement_group(group)
    until(lambda: free_cpus() == 4)


def kill(session: Any, number: int) -> None:
    if session.name == "sim":
        session.cluster.remove_node(number)
    else:
        session.cluster.kill(f"node:{number}", 9)


@pytest.mark.parametrize(
    ("bundles", "more"),
    [
        ([], {}),
        ([{}], {}),
        ([{"CPU": 0}], {}),
        ([{"CPU": -1}], {}),
        ({"CPU": 1}, {}),
        ([{"CPU": 1}], {"strategy": "TIGHT"}),
        ([{"CPU": 1}], {"lifetime": "long"}),
    ],
    ids=str,
)
def test_impossible_groups(bundles: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ray.util.placement_group(bundles, **more)


@ray.remote(num_cpus=1)
class Resident:
    def one(self) -> int:
        return 1


def test_removal_ends_actors_in_it_and_those_to_come(cluster: Any) -> None:
    group = reserve([{"CPU": 2}])
    once, again = (
        into(group, Resident).remote(),
        into(group, Resident.options(max_restarts=-1)).remote(),
    )
    assert get([once.one.remote(), again.one.remote()]) == [1, 1]
    waits = into(group, Resident).remote()
    ray.sleep(0.2)
    ray.util.remove_placement_group(group)
    until(lambda: free_cpus() == 6)
    with pytest.raises(ActorDiedError):
        get(once.one.remote())
    for actor in (again, waits, into(group, Resident).remote()):
        with pytest.raises(ActorPlacementGroupRemoved, match="which is gone"):
            get(actor.one.remote())


@pytest.fixture(params=["sim", "local"])
def restarting(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two nodes, of which the second alone has an x."""
    nodes = [{"CPU": 1}, {"CPU": 1, "x": 1}]
    yield ray.init(backend=request.param, nodes=nodes, heartbeat_timeout_s=2.0)
    ray.shutdown()


def test_a_node_starts_again_while_it_is_asked_for_a_bundle(restarting: Any) -> None:
    group = ray.util.placement_group([{"x": 1}])
    restarting.cluster.restart_node(1)
    assert group.wait(LIMIT_S)
    ray.util.remove_placement_group(group)
    until(lambda: ray.available_resources().get("x") == 1)
