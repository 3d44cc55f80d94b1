"""Tasks do not wait for CPUs of actors or of a long task while other nodes idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.util.placement_group import placement_group
from raytwin.util.scheduling_strategies import PlacementGroupSchedulingStrategy

LIMIT_S = 30.0
LONG_S = 600.0
PROMPT_S = 0.1
"""Less virtual time than between two heartbeats: nothing has waited for one."""


@pytest.fixture(params=["sim", "local"])
def world(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend that the test is to start."""
    yield request.param
    ray.shutdown()


@ray.remote
def here(seconds: float = 0.0) -> str:
    ray.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


@ray.remote
class Here:
    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def children(self, count: int) -> list[str]:
        return get([here.remote() for _ in range(count)])


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def ran_on(task: Any, world: str) -> set[str]:
    """Run tasks one at a time, many at once, and as a range; return where they ran."""
    began_s = ray.now()
    nodes = {get(task.remote()) for _ in range(5)}
    nodes.update(get([task.remote() for _ in range(100)]))
    nodes.update(get(task.map([0.0] * 100)))
    assert world != "sim" or ray.now() - began_s < PROMPT_S
    return nodes


def test_tasks_run_where_actors_have_left_cpus(world: str) -> None:
    ray.init(backend=world, nodes=4, cpus_per_node=2)
    assert "0" in ran_on(here, world)
    ray.sleep(0.5)  # heartbeats say that the tasks have ended
    actors = [Here.options(num_cpus=2).remote() for _ in range(2)]
    held = set(get([actor.node.remote() for actor in actors]))
    assert len(held) == 2 and "0" in held
    assert not ran_on(here, world) & held
    for actor in actors:
        ray.kill(actor)
    end_s = ray.now() + LIMIT_S
    while ray.available_resources()["CPU"] < 8 and ray.now() < end_s:
        ray.sleep(0.05)
    assert "0" in ran_on(here, world)


@pytest.mark.parametrize("strategy", ["STRICT_SPREAD", "SPREAD"])
@pytest.mark.parametrize("bundle", [0, 1])
def test_any_bundle_means_one_without_an_actor(world: str, strategy: str, bundle: int) -> None:
    ray.init(backend=world, nodes=4, cpus_per_node=2)
    group = placement_group([{"CPU": 1}] * 2, strategy=strategy)
    assert group.wait(LIMIT_S)
    at = ray.util.placement_group_table(group)["bundles_to_node_id"]
    actor = Here.options(
        num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)
    ).remote()
    assert get(actor.node.remote()) == at[bundle]
    anywhere = here.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    assert ran_on(anywhere, world) == {at[1 - bundle]}


def test_tasks_run_where_actors_have_left_other_resources(world: str) -> None:
    ray.init(backend=world, nodes=[{"CPU": 2}, {"CPU": 2, "x": 1}, {"CPU": 2, "x": 1}])
    actor = Here.options(resources={"x": 1}).remote()
    assert get(actor.node.remote()) == "1"
    assert ran_on(here.options(num_cpus=0, resources={"x": 1}), world) == {"2"}
    assert "0" in ran_on(here, world)


def test_tasks_queued_behind_a_starting_actor_move_to_another_node(world: str) -> None:
    ray.init(backend=world, nodes=2, cpus_per_node=1)
    assert get(here.remote(0.02)) == "0"
    began_s = ray.now()
    tasks = [here.remote(0.02) for _ in range(50)]
    actor = Here.options(num_cpus=1, resources={"node:0": 0.001}).remote()
    assert get(actor.node.remote()) == "0"
    assert "1" in get(tasks)
    assert world != "sim" or ray.now() - began_s < 50 * 0.02 + 5 * PROMPT_S


def test_an_actor_s_children_run_on_its_cpu_while_it_waits_if_all_are_actors(world: str) -> None:
    ray.init(backend=world, nodes=2, cpus_per_node=1)
    actors = [Here.options(num_cpus=1).remote() for _ in range(2)]
    assert set(get([actor.node.remote() for actor in actors])) == {"0", "1"}
    for actor in actors:
        node = get(actor.node.remote())
        began_s = ray.now()
        assert set(get(actor.children.remote(20))) == {node}
        assert world != "sim" or ray.now() - began_s < PROMPT_S


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("head_start_s", [0.0, 0.03, 0.2])
def test_no_task_waits_for_a_long_one_while_a_node_idles(
    world: str, head_start_s: float, timed: bool
) -> None:
    ray.init(backend=world, nodes=2, cpus_per_node=1)
    if timed:
        assert get([here.remote() for _ in range(20)])
    long = here.remote(LONG_S)
    ray.sleep(head_start_s)
    began_s = ray.now()
    get(here.options(name="first").remote())
    if world == "sim":
        # It may be given to the worker that is busy: then it is taken back and moves.
        assert ray.now() - began_s < (PROMPT_S if head_start_s > PROMPT_S else 5 * PROMPT_S)
    ray.sleep(0.2)  # a heartbeat tells what a task takes
    assert ran_on(here, world) == {"1"}
    ray.cancel(long)


def test_many_that_were_kept_behind_a_long_task_move_together(world: str) -> None:
    ray.init(backend=world, nodes=2, cpus_per_node=1)
    long = here.remote(LONG_S)
    began_s = ray.now()
    assert set(get([here.remote() for _ in range(100)])) == {"1"}
    assert world != "sim" or ray.now() - began_s < 5 * PROMPT_S
    ray.cancel(long)
