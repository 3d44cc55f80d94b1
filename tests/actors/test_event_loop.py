"""The event loop of an async actor: one, from before its constructor to its end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import ActorDiedError

CALLS_AT_A_TIME = [1, 2, 0]
"""0 is the default of a class with async methods: 1,000."""


@ray.remote(num_cpus=0)
def echo(value: Any) -> Any:
    return value


@ray.remote(num_cpus=0)
def late(value: Any) -> Any:
    ray.sleep(0.2)
    return value


@ray.remote
class Lasting:
    """What it sets going in its constructor goes on in its calls and between them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.loop = asyncio.get_event_loop()
        self.running = asyncio.get_running_loop() is self.loop
        self.ready = self.loop.create_future()
        self.ticks = 0
        self.came: list[Any] = []
        self.kept = [self.loop.create_task(self.tick()), self.loop.create_task(self.fetch())]
        self.database = sqlite3.connect(":memory:")

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.ticks += 1

    async def fetch(self) -> None:
        self.came.append(await late.remote("of the constructor"))

    def place(self) -> tuple[bool, bool]:
        """Return whether this is the constructor's thread, and whether its loop."""
        same_loop = asyncio.get_running_loop() is self.loop
        return threading.get_ident() == self.thread, same_loop and self.running

    async def place_async(self) -> tuple[bool, bool]:
        return self.place()

    async def places(self) -> AsyncIterator[tuple[bool, bool]]:
        yield self.place()

    def places_plainly(self) -> Iterator[tuple[bool, bool]]:
        yield self.place()

    async def give(self, value: int) -> None:
        self.ready.set_result(value)

    async def take(self) -> int:
        return await self.ready

    async def select(self) -> list[Any]:
        return self.database.execute("select 7").fetchall()

    async def set_going(self) -> None:
        async def go_on() -> None:
            self.came.append(await late.remote("of a call"))

        self.kept.append(asyncio.get_running_loop().create_task(go_on()))

    async def seen(self) -> tuple[int, list[Any]]:
        return self.ticks, self.came

    async def leave_from_the_loop(self) -> None:
        def leave() -> None:
            raise SystemExit(3)

        self.loop.call_soon(leave)

    async def stop_the_loop(self) -> None:
        asyncio.get_event_loop().stop()


@pytest.mark.parametrize("limit", CALLS_AT_A_TIME)
def test_constructor_and_calls_share_a_thread_and_a_loop(cluster: Any, limit: int) -> None:
    actor = Lasting.options(max_concurrency=limit).remote()
    assert ray.get(actor.place.remote()) == (True, True)
    assert ray.get(actor.place_async.remote()) == (True, True)
    assert ray.get(next(actor.places.remote())) == (True, True)
    assert ray.get(next(actor.places_plainly.remote())) == (True, True)
    ray.get(actor.give.remote(5))
    assert ray.get(actor.take.remote()) == 5
    assert ray.get(actor.select.remote()) == [(7,)]


@pytest.mark.parametrize("limit", CALLS_AT_A_TIME)
def test_background_tasks_run_between_calls(cluster: Any, limit: int) -> None:
    actor = Lasting.options(max_concurrency=limit).remote()
    ray.get(actor.set_going.remote())
    before, came = ray.get(actor.seen.remote())
    after, patience = before, ray.now() + 60
    while (after == before or len(came) < 2) and ray.now() < patience:
        ray.sleep(0.2)
        after, came = ray.get(actor.seen.remote())
    assert after > before
    assert sorted(came) == ["of a call", "of the constructor"]


def test_an_error_of_the_constructor_in_the_loop(cluster: Any) -> None:
    @ray.remote
    class Broken:
        def __init__(self) -> None:
            raise KeyError("no such thing")

        async def never(self) -> None:
            """Nobody gets here."""

    with pytest.raises(ActorDiedError, match="no such thing") as raised:
        ray.get(Broken.remote().never.remote())
    assert "actor_instance" not in str(raised.value)


@pytest.mark.parametrize("limit", CALLS_AT_A_TIME)
def test_an_error_that_ends_the_loop_ends_the_actor(cluster: Any, limit: int) -> None:
    actor = Lasting.options(max_concurrency=limit).remote()
    ray.get(actor.place.remote())
    with pytest.raises(ActorDiedError):
        ray.get([actor.leave_from_the_loop.remote(), actor.take.remote()], timeout=60)


@pytest.mark.parametrize("limit", CALLS_AT_A_TIME)
def test_stopping_the_loop_ends_the_actor(cluster: Any, limit: int) -> None:
    actor = Lasting.options(max_concurrency=limit).remote()
    ray.get(actor.place.remote())
    with pytest.raises(ActorDiedError, match="its event loop was stopped"):
        ray.get([actor.stop_the_loop.remote(), actor.take.remote()], timeout=60)


def test_an_actor_that_leaves_may_stop_its_loop(cluster: Any) -> None:
    @ray.remote
    class Leaves:
        async def leave(self) -> None:
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
            ray.exit_actor()

    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(Leaves.remote().leave.remote(), timeout=60)


def test_system_exit_in_the_constructor(cluster: Any) -> None:
    def end() -> None:
        raise SystemExit(4)

    @ray.remote
    class Ends:
        def __init__(self) -> None:
            end()

        async def never(self) -> None:
            """Nobody gets here."""

    @ray.remote
    class EndsBeside:
        async def __init__(self) -> None:
            asyncio.get_running_loop().call_soon(end)
            await asyncio.Event().wait()

        async def never(self) -> None:
            """Nobody gets here."""

    for cls in (Ends, EndsBeside):
        with pytest.raises(ActorDiedError):
            ray.get(cls.remote().never.remote(), timeout=60)


def test_queued_calls_cost_nothing_while_they_wait(cluster: Any) -> None:
    """While any did, a thread woke up 50 times a second and found nothing to do."""
    if cluster.name == "sim":
        pytest.skip("in virtual time nobody polls")

    @ray.remote(max_concurrency=1)
    class Watching:
        async def wakes(self) -> tuple[int, int]:
            """Return how often one of its threads polled meanwhile, and what waited then."""
            world = current().world
            reactor, found = world.process.reactor, 0
            wait = reactor.wait

            def counted(timeout_s: float | None) -> Any:
                nonlocal found
                found += 1
                return wait(timeout_s)

            reactor.wait = counted
            await asyncio.sleep(1.0)
            reactor.wait = wait
            return found, len(world.executor.queue)

    actor = Watching.remote()
    first, *rest = [actor.wakes.remote() for _ in range(3)]
    found, behind = ray.get(first, timeout=60)
    assert behind == len(rest)
    assert found < 10
    assert ray.get(rest[-1], timeout=60)[1] == 0, "they all came to their turn"


def test_a_coroutine_that_runs_alone_is_cancelled_where_it_waits(cluster: Any) -> None:
    @ray.remote(max_concurrency=1)
    class Waits:
        def __init__(self) -> None:
            self.begun = 0

        async def wait(self) -> None:
            self.begun += 1
            await asyncio.Event().wait()

        async def count(self) -> int:
            return self.begun

    actor = Waits.remote()
    assert ray.get(actor.count.remote()) == 0
    waiting, counted = actor.wait.remote(), actor.count.remote()
    ray.sleep(0.2)
    ray.cancel(waiting)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(waiting, timeout=60)
    assert ray.get(counted, timeout=60) == 1
