"""Futures that are pending when their cluster or their task ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.util.multiprocessing import Pool

LIMIT_S = 30.0
HERE = Path(__file__).parents[2]


@ray.remote
def later(x: Any, seconds: float) -> Any:
    ray.sleep(seconds)
    return x


@ray.remote
def leaves_a_thread(ref: list[Any], note: Path) -> str:
    future = ref[0].future()
    threading.Thread(
        target=lambda: note.write_text(type(future.exception()).__name__), daemon=True
    ).start()
    return "left"


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_shutdown_fails_pending_futures(backend: str) -> None:
    ray.init(backend=backend, nodes=1, cpus_per_node=2)
    try:
        futures = [later.remote(i, 1000.0).future() for i in range(3)]
    finally:
        ray.shutdown()
    for future in futures:
        with pytest.raises(RaySystemError, match="shut down"):
            future.result(timeout=LIMIT_S)


def test_shutdown_fails_futures_of_an_event_loop() -> None:
    async def main() -> None:
        awaited = asyncio.ensure_future(asyncio.wrap_future(later.remote(0, 1000.0).future()))
        await asyncio.sleep(0.1)
        ray.shutdown()
        await asyncio.wait_for(awaited, LIMIT_S)

    ray.init(backend="local", nodes=1, cpus_per_node=2)
    try:
        with pytest.raises(RaySystemError, match="shut down"):
            asyncio.run(main())
    finally:
        ray.shutdown()


@ray.remote
def silent() -> Iterator[int]:
    ray.sleep(1000.0)
    yield 0


def test_shutdown_ends_the_wait_for_an_item() -> None:
    async def main() -> None:
        stream = silent.remote()
        awaited = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        ray.shutdown()
        with pytest.raises(RaySystemError, match="shut down"):
            await asyncio.wait_for(awaited, LIMIT_S)
        with pytest.raises(RaySystemError, match="shut down"):
            await anext(stream)

    ray.init(backend="local", nodes=1, cpus_per_node=2)
    try:
        asyncio.run(main())
    finally:
        ray.shutdown()


def test_the_end_of_a_task_fails_its_pending_futures(tmp_path: Path) -> None:
    note = tmp_path / "note"
    ray.init(backend="local", nodes=1, cpus_per_node=2)
    try:
        long = later.remote(0, 1000.0)
        assert ray.get(leaves_a_thread.remote([long], note), timeout=LIMIT_S) == "left"
        end_s = time.monotonic() + LIMIT_S
        while not note.exists() or not note.read_text():
            assert time.monotonic() < end_s, "the future was never settled"
            time.sleep(0.02)
        assert note.read_text() == "RaySystemError"
    finally:
        ray.shutdown()


def test_a_cancelled_future_stays_cancelled() -> None:
    ray.init(backend="local", nodes=1, cpus_per_node=2)
    try:
        cancelled, left = later.remote(0, 1000.0).future(), later.remote(0, 1000.0).future()
        assert cancelled.cancel()
    finally:
        ray.shutdown()
    assert isinstance(left.exception(timeout=LIMIT_S), RaySystemError)
    with pytest.raises(concurrent.futures.CancelledError):
        cancelled.result(timeout=LIMIT_S)


def test_a_program_may_end_with_a_call_of_a_pool_pending() -> None:
    program = """
import time
import raytwin as ray
from raytwin.util.multiprocessing import Pool
ray.init(backend="local", nodes=1, cpus_per_node=2)
Pool(1).apply_async(time.sleep, (1000,), callback=print)
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HERE, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("end\n", "")


@ray.remote(num_cpus=0)
def large_later(note: Path) -> Any:
    ray.sleep(0.3)
    note.touch()
    return bytes(1_000_000)


@ray.remote(num_cpus=0)
def leaves_a_future(note: Path) -> None:
    large_later.remote(note).future()


def test_values_of_abandoned_futures_are_released(tmp_path: Path) -> None:
    """Its values stayed in the store for as long as the worker lived."""
    notes = [tmp_path / str(number) for number in range(3)]
    with ray.init(nodes=1, cpus_per_node=1) as session:
        ray.get([leaves_a_future.remote(note) for note in notes], timeout=LIMIT_S)
        end_s = time.monotonic() + LIMIT_S
        while not all(note.exists() for note in notes) or session.query("stores")[0][1]:
            assert time.monotonic() < end_s, session.query("stores")
            time.sleep(0.02)
        ray.get(later.remote(0, 0.2), timeout=LIMIT_S)
        assert session.query("stores") == [[0, 0, 0, 0]]


def test_a_pools_pending_callback_is_called_at_the_end_and_starts_no_cluster() -> None:
    called: list[BaseException] = []
    with ray.init(nodes=1, cpus_per_node=2):
        pool = Pool(2)
        result = pool.map_async(time.sleep, [1000.0], 1, None, called.append)
    assert result._called.wait(LIMIT_S)
    assert [type(error) for error in called] == [RaySystemError]
    assert not ray.is_initialized()
