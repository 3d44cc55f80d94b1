"""Tasks and actors that an actor's methods submit inherit its options."""

from __future__ import annotations

import os
from typing import Any

import pytest

import raytwin as ray
from raytwin.util.placement_group import PlacementGroup
from raytwin.util.scheduling_strategies import PlacementGroupSchedulingStrategy

LIMIT_S = 30.0
NAME = "RAYTWIN_TEST_INHERITED"


def surroundings() -> dict[str, Any]:
    here = ray.get_runtime_context()
    group = ray.util.get_current_placement_group()
    return {
        "variable": os.environ.get(NAME),
        "env": here.runtime_env,
        "group": None if group is None else group.bundle_specs,
        "group_id": here.get_placement_group_id(),
        "captures": here.should_capture_child_tasks_in_placement_group,
        "resources": here.get_assigned_resources().get("CPU"),
    }


@ray.remote(num_cpus=1)
def child() -> dict[str, Any]:
    return surroundings()


@ray.remote(num_cpus=1)
class Parent:
    def own(self) -> dict[str, Any]:
        return surroundings()

    def of_child(self) -> Any:
        return ray.get(child.remote(), timeout=LIMIT_S)

    def of_grandchild(self) -> Any:
        actor = Parent.remote()
        return ray.get(actor.of_child.remote(), timeout=LIMIT_S)


@ray.remote(num_cpus=1)
class AsyncParent:
    async def own(self) -> dict[str, Any]:
        return surroundings()

    async def of_child(self) -> Any:
        return await child.remote()


def reserve() -> PlacementGroup:
    group = ray.util.placement_group([{"CPU": 2}])
    assert group.wait(LIMIT_S)
    return group


def within(group: PlacementGroup, cls: Any, capture: bool | None) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=capture)
    return cls.options(scheduling_strategy=strategy).remote()


@pytest.mark.parametrize("cls", [Parent, AsyncParent])
@pytest.mark.parametrize("capture", [True, False, None])
def test_the_group_of_an_actor(cluster: Any, cls: Any, capture: bool | None) -> None:
    group = reserve()
    actor = within(group, cls, capture)
    own = ray.get(actor.own.remote(), timeout=LIMIT_S)
    assert own["group"] == [{"CPU": 2.0}]
    assert own["group_id"] == group.id.hex()
    assert own["captures"] == bool(capture)
    found = ray.get(actor.of_child.remote(), timeout=LIMIT_S)
    assert (found["group_id"], found["captures"]) == (
        (group.id.hex(), True) if capture else (None, False)
    )
    ray.util.remove_placement_group(group)


def test_actors_of_an_actor_are_in_its_group_too(cluster: Any) -> None:
    group = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}])
    assert group.wait(LIMIT_S)
    actor = within(group, Parent, True)
    found = ray.get(actor.of_grandchild.remote(), timeout=LIMIT_S)
    assert (found["group_id"], found["captures"]) == (group.id.hex(), True)
    ray.util.remove_placement_group(group)


@pytest.mark.parametrize("cls", [Parent, AsyncParent])
def test_the_variables_of_an_actor(cluster: Any, cls: Any) -> None:
    env = {"env_vars": {NAME: "1"}}
    actor = cls.options(runtime_env=env).remote()
    for found in ray.get([actor.own.remote(), actor.of_child.remote()], timeout=LIMIT_S):
        assert (found["variable"], found["env"]) == ("1", env)
    assert ray.get(child.remote(), timeout=LIMIT_S)["variable"] is None


def test_an_actor_inherits_from_the_task_that_makes_it(cluster: Any) -> None:
    @ray.remote(num_cpus=0)
    def makes() -> Any:
        return ray.get(Parent.remote().of_child.remote(), timeout=LIMIT_S)

    given = makes.options(runtime_env={"env_vars": {NAME: "2"}})
    assert ray.get(given.remote(), timeout=LIMIT_S)["variable"] == "2"


@pytest.mark.parametrize("cls", [Parent, AsyncParent])
def test_an_actor_keeps_the_options_of_its_creation(cluster: Any, cls: Any) -> None:
    assert ray.get(cls.remote().own.remote(), timeout=LIMIT_S)["resources"] == 1.0
