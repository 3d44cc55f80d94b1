"""Clusters of a size that one machine is not meant for: how long, and how much memory.

For raytwin alone, and only if asked for by name: each takes up to a minute, most of a
machine's memory, and one cluster after another. What one figure is of, and what it
leaves out, is in the docstrings; `bench --cases NAME` measures it.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from raytwin.scenarios.bench.cases import Fresh, about_of, pss_mb

NODES = 100
ACTOR_NODES = 10
ACTORS = 2_000

LARGE: dict[str, Fresh] = {}


def _large(unit: str, limit: str, memory_bytes: float) -> Any:
    def register(function: Any) -> Any:
        name = function.__name__
        LARGE[name] = Fresh(name, unit, limit, about_of(function), memory_bytes)
        return function

    return register


@_large("s", limit="interpreter_s", memory_bytes=4e9)
def start_100_nodes(ray: Any) -> float:
    """Seconds from calling ``init`` of 100 nodes with a CPU each until a task has run on each."""
    begun_s = time.perf_counter()
    _start_nodes(ray)
    return time.perf_counter() - begun_s


@_large("MB", limit="interpreter_mb", memory_bytes=4e9)
def memory_100_nodes(ray: Any) -> float:
    """Memory of 100 nodes with a worker each and their driver, after a task on every node.

    Proportional set size, as in `idle_memory`.
    """
    _start_nodes(ray)
    driver = psutil.Process()
    return sum(map(pss_mb, [driver, *driver.children(recursive=True)]))


def _start_nodes(ray: Any) -> None:
    ray.init(nodes=NODES, cpus_per_node=1)

    @ray.remote(num_cpus=1)
    def where() -> str:
        return str(ray.get_runtime_context().get_node_id())

    there = [where.options(resources={f"node:{i}": 0.01}).remote() for i in range(NODES)]
    assert len(set(ray.get(there))) == NODES


@_large("s", limit="interpreter_s", memory_bytes=10e9)
def create_2000_actors(ray: Any) -> float:
    """Seconds to create 2,000 actors, each a process, on 10 nodes and call each of them once.

    They have restarts and a checkpoint's hooks, as those of figure 11b. The cluster is
    there before; that they end is not in the time.
    """
    nodes = [{"CPU": 1.0}, *({"CPU": 2.0, "slot": float(ACTORS)} for _ in range(ACTOR_NODES))]
    ray.init(nodes=nodes)

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

        def __ray_save__(self) -> int:
            return self.count

        def __ray_restore__(self, state: int) -> None:
            self.count = state

    remote = ray.remote(resources={"slot": 1}, num_cpus=0, max_restarts=-1, max_task_retries=-1)(
        Counter
    )
    begun_s = time.perf_counter()
    actors = [remote.remote() for _ in range(ACTORS)]
    assert ray.get([actor.add.remote() for actor in actors]) == [1] * ACTORS
    return time.perf_counter() - begun_s


FUNCTIONS = {
    each.__name__: each for each in (start_100_nodes, memory_100_nodes, create_2000_actors)
}
