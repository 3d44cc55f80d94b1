"""Async actors with one call at a time: their CPU, checkpoints and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray


@ray.remote(num_cpus=0)
def echo(value: Any) -> Any:
    return value


def test_a_sequential_async_actor_releases_its_cpu_while_it_waits(start: Any) -> None:
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
def test_a_sequential_async_actor_is_reconstructed(start: Any, interval: int) -> None:
    start()
    actor = Adding.options(checkpoint_interval=interval).remote()
    assert ray.get([actor.add.remote(1) for _ in range(10)]) == list(range(1, 11))
    ray.kill(actor, no_restart=False)
    assert ray.get([actor.add.remote(1) for _ in range(3)], timeout=60) == [11, 12, 13]
    assert ray.get(actor.origin.remote()) == (8 if interval else -1)


@ray.remote(max_restarts=1, max_task_retries=1)
class GoesOn:
    """Makes something outside of its calls: when the one that set it going has ended."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.made = ""

    async def begin(self) -> None:
        self.going = asyncio.get_running_loop().create_task(self.go_on())

    async def go_on(self) -> None:
        await self.event.wait()
        self.made = echo.remote(1).hex()

    async def end(self) -> None:
        self.event.set()
        await self.going

    async def which(self) -> str:
        return self.made


@pytest.mark.parametrize("limit", [1, 2])
def test_background_coroutines_start_anew_after_a_restart(start: Any, limit: int) -> None:
    start()
    actor = GoesOn.options(max_concurrency=limit).remote()
    ray.get([actor.begin.remote(), actor.end.remote()], timeout=60)
    before = ray.get(actor.which.remote())
    ray.kill(actor, no_restart=False)
    after = ray.get(actor.which.remote(), timeout=60)
    assert before and after
    assert before != after
