"""Coroutines that have not ended when their actor's process ends."""

from __future__ import annotations

import asyncio
import gc

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError
from tests.actors.conftest import Start


@ray.remote
class Sleeper:
    async def sleep(self) -> None:
        await asyncio.sleep(1000)

    async def crash(self) -> None:
        raise SystemExit

    async def ready(self) -> None:
        pass


@pytest.mark.parametrize("how", ["kill", "crash", "shutdown"])
def test_unfinished_coroutines_end_silently_with_the_actor(
    start: Start, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    start()
    sleeper = Sleeper.remote()
    sleeping = [sleeper.sleep.remote() for _ in range(3)]
    ray.get(sleeper.ready.remote())
    if how == "kill":
        ray.kill(sleeper)
    elif how != "shutdown":
        getattr(sleeper, how).remote()
    if how != "shutdown":
        with pytest.raises(ActorDiedError):
            ray.get(sleeping[0])
    ray.shutdown()
    gc.collect()
    assert "pending" not in capfd.readouterr().err + caplog.text
