"""Tasks and actors that wait for room move to a node that has it, in both worlds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.util.scheduling_strategies import NodeAffinitySchedulingStrategy

LIMIT_S = 30.0
LONG_S = 1000.0


@pytest.fixture(params=["sim", "local"])
def start(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return what starts a cluster of such nodes."""
    yield lambda nodes: ray.init(backend=request.param, nodes=nodes, heartbeat_timeout_s=2.0)
    ray.shutdown()


@ray.remote
def here(seconds: float = 0.0, **more: float) -> str:
    ray.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


@ray.remote
class Here:
    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def test_tasks_behind_an_actor_move_to_a_node_that_joins(start: Any) -> None:
    cluster = start([{"CPU": 1}]).cluster
    holder = Here.options(num_cpus=1).remote()
    first = get(holder.node.remote())
    task = here.remote()
    bound = here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(first, False)).remote()
    actor = Here.options(num_cpus=1).remote()
    where = actor.node.remote()
    ray.sleep(0.3)
    cluster.add_node({"CPU": 2})
    assert get(task) != first
    assert get(where) != first
    assert not ray.wait([bound], timeout=0.1)[0], "it has to run on its node"
    ray.kill(holder)
    assert get(bound) == first


def test_an_actor_restarts_where_there_is_room(start: Any) -> None:
    cluster = start([{"CPU": 1}, {"CPU": 2, "a": 1, "b": 1}]).cluster
    actor = Here.options(max_restarts=-1, max_task_retries=-1, resources={"a": 1}).remote()
    first = get(actor.node.remote())
    cluster.add_node({"CPU": 2, "a": 1})
    ray.sleep(1.0)
    # It takes of the actor's resource when that dies, on the only node that has a b.
    hold = here.options(resources={"a": 0.5, "b": 0.5}).remote(LONG_S)
    ray.sleep(0.3)
    cluster.kill_actor(0)
    assert get(actor.node.remote()) != first
    del hold


def test_moving_tasks_can_be_cancelled(start: Any) -> None:
    cluster = start([{"CPU": 1}]).cluster
    holder = Here.options(num_cpus=1).remote()
    get(holder.node.remote())
    tasks = [here.remote(LONG_S) for _ in range(3)]
    ray.sleep(0.3)
    cluster.add_node({"CPU": 3})
    end_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU", 0) > 0 and ray.now() < end_s:
        ray.sleep(0.1)
    for task in tasks:
        ray.cancel(task)
    for task in tasks:
        with pytest.raises(ray.exceptions.TaskCancelledError):
            get(task)


def test_a_node_dies_with_tasks_that_moved_to_it(start: Any) -> None:
    cluster = start([{"CPU": 1}]).cluster
    holder = Here.options(num_cpus=1).remote()
    first = get(holder.node.remote())
    task = here.options(max_retries=1).remote(5.0)
    ray.sleep(0.3)
    cluster.add_node({"CPU": 1})
    end_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU", 0) > 0 and ray.now() < end_s:
        ray.sleep(0.1)
    ray.sleep(0.3)
    cluster.kill_node(1)
    cluster.add_node({"CPU": 1})
    assert get(task) not in (first, "1")


def test_an_actor_waits_for_a_task_elsewhere_and_not_for_an_actor(start: Any) -> None:
    start([{"CPU": 1}, {"CPU": 1}])
    # Of three actors one begins, and one waits on each node; there the task is the next to end.
    task = here.options(scheduling_strategy=NodeAffinitySchedulingStrategy("1", False)).remote(2.5)
    ray.sleep(0.3)
    first, second, third = (Here.options(num_cpus=1).remote() for _ in range(3))
    assert get(first.node.remote()) == "0"
    ray.sleep(0.5)
    ray.kill(second)
    assert get(third.node.remote()) == "1"
    assert get(task) == "1"


def test_an_actor_keeps_the_cpu_of_a_task_that_was_cancelled(start: Any) -> None:
    start([{"CPU": 1}])
    for _ in range(5):
        task = here.remote(LONG_S)
        ray.sleep(0.1)
        actor = Here.options(num_cpus=1).remote()
        behind = here.remote()
        ray.sleep(0.1)
        ray.cancel(task)
        assert get(actor.node.remote()) == "0"
        ray.sleep(0.1)
        assert not ray.wait([behind], timeout=0)[0], "the actor has the only CPU"
        del actor
        assert get(behind) == "0"


def begin(file: str, what: str) -> None:
    """Say that something begins: not to an actor, where the same call counts once."""
    with open(file, "a", encoding="utf-8") as runs:
        print(what, file=runs)


@ray.remote(num_cpus=0)
def child(file: str, what: str, seconds: float) -> str:
    begin(file, what)
    ray.sleep(seconds)
    return what


@ray.remote
def parent(file: str) -> tuple[str, list[str]]:
    begin(file, "parent")
    quick = child.remote(file, "quick", 0.0)
    ray.get(quick)
    slow = child.remote(file, "slow", 5.0)
    return ray.get_runtime_context().get_node_id(), ray.get([quick, slow])


def test_a_task_that_moves_off_its_groups_node_finds_its_children(
    start: Any, tmp_path: Path
) -> None:
    """Its worker has died and its CPU is a group's now: elsewhere it submitted all anew."""
    cluster = start([{"CPU": 1}, {"CPU": 1}]).cluster
    there = NodeAffinitySchedulingStrategy("1", soft=True)
    assert get(here.options(scheduling_strategy=there).remote()) == "1"
    runs = tmp_path / "runs"
    task = parent.options(scheduling_strategy=there).remote(str(runs))

    def until(condition: Any) -> None:
        end_s = ray.now() + LIMIT_S
        while not condition():
            assert ray.now() < end_s, "it never came to be"
            ray.sleep(0.02)

    until(lambda: runs.exists() and "slow" in runs.read_text())
    # The parent waits, and its CPU is free.
    holder = here.options(scheduling_strategy=NodeAffinitySchedulingStrategy("0", False))
    held = holder.remote(LONG_S)
    until(lambda: ray.available_resources().get("CPU", 0) == 1)
    group = ray.util.placement_group([{"CPU": 1}])
    assert group.wait(LIMIT_S)
    assert ray.util.placement_group_table(group)["bundles_to_node_id"] == {0: "1"}
    ray.sleep(0.5)  # what its children are the GCS knows by now
    cluster.kill_worker(1, 0)
    ray.cancel(held)
    assert get(task) == ("0", ["quick", "slow"])
    assert runs.read_text().split() == ["parent", "quick", "slow", "parent"]
