"""Programs that do the same on Ray and on raytwin: resources, their units and amounts.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

MB = 1 << 20


def until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it does within 30 s."""
    end_s = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def system_resources(ray: Any) -> Any:
    """Every node has memory and an object store, and the head a resource of its own."""
    util = ray.util
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

    @ray.remote
    def here() -> str:
        return "ran"

    whole = ray.cluster_resources()
    found: list[Any] = [whole["memory"] > 100 * MB, whole["object_store_memory"] > MB]
    found.append(whole["node:__internal_head__"])
    found.append(sorted(set(ray.nodes()[0]["Resources"]) & {"memory", "object_store_memory"}))
    found.append(ray.get(here.options(resources={"node:__internal_head__": 0.01}).remote()))
    found.append(ray.get(here.options(memory=50 * MB).remote()))
    for name in ("memory", "object_store_memory"):
        try:
            here.options(resources={name: 1}).remote()
        except ValueError:
            found.append("ValueError")
    before = whole["memory"]
    group = util.placement_group([{"CPU": 1, "memory": 50 * MB}])
    found.append(group.wait(30))
    found.append(until(lambda: ray.available_resources()["memory"] == before - 50 * MB))
    inside = here.options(memory=50 * MB, scheduling_strategy=strategy(group))
    found.append(ray.get(inside.remote()))
    util.remove_placement_group(group)
    found.append(until(lambda: ray.available_resources()["memory"] == before))

    @ray.remote(num_cpus=0, memory=whole["memory"] * 0.75)
    class Large:
        def here(self) -> str:
            return "ran"

    first = Large.remote()
    found.append(ray.get(first.here.remote()))
    second = Large.remote()
    waiting = second.here.remote()
    found.append(len(ray.wait([waiting], timeout=1)[0]))
    ray.kill(first)
    found.append(ray.get(waiting))
    return found


def default_actors(ray: Any) -> Any:
    """An actor without ``num_cpus`` takes no CPU, but its node or bundle must have one."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

    @ray.remote
    class Actor:
        def here(self) -> str:
            return "ran"

    def run(**options: Any) -> str:
        try:
            actor = Actor.options(**options).remote()
        except ValueError:
            return "ValueError"
        done: str = ray.get(actor.here.remote())
        ray.kill(actor)
        return done

    found = [run(), run(num_cpus=0)]
    holders = [Actor.options(num_cpus=1).remote() for _ in range(2)]
    ray.get([holder.here.remote() for holder in holders])
    found.append(run())
    for holder in holders:
        ray.kill(holder)
    for bundle in ({"CPU": 2}, {"memory": 50 * MB}, {"CPU": 0.5, "memory": 50 * MB}):
        group = ray.util.placement_group([bundle])
        found.append(group.wait(30))
        inside = strategy(group)
        found += [
            run(),
            run(scheduling_strategy=inside),
            run(scheduling_strategy=inside, memory=MB) if "memory" in bundle else "",
            run(scheduling_strategy=inside, num_cpus=0),
        ]
        ray.util.remove_placement_group(group)
    return found


def actors_with_other_resources(ray: Any) -> Any:
    """An actor that asks for other resources than memory takes a CPU, too, unless it says how many;
    on a cluster with two CPUs, a GPU and two of x."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

    @ray.remote
    class Actor:
        def has(self) -> float:
            cpus: float = ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0)
            return cpus

    def run(**options: Any) -> Any:
        try:
            actor = Actor.options(**options).remote()
        except ValueError:
            return "ValueError"
        cpus = ray.get(actor.has.remote())
        ray.kill(actor)
        return cpus, until(lambda: ray.available_resources().get("CPU") == 2)

    x = {"resources": {"x": 0.5}}
    found = [run(), run(**x), run(num_gpus=1), run(memory=MB), run(num_cpus=0, **x)]
    group = ray.util.placement_group([{"x": 1}])
    found.append(group.wait(30))
    inside = {"scheduling_strategy": strategy(group)}
    found += [run(**x, **inside), run(num_cpus=0, **x, **inside)]
    return found


def actors_without_a_cpu(ray: Any) -> Any:
    """On a cluster without CPUs an actor waits unless it has asked for none."""

    @ray.remote
    class Actor:
        def here(self) -> str:
            return "ran"

    default, explicit = Actor.remote(), Actor.options(num_cpus=0).remote()
    waiting = default.here.remote()
    found = [ray.get(explicit.here.remote())]
    found.append(len(ray.wait([waiting], timeout=1)[0]))
    return found


