"""A task or call that ends its own process: `os._exit`, `os.abort`, a signal to itself.

On every backend it is one worker that dies, for the reason that a real one would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray


def abort() -> None:
    """Call what is `os.abort` by then: `init` replaces it on the simulator."""
    os.abort()


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "os._exit": (lambda: os._exit(3), "exit code 3"),
    "a long code": (lambda: os._exit(259), "exit code 3"),
    "os.abort": (abort, "killed by SIGABRT"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM"),
    "raise_signal": (lambda: signal.raise_signal(signal.SIGUSR1), "killed by SIGUSR1"),
}


@ray.remote(max_retries=0)
def end(way: str) -> None:
    WAYS[way][0]()


@ray.remote(num_cpus=0)
class Ended:
    def __init__(self, at_once: bool = False) -> None:
        self.calls = 0
        if at_once:
            os._exit(9)

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def end(self) -> None:
        try:
            os._exit(7)
        finally:
            self.calls += 100


@ray.remote(num_cpus=0)
class Coroutines:
    async def count(self) -> int:
        return 1

    async def end(self) -> None:
        os._exit(7)


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_ends_its_process_is_a_worker_that_died(backend: str, way: str) -> None:
    with pytest.raises(ray.exceptions.WorkerCrashedError, match=f"ran end: {WAYS[way][1]}$"):
        ray.get(end.remote(way), timeout=60)


def test_a_task_that_exits_is_retried(backend: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    @ray.remote(max_retries=2)
    def third_time() -> int:
        with runs.open("a") as file:
            file.write("x")
        if runs.stat().st_size < 3:
            os._exit(1)
        return runs.stat().st_size

    assert ray.get(third_time.remote(), timeout=60) == 3


@pytest.mark.parametrize("kind", ["one call at a time", "threads", "coroutines"])
def test_an_actor_dies(backend: str, kind: str) -> None:
    concurrency = 2 if kind == "threads" else 1
    cls: Any = Coroutines if kind == "coroutines" else Ended.options(max_concurrency=concurrency)
    actor = cls.remote()
    assert ray.get(actor.count.remote(), timeout=60) == 1
    for call in (actor.end, actor.count):
        with pytest.raises(ray.exceptions.ActorDiedError, match="exit code 7"):
            ray.get(call.remote(), timeout=60)


def test_an_actor_that_may_restart_does(backend: str) -> None:
    actor = Ended.options(max_restarts=1).remote()
    assert ray.get([actor.count.remote(), actor.count.remote()], timeout=60) == [1, 2]
    with pytest.raises(ray.exceptions.ActorUnavailableError):
        ray.get(actor.end.remote(), timeout=60)
    count = actor.count.options(max_task_retries=-1)  # the call waits for the restart
    assert ray.get(count.remote(), timeout=60) == 3
    for call in (actor.end, actor.count):
        with pytest.raises(ray.exceptions.ActorDiedError, match="exit code 7"):
            ray.get(call.remote(), timeout=60)


def test_a_constructor_that_ends_its_process(backend: str) -> None:
    with pytest.raises(ray.exceptions.ActorDiedError, match="exit code 9"):
        ray.get(Ended.remote(True).count.remote(), timeout=60)


def test_an_invalid_exit_code_is_the_tasks_error(backend: str) -> None:
    @ray.remote(max_retries=0)
    def wrong() -> None:
        os._exit("3")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        ray.get(wrong.remote(), timeout=60)


def test_an_ignored_signal_ends_no_process(backend: str) -> None:
    @ray.remote(max_retries=0)
    def signalled() -> int:
        os.kill(os.getpid(), signal.SIGCHLD)
        os.kill(os.getpid(), 0)
        return 1

    assert ray.get(signalled.remote(), timeout=60) == 1
