"""Programs that do the same on Ray and on raytwin: tasks that wait for other tasks.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import asyncio
from typing import Any


def parents(ray: Any) -> Any:
    """Far more tasks wait for tasks than there are CPUs; few are begun at the same time."""

    def worker() -> str:
        return str(ray.get_runtime_context().get_worker_id())

    @ray.remote
    def child(_: int) -> set[str]:
        return {worker()}

    @ray.remote
    def parent(n: int) -> set[str]:
        return ray.get(child.remote(n)) | {worker()}

    @ray.remote
    def grandparent(n: int) -> set[str]:
        return ray.get(parent.remote(n)) | {worker()}

    found = []
    for function in (parent, grandparent):
        workers = ray.get([function.remote(n) for n in range(100)])
        found.append((len(workers), len(set().union(*workers)) <= 24))
    return found


def siblings(ray: Any) -> Any:
    """Tasks that wait for tasks of their own function, or for themselves called again."""

    @ray.remote
    def fibonacci(n: int) -> int:
        if n < 2:
            return n
        return sum(ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)]))

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

    @ray.remote
    def arrive(barrier: Any, at: int) -> int:
        ray.get(barrier.arrive.remote())
        return at

    @ray.remote
    def consume(store: list[Any]) -> int:
        return int(ray.get(store[0]))

    @ray.remote
    def produce(value: int) -> int:
        return value

    @ray.remote
    def wait_a_moment() -> int:
        ray.get(produce.remote(0))
        return 7

    barrier = Barrier.remote(4)
    found: list[Any] = [ray.get(fibonacci.remote(6))]
    found.append(ray.get([arrive.remote(barrier, at) for at in range(4)]))
    late = produce.remote(wait_a_moment.remote())
    found.append(ray.get([consume.remote([late]) for _ in range(10)]))
    return found
