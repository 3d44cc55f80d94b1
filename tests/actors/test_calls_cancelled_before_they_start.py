"""A call of an async actor that is cancelled before its coroutine has begun."""

from __future__ import annotations

import asyncio
import time

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import TaskCancelledError
from tests.actors.conftest import Start

WAIT_S = 30


@ray.remote(max_concurrency=2)
class Held:
    async def hold_the_loop(self, seconds: float) -> None:
        time.sleep(seconds)

    async def rest(self) -> None:
        await asyncio.sleep(10 * WAIT_S)

    async def works(self) -> int:
        return 1


def test_a_call_cancelled_before_it_starts_frees_its_slot(local: Start) -> None:
    local(nodes=1)
    actor = Held.remote()
    ray.get(actor.works.remote())
    for _ in range(3):
        held = actor.hold_the_loop.remote(0.3)
        call = actor.rest.remote()
        time.sleep(0.1)  # the call and its end come to the loop while it is held
        ray.cancel(call)
        with pytest.raises(TaskCancelledError):
            ray.get(call, timeout=WAIT_S)
        ray.get(held, timeout=WAIT_S)
    assert ray.get([actor.works.remote() for _ in range(4)], timeout=WAIT_S) == [1] * 4
