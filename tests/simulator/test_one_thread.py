"""Threads of simulated programs are refused, and the simulation goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import raytwin as ray

REFUSED = "simulated programs have one thread"


@ray.remote
def same(x: Any) -> Any:
    return x


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture(autouse=True)
def cluster() -> Iterator[None]:
    ray.init(backend="sim", num_cpus=2)
    yield
    ray.shutdown()


def on_a_thread(call: Callable[[], object]) -> object:
    """Return what a call returns on a thread of its own, or raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=30)


def calls() -> dict[str, Callable[[], object]]:
    """What may be called, with something of the cluster's to call it on."""
    ref, ready = same.remote(1), ray.put(2)
    array, counter = same.map(range(3)), Counter.remote()
    future = same.remote(3).future()
    return {
        "get": lambda: ray.get(ref),
        "get what is there": lambda: ray.get(ready),
        "get an array": lambda: ray.get(array),
        "wait": lambda: ray.wait([ref]),
        "put": lambda: ray.put(1),
        "remote": lambda: same.remote(1),
        "map": lambda: same.map(range(3)),
        "actor": Counter.remote,
        "method": counter.add.remote,
        "kill": lambda: ray.kill(counter),
        "cancel": lambda: ray.cancel(ref),
        "future": ref.future,
        "result": future.result,
        "sleep": lambda: ray.sleep(1),
        "compute": lambda: ray.compute(1),
        "now": ray.now,
        "nodes": ray.nodes,
        "context": lambda: ray.get_runtime_context().get_node_id(),
        "shutdown": ray.shutdown,
    }


@pytest.mark.parametrize(
    "name",
    [
        "get", "get what is there", "get an array", "wait", "put", "remote", "map", "actor",
        "method", "kill", "cancel", "future", "result", "sleep", "compute", "now", "nodes",
        "context", "shutdown",
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["driver", "task"])
def test_a_thread_gets_an_error_and_the_simulation_goes_on(where: str, name: str) -> None:
    def refused() -> bool:
        call = calls()[name]
        with pytest.raises(RuntimeError, match=REFUSED):
            on_a_thread(call)
        return ray.get(same.remote(4)) == 4

    assert refused() if where == "driver" else ray.get(ray.remote(refused).remote())
    counter = Counter.remote()
    assert ray.get([counter.add.remote() for _ in range(3)]) == [1, 2, 3]
    assert ray.get(same.map(range(50))) == list(range(50))


def test_a_future_that_a_thread_asked_for_still_has_its_value() -> None:
    future = same.remote(5).future()
    with pytest.raises(RuntimeError, match=REFUSED):
        on_a_thread(future.result)
    assert future.result() == 5


def test_a_thread_of_a_coroutine() -> None:
    async def main() -> int:
        with pytest.raises(RuntimeError, match=REFUSED):
            await asyncio.to_thread(ray.get, same.remote(1))
        return int(await same.remote(6))

    assert asyncio.run(main()) == 6


def test_no_loop_seems_to_run_once_the_cluster_has_ended() -> None:
    async def main() -> int:
        return int(await same.remote(6))

    assert asyncio.run(main()) == 6
    ray.shutdown()
    assert asyncio._get_running_loop() is None


def test_calls_without_the_cluster_work_on_any_thread() -> None:
    ref = same.remote(7)
    kept = [ref]
    assert on_a_thread(ray.is_initialized)
    assert on_a_thread(ref.hex) == ref.hex()
    on_a_thread(kept.clear)
    del ref
    assert ray.get(same.remote(8)) == 8


STARTED_ON_A_THREAD = """
import threading
import raytwin as ray

@ray.remote
class Counter:
    def add(self):
        return 1

def main():
    global counter
    ray.init(backend="sim")
    counter = Counter.remote()
    print(ray.get(counter.add.remote()))

thread = threading.Thread(target=main)
thread.start()
thread.join()
"""


def test_a_simulation_whose_thread_has_ended_ends_with_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED_ON_A_THREAD],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
