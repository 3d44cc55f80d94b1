"""Nothing grows: memory, descriptors and tables stay as they are however long it runs."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import psutil
import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually, workers_of

MB = 1 << 20
GROWTH_MAX = 1.25
"""A process may have so much more memory after the same work was done again."""
SLACK_BYTES = 8 * MB
"""What allocators and caches keep, whatever the process's size."""


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def size(array: Any) -> int:
    return len(array)


def processes(session: Any) -> dict[str, psutil.Process]:
    session.cluster.poll()
    found = {name: psutil.Process(pid) for name, pid in session.cluster.pids.items()}
    found["driver"] = psutil.Process()
    for worker in workers_of(session.cluster.pids["node:0"]):
        found[f"worker {worker.pid}"] = worker
    return found


def usage(session: Any) -> dict[str, tuple[int, int]]:
    """Return (memory that is its own, descriptors) of each process.

    Pages of an arena are shared, and counted for whoever touched them: not here.
    """
    gc.collect()
    found = {}
    for name, process in processes(session).items():
        memory = process.memory_full_info()
        found[name] = (memory.uss, process.num_fds())
    return found


def assert_stable(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> None:
    for name, (uss, fds) in after.items():
        if name in before:
            uss_before, fds_before = before[name]
            assert uss <= uss_before * GROWTH_MAX + SLACK_BYTES, (name, uss_before, uss)
            assert fds <= fds_before + 2, (name, fds_before, fds)


@pytest.mark.slow
def test_tasks_leave_nothing_behind(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=1)

    def work() -> None:
        for _ in range(10):
            refs = [identity.remote(i) for i in range(500)]
            assert ray.get(refs, timeout=LIMIT_S) == list(range(500))
            chained = identity.remote(identity.remote(1))
            assert ray.get(chained, timeout=LIMIT_S) == 1
            assert len(ray.get(identity.map(range(5000)), timeout=LIMIT_S)) == 5000

    work()
    before = usage(session)
    for _ in range(4):
        work()
    assert_stable(before, usage(session))
    client = session.client
    ray.get(ray.put(None))
    assert len(client.entries) <= 2
    assert not client.pins.objects and not client.pins._views and not client.waits._waiters


@pytest.mark.slow
def test_objects_leave_nothing_behind(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=1, object_store_memory=64 * MB)
    far = size.options(resources={"node:1": 0.01})

    def work() -> None:
        # Far more than the store holds: what is not freed fails here.
        for i in range(50):
            ref = ray.put(np.full(4 * MB, i % 256, np.uint8))
            assert ray.get([far.remote(ref), size.remote(ref)], timeout=LIMIT_S) == [4 * MB] * 2
            assert ray.get(ref)[0] == i % 256

    work()
    before = usage(session)
    for _ in range(2):
        work()
    assert_stable(before, usage(session))

    def empty() -> bool:
        ray.get(ray.put(None))
        return all(row[1:] == [0, 0, 0] for row in session.query("stores"))

    eventually(empty)


@pytest.mark.slow
def test_waiting_in_vain_leaves_nothing_behind(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1)
    never = [identity.options(resources={"none": 1}).remote(i) for i in range(20)]
    array = identity.options(resources={"none": 1}).map(range(20))

    def work(times: int) -> None:
        for _ in range(times):
            assert ray.wait(never, timeout=0)[0] == []
            assert ray.wait(never, timeout=0.0001)[0] == []
            for late in (never, array):
                with pytest.raises(ray.exceptions.GetTimeoutError):
                    ray.get(late, timeout=0)

    work(200)
    before = usage(session)
    work(2000)
    assert_stable(before, usage(session))
    entry = session.client.entries[array._array]
    assert not entry.waiters and not entry.all_waiters


def test_starting_again_and_again_leaves_nothing_behind(start: Start) -> None:
    def round_() -> tuple[int, int]:
        start(nodes=2, cpus_per_node=1)
        assert ray.get(identity.remote(np.ones(200_000)), timeout=LIMIT_S).sum() == 200_000
        ray.shutdown()
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(psutil.Process().threads())

    round_()
    before = round_()
    for _ in range(8):
        after = round_()
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1]


def test_workers_that_stood_in_for_blocked_ones_do_not_stay(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1)

    @ray.remote
    def deep(n: int) -> int:
        return 0 if n == 0 else 1 + ray.get(deep.remote(n - 1))

    assert ray.get(deep.remote(25), timeout=LIMIT_S) == 25
    node = session.cluster.pids["node:0"]

    def few() -> bool:
        ray.get(identity.remote(1), timeout=LIMIT_S)
        return len(workers_of(node)) <= 8

    eventually(few)


def test_functions_are_exported_once(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=2)

    @ray.remote
    def nested(n: int) -> int:
        return n if n < 2 else ray.get(nested.remote(n - 1)) + 1

    for _ in range(5):
        assert ray.get([nested.remote(6) for _ in range(4)], timeout=LIMIT_S) == [6] * 4
    assert len(session.client.submitter._exported) == 1