def threads_of_libraries(ray: Any) -> Any:
    """``OMP_NUM_THREADS`` is the number of CPUs, unless the program has set it."""
    import os

    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

    @ray.remote
    def threads() -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    @ray.remote
    class Actor:
        def threads(self) -> str | None:
            return os.environ.get("OMP_NUM_THREADS")

    given = {"env_vars": {"OMP_NUM_THREADS": "7"}}
    found = [ray.get(threads.options(num_cpus=cpus).remote()) for cpus in (1, 2, 0.5, 1.5, 0, 2)]
    found.append(ray.get(threads.options(num_cpus=2, runtime_env=given).remote()))
    found += ray.get([threads.remote() for _ in range(20)])
    choices: list[dict[str, Any]] = [{}, {"num_cpus": 1}, {"num_cpus": 2}, {"runtime_env": given}]
    for options in choices:
        actor = Actor.options(**options).remote()
        found.append(ray.get(actor.threads.remote()))
        ray.kill(actor)
    group = ray.util.placement_group([{"CPU": 2}])
    for cpus in (1, 2):
        inside = threads.options(num_cpus=cpus, scheduling_strategy=strategy(group))
        found.append(ray.get(inside.remote()))
    ray.util.remove_placement_group(group)
    return found


def gpus(ray: Any) -> Any:
    """Tasks and actors learn which GPUs they have; on a cluster with four."""
    util = ray.util
    strategy = util.scheduling_strategies.PlacementGroupSchedulingStrategy

    def ids() -> tuple[list[int], list[str]]:
        return ray.get_gpu_ids(), ray.get_runtime_context().get_accelerator_ids()["GPU"]

    @ray.remote(num_cpus=0)
    def task() -> Any:
        return ids()

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self) -> None:
            self.first = ids()

        def ids(self) -> Any:
            return self.first, ids()

    def run(**options: Any) -> Any:
        return ray.get(task.options(**options).remote())

    found: list[Any] = [ids(), run()]
    found += [run(num_gpus=number) for number in (1, 2, 4, 0.5, 0.25)]
    found.append(ray.get([task.remote() for _ in range(4)]))
    try:
        task.options(num_gpus=1.5).remote()
    except ValueError:
        found.append("ValueError")
    each = [Actor.options(num_gpus=1).remote() for _ in range(4)]
    found.append(sorted(ray.get([actor.ids.remote() for actor in each])))
    for actor in each:
        ray.kill(actor)
    found.append(until(lambda: ray.available_resources().get("GPU") == 4))
    halves = [Actor.options(num_gpus=0.5).remote() for _ in range(3)]
    found.append(sorted(ray.get([actor.ids.remote() for actor in halves])))
    found.append(run(num_gpus=2))
    for actor in halves:
        ray.kill(actor)
    found.append(until(lambda: ray.available_resources().get("GPU") == 4))
    group = util.placement_group([{"GPU": 2}, {"GPU": 1}])
    found.append(group.wait(30))
    found += [run(num_gpus=1, scheduling_strategy=strategy(group, at)) for at in (0, 1)]
    found.append(run(scheduling_strategy=strategy(group, 0)))
    actor = Actor.options(num_gpus=2, scheduling_strategy=strategy(group, 0)).remote()
    found.append(ray.get(actor.ids.remote()))
    found.append(run(num_gpus=1))
    util.remove_placement_group(group)
    found.append(until(lambda: ray.available_resources().get("GPU") == 4))
    found.append(run(num_gpus=4))
    return found


def visible_gpus(ray: Any) -> Any:
    """``CUDA_VISIBLE_DEVICES`` are the GPUs of a task or an actor; on a cluster with four."""
    import os

    @ray.remote(num_cpus=0)
    def task() -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    @ray.remote(num_cpus=0)
    class Actor:
        def visible(self) -> str | None:
            return os.environ.get("CUDA_VISIBLE_DEVICES")

    found = [ray.get(task.options(num_gpus=number).remote()) for number in (0, 1, 2, 0.5, 0)]
    given = {"env_vars": {"CUDA_VISIBLE_DEVICES": "9"}}
    found.append(ray.get(task.options(num_gpus=1, runtime_env=given).remote()))
    for number in (0, 2):
        actor = Actor.options(num_gpus=number).remote()
        found.append(ray.get(actor.visible.remote()))
        ray.kill(actor)
    return found
