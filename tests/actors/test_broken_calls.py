"""An error of the runtime's own, beside a call: the actor ends, and nobody waits for an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError, RayActorError
from raytwin.runtime.execution import actor_threads
from raytwin.runtime.execution.actor_instance import ActorInstance
from raytwin.runtime.execution.actor_threads import CallThread


def break_once(where: Any, name: str) -> None:
    """Have a function of the runtime fail the next time, in this process."""
    before = getattr(where, name)

    def broken(*args: Any) -> None:
        setattr(where, name, before)
        raise LookupError("of the runtime's own")

    setattr(where, name, broken)


class Untellable(Exception):
    """Neither it nor what is raised while it is told can be told."""

    @property
    def __notes__(self) -> list[str]:
        raise ValueError("no notes")


@ray.remote(max_concurrency=3)
class Threads:
    def breaks(self) -> int:
        break_once(actor_threads, "plain_bytes")
        return 1

    def untellable(self) -> None:
        raise Untellable

    def nap(self, seconds: float = 100.0) -> int:
        ray.sleep(seconds)
        return 1

    def leave(self, breaks: bool) -> None:
        if breaks:
            break_once(CallThread, "next_beside")
        ray.exit_actor()


@ray.remote
class Coroutines:
    async def breaks(self) -> int:
        break_once(ActorInstance, "took_effect")
        return 1

    async def untellable(self) -> None:
        raise Untellable

    async def nap(self, seconds: float = 100.0) -> int:
        await asyncio.sleep(seconds)
        return 1


@pytest.mark.parametrize("kind", [Threads, Coroutines])
@pytest.mark.parametrize("how", ["breaks", "untellable"])
def test_the_actor_ends_and_says_why(cluster: Any, kind: Any, how: str) -> None:
    """The thread or coroutine ended without a word; in virtual time the driver's call raised."""
    actor = kind.remote()
    assert ray.get(actor.nap.remote(0.0)) == 1
    napping = actor.nap.remote()
    called = getattr(actor, how).remote()
    why = "LookupError: of the runtime's own" if how == "breaks" else "cannot be told"
    # The value of a coroutine that breaks was on its way by then.
    answered = how == "breaks" and kind is Coroutines
    for ref in (napping,) if answered else (called, napping):
        with pytest.raises(ActorDiedError, match="running a call of it failed") as raised:
            ray.get(ref, timeout=60)
        assert why in str(raised.value)
    with pytest.raises(ActorDiedError):
        ray.get(actor.nap.remote(0.0), timeout=60)


def test_an_actor_that_leaves_meanwhile_ends_too(cluster: Any) -> None:
    actor = Threads.remote()
    napping = actor.nap.remote()
    ray.get(actor.nap.remote(0.0))
    for ref in (actor.leave.remote(True), napping):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=20)


def test_one_with_restarts_left_starts_again(cluster: Any) -> None:
    actor = Threads.options(max_restarts=1).remote()
    ray.get(actor.nap.remote(0.0))
    with pytest.raises(RayActorError):
        ray.get(actor.untellable.options(max_task_retries=0).remote(), timeout=60)
    assert ray.get(actor.nap.remote(0.0), timeout=60) == 1
