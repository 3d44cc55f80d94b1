"""An error of the runtime itself around a call ends the actor, and no caller hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError
from raytwin.runtime.execution.actor_instance import ActorInstance


def break_once() -> None:
    """Have the runtime fail after the next call, in this process."""
    before = ActorInstance.took_effect

    def broken(*args: Any) -> None:
        ActorInstance.took_effect = before  # type: ignore[method-assign]
        raise LookupError("of the runtime's own")

    ActorInstance.took_effect = broken  # type: ignore[method-assign]


@ray.remote(max_concurrency=3)
class Threads:
    def breaks(self) -> int:
        break_once()
        return 1

    def nap(self, seconds: float = 100.0) -> int:
        ray.sleep(seconds)
        return 1


@ray.remote
class Coroutines:
    async def breaks(self) -> int:
        break_once()
        return 1

    async def nap(self, seconds: float = 100.0) -> int:
        await asyncio.sleep(seconds)
        return 1


@pytest.mark.parametrize("kind", [Threads, Coroutines])
def test_an_error_of_the_runtime_ends_the_actor_with_its_cause(cluster: Any, kind: Any) -> None:
    actor = kind.remote()
    assert ray.get(actor.nap.remote(0.0)) == 1
    napping = actor.nap.remote()
    actor.breaks.remote()
    with pytest.raises(ActorDiedError, match="LookupError: of the runtime's own"):
        ray.get(napping, timeout=60)
    with pytest.raises(ActorDiedError):
        ray.get(actor.nap.remote(0.0), timeout=60)
