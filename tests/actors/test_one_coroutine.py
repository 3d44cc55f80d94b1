"""Async actors of one call at a time: their CPU, checkpoints and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray


@ray.remote(num_cpus=0)
def echo(value: Any) -> Any:
    return value


def test_one_at_a_time_gives_its_cpu_up_while_it_waits(start: Any) -> None:
    start(nodes=1, cpus_per_node=1)

    @ray.remote
    def one() -> int:
        return 1

    @ray.remote(num_cpus=1, max_concurrency=1)
    class Waits:
        def __init__(self) -> None:
            self.first = ray.get(one.remote())

        async def wait(self) -> int:
            return self.first + ray.get(one.remote())

    assert ray.get(Waits.remote().wait.remote(), timeout=60) == 2


@ray.remote(max_restarts=1, max_task_retries=1, max_concurrency=1)
class Adding:
    """Keeps on its loop what it is restored from."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sum = 0
        self.restored = -1

    async def add(self, n: int) -> int:
        await asyncio.sleep(0)
        self.sum += await echo.remote(n)
        return self.sum

    async def origin(self) -> int:
        return self.restored

    def __ray_save__(self) -> int:
        assert asyncio.get_running_loop() is self.loop
        return self.sum

    def __ray_restore__(self, state: int) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.sum = self.restored = state


@pytest.mark.parametrize("interval", [0, 4])
def test_one_at_a_time_is_rebuilt(start: Any, interval: int) -> None:
    start()
    actor = Adding.options(checkpoint_interval=interval).remote()
    assert ray.get([actor.add.remote(1) for _ in range(10)]) == list(range(1, 11))
    ray.kill(actor, no_restart=False)
    assert ray.get([actor.add.remote(1) for _ in range(3)], timeout=60) == [11, 12, 13]
    assert ray.get(actor.origin.remote()) == (8 if interval else -1)
