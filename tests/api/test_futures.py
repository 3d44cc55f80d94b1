"""Values for asyncio and concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0


@ray.remote
def later(x: Any, seconds: float = 0.05) -> Any:
    ray.sleep(seconds)
    if isinstance(x, Exception):
        raise x
    return x


@ray.remote
def count(n: int) -> Iterator[int]:
    for i in range(n):
        ray.sleep(0.02)
        yield i


def test_await() -> None:
    async def main() -> Any:
        return await later.remote(5), await ray.put(6), await later.remote(ray.Blob(300_000))

    five, six, blob = asyncio.run(main())
    assert (five, six, blob.nbytes) == (5, 6, 300_000)


def test_an_error_is_raised_by_await() -> None:
    async def main() -> None:
        await later.remote(ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


def test_gather_and_as_completed() -> None:
    async def main() -> tuple[list[int], set[int]]:
        gathered = await asyncio.gather(*[later.remote(i) for i in range(20)])
        found = set()
        for done in asyncio.as_completed([later.remote(i, 0.01 * i) for i in range(6)]):
            found.add(await done)
        return gathered, found

    assert asyncio.run(main()) == (list(range(20)), set(range(6)))


def test_a_stream_in_an_event_loop() -> None:
    async def main() -> list[int]:
        return [await ref async for ref in count.remote(4)]

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_futures() -> None:
    future = later.remote(1, 0.3).future()
    assert isinstance(future, concurrent.futures.Future)
    assert not future.done()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert future.result(timeout=LIMIT_S) == 1
    assert future.done()
    failed = later.remote(KeyError("x")).future()
    assert isinstance(failed.exception(timeout=LIMIT_S), KeyError)
    called: list[Any] = []
    future.add_done_callback(called.append)
    assert called == [future]


def test_many_futures_need_no_thread_each(backend: str) -> None:
    before = threading.active_count()
    futures = [later.remote(i, 0.001).future() for i in range(300)]
    assert threading.active_count() <= before + 1
    assert [f.result(timeout=LIMIT_S) for f in futures] == list(range(300))
    assert ray.get(later.remote(7), timeout=LIMIT_S) == 7


def test_task_ids() -> None:
    one, two = later.remote(1), later.remote(1)
    assert one.task_id() != two.task_id()
    assert one.task_id() == one.task_id()
    assert one.hex().startswith(one.task_id().hex())


@ray.remote(num_cpus=0)
def awaits(n: int) -> list[int]:
    async def main() -> list[int]:
        return list(await asyncio.gather(*[later.remote(i) for i in range(n)]))

    return asyncio.run(main())


@ray.remote
def leaves(ref: list[Any]) -> str:
    ref[0].future()
    return "left"


def test_tasks_may_await_too() -> None:
    # More tasks than CPUs: a task that awaits keeps its CPU.
    assert ray.get([awaits.remote(5) for _ in range(6)], timeout=LIMIT_S) == [list(range(5))] * 6


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.calls = 0

    async def slowly(self, x: int) -> int:
        self.calls += 1
        await asyncio.sleep(0.05)
        return x

    async def total(self, refs: list[Any]) -> int:
        return sum(await asyncio.gather(*refs))


def test_async_actors_await_references() -> None:
    actor = Counter.remote()
    own = [actor.slowly.remote(i) for i in range(5)]
    others = [later.remote(i) for i in range(5)]
    found = [actor.total.remote(own), actor.total.remote(others)]
    assert ray.get(found, timeout=LIMIT_S) == [10, 10]


def test_a_thread_that_outlives_its_task(backend: str) -> None:
    if backend == "sim":
        pytest.skip("simulated programs have no threads")

    @ray.remote
    def leave(ref: list[Any]) -> None:
        thread = threading.Thread(target=ray.get, args=(ref,), daemon=True)
        thread.start()
        ray.sleep(0.1)  # it waits by now

    long = later.remote(0, 1.0)
    ray.get([leave.remote([long]) for _ in range(4)], timeout=LIMIT_S)
    assert ray.get(long, timeout=LIMIT_S) == 0
    end_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU") != 4.0:
        assert ray.now() < end_s, ray.available_resources()
        ray.sleep(0.02)


def test_a_future_without_a_waiter() -> None:
    long = later.remote(0, 1.0)
    assert ray.get([leaves.remote([long]) for _ in range(6)], timeout=LIMIT_S) == ["left"] * 6
    assert ray.get([later.remote(i, 0.0) for i in range(20)], timeout=LIMIT_S) == list(range(20))
    assert ray.get(long) == 0


def test_as_completed_of_concurrent_futures(backend: str) -> None:
    slow, quick = later.remote("slow", 0.6).future(), later.remote("quick", 0.01).future()
    again = later.remote(ValueError("no")).future()
    found = list(concurrent.futures.as_completed([slow, quick, again]))
    assert set(found) == {slow, quick, again}
    assert found[-1] is slow or backend == "sim"
    assert isinstance(again.exception(), ValueError)


def test_waiting_by_concurrent_futures(backend: str) -> None:
    slow, quick = later.remote("slow", 0.6).future(), later.remote("quick", 0.01).future()
    if backend == "local":  # on sim each is waited for
        first = concurrent.futures.wait([slow, quick], return_when="FIRST_COMPLETED")
        assert first == ({quick}, {slow})
        assert concurrent.futures.wait([slow, quick], timeout=0.05) == ({quick}, {slow})
    assert concurrent.futures.wait([slow, quick]) == ({slow, quick}, set())
    assert concurrent.futures.wait([slow, quick]) == ({slow, quick}, set())
