"""Tasks that wait for tasks: how many workers they need, and that they all get through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.virtual_cluster import start


def worker() -> str:
    return str(ray.get_runtime_context().get_worker_id())


@ray.remote
def leaf() -> set[str]:
    return {worker()}


@ray.remote
def parent() -> set[str]:
    return ray.get(leaf.remote()) | {worker()}


@ray.remote
def grandparent() -> set[str]:
    return ray.get(parent.remote()) | {worker()}


@ray.remote
def fibonacci(n: int) -> tuple[int, set[str]]:
    """Return a Fibonacci number and the workers that took part."""
    if n < 2:
        return n, {worker()}
    (a, first), (b, second) = ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)])
    return a + b, first | second | {worker()}


@ray.remote(num_cpus=0)
class Barrier:
    def __init__(self, count: int) -> None:
        self.missing = count
        self.open = asyncio.Event()

    async def arrive(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.open.set()
        await self.open.wait()


@pytest.mark.parametrize(
    ("count", "cpus", "depth"), [(1000, 1, 2), (1000, 2, 3), (300, 1, 3), (300, 8, 3)]
)
def test_many_parents_need_few_workers(count: int, cpus: int, depth: int) -> None:
    start(nodes=1, cpus_per_node=cpus)
    root: Any = {2: parent, 3: grandparent}[depth]
    refs = [root.remote() for _ in range(count)]
    workers = set().union(*ray.get(refs))
    # At each depth, twice as many tasks as there are CPUs.
    assert len(workers) <= 2 * cpus * depth


def test_a_task_array_of_parents_needs_few_workers() -> None:
    start(nodes=1, cpus_per_node=2)

    @ray.remote
    def child(_: int) -> set[str]:
        return {worker()}

    @ray.remote
    def with_children(_: int) -> set[str]:
        return set().union(*ray.get(child.map(range(3)))) | {worker()}

    assert len(set().union(*ray.get(with_children.map(range(300))))) <= 8


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_function_that_calls_itself_needs_few_workers(nodes: int) -> None:
    start(nodes=nodes, cpus_per_node=1)
    began_s = ray.now()
    value, workers = ray.get(fibonacci.remote(11))
    assert value == 89
    assert len(workers) <= nodes * 2 * 12
    assert ray.now() - began_s < 5.0, "it waited for stalls"


def test_parents_on_several_nodes_get_through() -> None:
    start(nodes=3, cpus_per_node=1)
    began_s = ray.now()
    refs = [grandparent.options(scheduling_strategy="SPREAD").remote() for _ in range(200)]
    workers = set().union(*ray.get(refs))
    assert len(workers) <= 3 * 8
    assert ray.now() - began_s < 10.0


def test_siblings_that_wait_for_one_another_get_through() -> None:
    start(nodes=1, cpus_per_node=1)
    barrier = Barrier.remote(8)

    @ray.remote
    def sibling(at: int) -> int:
        ray.get(barrier.arrive.remote())
        return at

    assert ray.get([sibling.remote(at) for at in range(8)]) == list(range(8))


def test_siblings_that_ask_again_and_again_get_through() -> None:
    start(nodes=1, cpus_per_node=1)

    @ray.remote(num_cpus=0)
    class Arrivals:
        def __init__(self) -> None:
            self.here: set[int] = set()

        def all_are(self, at: int, count: int) -> bool:
            self.here.add(at)
            return len(self.here) == count

    arrivals = Arrivals.remote()

    @ray.remote
    def sibling(at: int) -> int:
        while not ray.get(arrivals.all_are.remote(at, 2)):
            ray.sleep(0.005)
        return at

    assert ray.get([sibling.remote(at) for at in (0, 1)]) == [0, 1]


def test_a_task_that_its_older_siblings_wait_for_gets_through() -> None:
    """They have its reference inside their arguments, and it still waits for its input."""
    start(nodes=1, cpus_per_node=1)

    @ray.remote
    def same(value: Any) -> Any:
        return ray.get(value[0]) if isinstance(value, list) else value

    @ray.remote
    def slow() -> int:
        ray.sleep(0.1)
        return 7

    last = same.remote(slow.remote())
    assert ray.get([same.remote([last]) for _ in range(6)]) == [7] * 6
