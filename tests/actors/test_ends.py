"""Calls that raise what is no Exception: nobody waits for ever, and no place is lost."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import raytwin as ray
from runtime.api.exceptions import ActorDiedError, ActorUnavailableError, TaskCancelledError

WAIT_S = 30


class Own(BaseException):
    """An error that no ``except Exception`` catches."""


def raises(error: type[BaseException]) -> None:
    if error is SystemExit:
        sys.exit(2)
    raise error


@ray.remote
class Coroutines:
    async def end(self, error: type[BaseException]) -> None:
        await asyncio.sleep(0)
        raises(error)

    async def await_cancelled(self) -> None:
        sleeping = asyncio.ensure_future(asyncio.sleep(10))
        await asyncio.sleep(0)
        sleeping.cancel()
        await sleeping

    async def leave_behind(self, error: type[BaseException]) -> None:
        async def child() -> None:
            raises(error)

        self.child = asyncio.ensure_future(child())
        await asyncio.sleep(10)

    async def works(self) -> int:
        return 1


@ray.remote(max_concurrency=2)
class Threads:
    def end(self, error: type[BaseException]) -> None:
        raises(error)

    def works(self) -> int:
        return 1


@ray.remote
class OneByOne:
    def end(self, error: type[BaseException]) -> None:
        raises(error)

    def works(self) -> int:
        return 1


@ray.remote(max_retries=0)
def task(error: type[BaseException]) -> None:
    raises(error)


@pytest.mark.parametrize("kind", [Coroutines, Threads, OneByOne])
def test_a_call_that_is_cancelled_leaves_its_actor_well(cluster: Any, kind: Any) -> None:
    actor = kind.options(max_concurrency=2).remote() if kind is not OneByOne else kind.remote()
    for _ in range(3):
        with pytest.raises(TaskCancelledError):
            ray.get(actor.end.remote(asyncio.CancelledError), timeout=WAIT_S)
    assert ray.get([actor.works.remote() for _ in range(4)], timeout=WAIT_S) == [1] * 4


def test_a_coroutine_that_awaits_what_is_cancelled(cluster: Any) -> None:
    actor = Coroutines.options(max_concurrency=1).remote()
    for _ in range(2):
        with pytest.raises(TaskCancelledError):
            ray.get(actor.await_cancelled.remote(), timeout=WAIT_S)
    assert ray.get(actor.works.remote(), timeout=WAIT_S) == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, Own])
@pytest.mark.parametrize("kind", [Coroutines, Threads])
def test_what_ends_a_process_ends_the_actor(
    cluster: Any, kind: Any, error: type[BaseException]
) -> None:
    actor = kind.remote()
    with pytest.raises(ActorDiedError, match=f"a call raised {error.__name__}"):
        ray.get(actor.end.remote(error), timeout=WAIT_S)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_nobody_awaits_may_end_the_process(
    cluster: Any, error: type[BaseException]
) -> None:
    with pytest.raises(ActorDiedError, match=error.__name__):
        ray.get(Coroutines.remote().leave_behind.remote(error), timeout=WAIT_S)


def test_such_an_end_is_a_crash_and_the_actor_may_start_again(cluster: Any) -> None:
    actor = Threads.options(max_restarts=1, max_task_retries=0).remote()
    with pytest.raises(ActorUnavailableError):
        ray.get(actor.end.remote(SystemExit), timeout=WAIT_S)
    assert ray.get(actor.works.remote(), timeout=WAIT_S) == 1


def test_a_task_that_is_cancelled_within_asyncio(cluster: Any) -> None:
    for ref in (task.remote(asyncio.CancelledError), *task.map([asyncio.CancelledError] * 3)):
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=WAIT_S)
