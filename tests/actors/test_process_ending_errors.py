"""Calls that raise a BaseException: no caller hangs, and no slot is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    TaskCancelledError,
    WorkerCrashedError,
)

WAIT_S = 30


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


@ray.remote
class Unborn:
    def __init__(self, error: type[BaseException]) -> None:
        raises(error)

    def works(self) -> int:
        return 1


@ray.remote(max_retries=0)
def task(error: type[BaseException]) -> None:
    raises(error)


@ray.remote(max_retries=0)
def element(error: type[BaseException] | None) -> None:
    if error is not None:
        raises(error)


@ray.remote(max_retries=0)
def items(error: type[BaseException]) -> Iterator[int]:
    yield 1
    raises(error)


@pytest.mark.parametrize("kind", [Coroutines, Threads, OneByOne])
def test_a_call_that_is_cancelled_leaves_its_actor_well(cluster: Any, kind: Any) -> None:
    actor = kind.options(max_concurrency=2).remote() if kind is not OneByOne else kind.remote()
    for _ in range(3):
        with pytest.raises(TaskCancelledError):
            ray.get(actor.end.remote(asyncio.CancelledError), timeout=WAIT_S)
    assert ray.get([actor.works.remote() for _ in range(4)], timeout=WAIT_S) == [1] * 4


def test_a_coroutine_that_awaits_a_cancelled_task(cluster: Any) -> None:
    actor = Coroutines.options(max_concurrency=1).remote()
    for _ in range(2):
        with pytest.raises(TaskCancelledError):
            ray.get(actor.await_cancelled.remote(), timeout=WAIT_S)
    assert ray.get(actor.works.remote(), timeout=WAIT_S) == 1


@pytest.mark.parametrize("kind", [Coroutines, Threads])
def test_an_error_that_ends_the_process_ends_the_actor(cluster: Any, kind: Any) -> None:
    actor = kind.remote()
    with pytest.raises(ActorDiedError, match="a call raised SystemExit"):
        ray.get(actor.end.remote(SystemExit), timeout=WAIT_S)


def test_system_exit_ends_a_sequential_actor(cluster: Any) -> None:
    actor = OneByOne.remote()
    assert ray.get(actor.works.remote(), timeout=WAIT_S) == 1
    for call in (
        actor.end.remote(SystemExit),
        actor.works.remote(),
        Unborn.remote(SystemExit).works.remote(),
    ):
        with pytest.raises(ActorDiedError, match="its worker ended: exit code 2"):
            ray.get(call, timeout=WAIT_S)


@pytest.mark.parametrize("kind", ["call", "range", "stream"])
def test_system_exit_ends_a_tasks_worker_and_frees_its_cpu(cluster: Any, kind: str) -> None:
    error = SystemExit
    with pytest.raises(WorkerCrashedError, match="exit code 2"):
        if kind == "call":
            ray.get(task.remote(error), timeout=WAIT_S)
        elif kind == "range":
            ray.get(element.map([None] * 3 + [error] + [None] * 2), timeout=WAIT_S)
        else:
            ray.get(list(items.remote(error)), timeout=WAIT_S)
    for _ in range(1_000):
        if ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]:
            return
        ray.sleep(0.01)
    pytest.fail("the CPU of the worker that ended is still taken")


@ray.remote(max_retries=2)
def ends_twice(path: str) -> int:
    with open(path, "a+") as file:
        file.write("x")
        file.seek(0)
        tries = len(file.read())
    if tries < 3:
        sys.exit(5)
    return tries


def test_a_task_whose_worker_ended_is_retried(cluster: Any, tmp_path: Path) -> None:
    assert ray.get(ends_twice.remote(str(tmp_path / "tries")), timeout=WAIT_S) == 3


@ray.remote(max_retries=0, runtime_env={"env_vars": {"LEFT_BEHIND": "1"}})
def ends_with_variables() -> None:
    sys.exit(2)


def test_environment_variables_end_with_the_task(cluster: Any) -> None:
    with pytest.raises(WorkerCrashedError):
        ray.get(ends_with_variables.remote(), timeout=WAIT_S)
    assert "LEFT_BEHIND" not in os.environ


@pytest.mark.parametrize(("code", "status"), [(None, 0), (2**40 + 3, 3), ("why", 1)])
def test_the_exit_code_is_that_of_a_process(cluster: Any, code: Any, status: int) -> None:
    @ray.remote(max_retries=0)
    def leave() -> None:
        sys.exit(code)

    with pytest.raises(WorkerCrashedError, match=f"exit code {status}$"):
        ray.get(leave.remote(), timeout=WAIT_S)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_unawaited_coroutine_may_end_the_process(
    cluster: Any, error: type[BaseException]
) -> None:
    with pytest.raises(ActorDiedError, match=error.__name__):
        ray.get(Coroutines.remote().leave_behind.remote(error), timeout=WAIT_S)


def test_system_exit_is_a_crash_and_the_actor_may_restart(cluster: Any) -> None:
    actor = Threads.options(max_restarts=1, max_task_retries=0).remote()
    with pytest.raises(ActorUnavailableError):
        ray.get(actor.end.remote(SystemExit), timeout=WAIT_S)
    works = actor.works.options(max_task_retries=-1)  # the call waits for the restart
    assert ray.get(works.remote(), timeout=WAIT_S) == 1


def test_a_task_that_is_cancelled_within_asyncio(cluster: Any) -> None:
    for ref in (task.remote(asyncio.CancelledError), *task.map([asyncio.CancelledError] * 3)):
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=WAIT_S)
