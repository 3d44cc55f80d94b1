"""Streams in event loops: each item goes to one waiter, and a wait blocks no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 60.0
SILENT = 40
"""More streams than the default executor of an event loop has threads."""
FOREVER_S = 100_000.0


@ray.remote(num_cpus=0)
def count(n: int, pause_s: float = 0.0) -> Iterator[int]:
    for i in range(n):
        ray.sleep(pause_s)
        yield i


@ray.remote(num_cpus=0, max_retries=0)
def break_off(how: str) -> Iterator[int]:
    yield 0
    ray.sleep(0.3)  # it is awaited by now
    if how == "raise":
        raise ValueError("half-way")
    if how == "exit":
        import os

        os._exit(1)


async def patient(stream: Any) -> tuple[list[int], int]:
    """Return the items of a stream, and how often one of them was not there in time."""
    taken: list[int] = []
    late = 0
    while True:
        try:
            taken.append(await (await asyncio.wait_for(anext(stream), 0.1)))
        except TimeoutError:
            late += 1
        except StopAsyncIteration:
            return taken, late


async def shared(stream: Any, readers: int) -> list[list[int]]:
    """Return what each of several coroutines has taken of one stream."""

    async def read() -> list[int]:
        return [await ref async for ref in stream]

    return await asyncio.gather(*[read() for _ in range(readers)])


@ray.remote(num_cpus=0)
class Reader:
    async def patient(self) -> tuple[list[int], int]:
        return await patient(count.remote(3, 0.5))

    async def shared(self) -> list[list[int]]:
        return await shared(count.remote(12, 0.02), 4)

    async def beside(self) -> list[int]:
        silent = count.remote(1, FOREVER_S)
        waiting = asyncio.create_task(anext(silent))
        await asyncio.sleep(0)
        found = [await ref async for ref in count.remote(3, 0.01)]
        assert not waiting.done()
        waiting.cancel()
        ray.cancel(silent)
        return found

    async def feed(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0.01)
            yield i

    async def own(self, me: list[Any]) -> list[int]:
        return [await ref async for ref in me[0].feed.remote(4)]

    async def silence(self) -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(FOREVER_S)


def only_real(backend: str) -> None:
    if backend == "sim":
        pytest.skip("in a simulated driver to await is to let time pass: nothing else runs")


def watched(stream: Any) -> int:
    """Return how many waits a client remembers for a stream."""
    array, _ = stream.position()
    waiters = current().client.entries[array].waiters  # type: ignore[attr-defined]
    return sum(map(len, (waiters or {}).values()))


def test_a_wait_that_is_cancelled_takes_no_item(backend: str) -> None:
    only_real(backend)
    taken, late = asyncio.run(patient(count.remote(3, 0.5)))
    assert taken == [0, 1, 2]
    assert late


def test_a_cancelled_wait_in_an_actor_takes_no_item() -> None:
    reader: Any = Reader.remote()
    taken, late = ray.get(reader.patient.remote(), timeout=LIMIT_S)
    assert taken == [0, 1, 2]
    assert late


def test_silent_streams_block_no_other_stream(backend: str) -> None:
    only_real(backend)
    silent = [count.remote(1, FOREVER_S) for _ in range(SILENT)]

    async def main() -> tuple[list[int], str]:
        waiting = [asyncio.ensure_future(anext(stream)) for stream in silent]
        await asyncio.sleep(0)

        async def read() -> list[int]:
            return [await ref async for ref in count.remote(3, 0.01)]

        items = await asyncio.wait_for(read(), LIMIT_S)
        of_thread = await asyncio.wait_for(asyncio.to_thread(lambda: "runs"), LIMIT_S)
        for one in waiting:
            one.cancel()
        return items, of_thread

    try:
        assert asyncio.run(main()) == ([0, 1, 2], "runs")
    finally:
        for stream in silent:
            ray.cancel(stream)


def test_a_silent_stream_does_not_block_its_actor() -> None:
    reader: Any = Reader.remote()
    assert ray.get(reader.beside.remote(), timeout=LIMIT_S) == [0, 1, 2]
    # Nor the very coroutine that yields the items.
    assert ray.get(reader.own.remote([reader]), timeout=LIMIT_S) == [0, 1, 2, 3]


PROGRAM = """
import asyncio, sys, raytwin as ray

@ray.remote
def silent():
    ray.sleep(100_000)
    yield 0

async def main():
    try:
        await asyncio.wait_for(anext(silent.remote()), 0.2)
    except TimeoutError:
        print("late", flush=True)

ray.init(nodes=1, cpus_per_node=1)
if sys.argv[1] == "run":
    asyncio.run(main())
else:
    asyncio.new_event_loop().run_until_complete(main())
