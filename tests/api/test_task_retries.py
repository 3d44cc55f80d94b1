"""The effects of a task that is retried after its own errors, in each try."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray

LIMIT_S = 30
TRIES = 3
LARGE = 150_000


@pytest.fixture(params=["sim", "local"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    ray.init(backend=request.param, nodes=[{"CPU": 4, "here": 1}, {"CPU": 1, "there": 1}])
    yield request.param
    ray.shutdown()


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, nbytes: int = 0) -> Any:
        self.count += 1
        return bytes([self.count]) * nbytes if nbytes else self.count

    def read(self) -> int:
        return self.count


def fails(log: Path) -> None:
    """Raise in all tries but the last one."""
    with log.open("a") as file:
        file.write("try\n")
    if len(log.read_text().split()) < TRIES:
        raise ValueError("again")


@pytest.mark.parametrize("count", [1, 3, 16])
def test_calls_take_effect_in_each_try_on_whatever_worker(
    backend: str, tmp_path: Path, count: int
) -> None:
    @ray.remote(max_retries=TRIES, retry_exceptions=True)
    def task(counter: Any, log: Path) -> Any:
        found = ray.get(counter.add.remote())
        ray.sleep(0.005)
        fails(log)
        return found

    counters = [Counter.remote() for _ in range(count)]
    tasks = [task.remote(counter, tmp_path / str(n)) for n, counter in enumerate(counters)]
    assert ray.get(tasks, timeout=LIMIT_S) == [TRIES] * count
    assert ray.get([counter.read.remote() for counter in counters]) == [TRIES] * count


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_retry_gets_large_results_of_its_own(backend: str, tmp_path: Path, where: str) -> None:
    @ray.remote(max_retries=TRIES, retry_exceptions=True, resources={"here": 0.1})
    def task(counter: Any, log: Path) -> Any:
        found = ray.get(counter.add.remote(LARGE))
        assert len(set(found)) == 1
        first = found[0]
        del found
        kept = ray.put(bytes([first]) * LARGE)
        ray.sleep(0.1)
        fails(log)
        return first, ray.get(kept)

    counter = Counter.options(resources={where: 0.1}).remote()
    ref = task.remote(counter, tmp_path / "log")
    others = []
    for number in range(10):
        others.append(ray.put(bytes([200 + number]) * LARGE))
        ray.sleep(0.05)
    assert ray.get(ref, timeout=LIMIT_S) == (TRIES, bytes([TRIES]) * LARGE)


@pytest.mark.parametrize("name", ["", "helper"])
@pytest.mark.parametrize("drops", [False, True])
def test_a_retry_makes_an_actor_of_its_own(
    backend: str, tmp_path: Path, name: str, drops: bool
) -> None:
    @ray.remote(max_retries=TRIES, retry_exceptions=True)
    def task(log: Path) -> Any:
        helper = Counter.options(name=name).remote() if name else Counter.remote()
        found = ray.get(helper.add.remote())
        if drops:
            del helper
            ray.sleep(0.1)
        fails(log)
        return found

    assert ray.get(task.remote(tmp_path / "log"), timeout=LIMIT_S) == 1
    assert len((tmp_path / "log").read_text().split()) == TRIES


@pytest.mark.parametrize("at_once", [1, 2])
def test_calls_of_a_method_that_is_called_again_take_effect_each_time(
    backend: str, tmp_path: Path, at_once: int
) -> None:
    @ray.remote(max_concurrency=at_once, max_task_retries=TRIES)
    class Caller:
        @ray.method(retry_exceptions=True)
        def go(self, counter: Any, log: Path) -> Any:
            found = ray.get(counter.add.remote())
            fails(log)
            return found

    counter = Counter.remote()
    caller = Caller.remote()
    assert ray.get(caller.go.remote(counter, tmp_path / "log"), timeout=LIMIT_S) == TRIES
    assert ray.get(counter.read.remote()) == TRIES