print("over", flush=True)
"""


@pytest.mark.parametrize("how", ["run", "loop"])
def test_a_program_ends_whose_wait_was_too_long(backend: str, how: str) -> None:
    only_real(backend)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (ended.stdout.split(), ended.returncode) == (["late", "over"], 0), ended.stderr


def test_each_item_goes_to_one_coroutine() -> None:
    reader: Any = Reader.remote()
    of_driver = asyncio.run(shared(count.remote(12, 0.02), 4))
    of_actor = ray.get(reader.shared.remote(), timeout=LIMIT_S)
    for each in of_driver, of_actor:
        assert sorted(item for items in each for item in items) == list(range(12))


def threads_read(stream: Any, readers: int) -> list[int]:
    """Return what so many threads have taken of a stream."""
    taken: list[int] = []

    def read() -> None:
        taken.extend([ray.get(ref) for ref in stream])

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def test_a_wait_that_was_interrupted_takes_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = count.remote(4, 0.2)

    def interrupted(ready: Any, timeout_s: float | None) -> bool:
        assert session.world.block(ready, LIMIT_S)
        raise KeyboardInterrupt

    session: Any = current()
    with monkeypatch.context() as patch:
        patch.setattr(session.waits, "until", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert [ray.get(ref, timeout=LIMIT_S) for ref in stream] == [0, 1, 2, 3]


def test_a_blocked_event_loop_does_not_block_other_loops(backend: str) -> None:
    only_real(backend)
    stream = count.remote(3, 0.3)

    async def waiting() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(waiting())
    try:
        read = asyncio.run(asyncio.wait_for(shared(stream, 2), LIMIT_S))
        assert sorted(item for items in read for item in items) == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            loop.run_until_complete(task)
    finally:
        loop.close()


def test_each_item_goes_to_one_thread(backend: str) -> None:
    only_real(backend)
    taken = threads_read(count.remote(12, 0.02), 4)
    assert sorted(taken) == list(range(12))


@ray.remote
def awaits_one() -> tuple[int, float]:
    async def main() -> int:
        return await (await anext(count.remote(1, 0.5)))

    return asyncio.run(main()), ray.now()


@ray.remote
def began() -> float:
    return ray.now()


def test_a_task_keeps_its_cpu_while_it_awaits_an_item() -> None:
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy("1", soft=False)
    both: Any = {"num_cpus": 2, "scheduling_strategy": there}
    awaiting = awaits_one.options(**both).remote()
    next_s = ray.get(began.options(**both).remote(), timeout=LIMIT_S)
    item, end_s = ray.get(awaiting, timeout=LIMIT_S)
    assert item == 0
    assert next_s >= end_s


async def ends_of(stream: Any) -> tuple[list[int], BaseException | None]:
    """Return the items of a stream, and the error that its last reference was for."""
    items, error = [], None
    async for ref in stream:
        assert error is None
        try:
            items.append(await ref)
        except Exception as raised:
            error = raised
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    return items, error


def test_ends_of_streams(backend: str) -> None:
    assert asyncio.run(ends_of(count.remote(0))) == ([], None)
    assert asyncio.run(ends_of(count.remote(2, 0.1))) == ([0, 1], None)
    items, error = asyncio.run(ends_of(break_off.remote("raise")))
    assert items == [0] and isinstance(error, ValueError)
    if backend == "local":  # on sim the task would end this very process
        items, error = asyncio.run(ends_of(break_off.remote("exit")))
        assert items == [0] and isinstance(error, ray.exceptions.WorkerCrashedError)


def test_a_stream_that_is_cancelled_while_it_is_awaited(backend: str) -> None:
    only_real(backend)
    silent = count.remote(1, FOREVER_S)

    async def main() -> tuple[list[int], BaseException | None]:
        reading = asyncio.create_task(ends_of(silent))
        await asyncio.sleep(0.3)
        ray.cancel(silent)
        return await asyncio.wait_for(reading, LIMIT_S)

    items, error = asyncio.run(main())
    assert items == [] and isinstance(error, ray.exceptions.TaskCancelledError)


def test_a_stream_whose_actor_dies_while_it_is_awaited(backend: str) -> None:
    only_real(backend)
    reader: Any = Reader.remote()

    async def main() -> tuple[list[int], BaseException | None]:
        reading = asyncio.create_task(ends_of(reader.silence.remote()))
        await asyncio.sleep(0.5)
        ray.kill(reader)
        return await asyncio.wait_for(reading, LIMIT_S)

    _, error = asyncio.run(main())
    assert isinstance(error, ray.exceptions.ActorDiedError)


def test_ended_waits_leave_no_waiters(backend: str) -> None:
    only_real(backend)
    silent = count.remote(1, FOREVER_S)
    steady = count.remote(21, 0.02)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(silent), 0.05)
        for i in range(20):
            assert await (await anext(steady)) == i

    asyncio.run(main())
    assert (watched(silent), watched(steady)) == (0, 0)
    assert not current().futures._pending  # type: ignore[attr-defined]
    ray.cancel(silent)
