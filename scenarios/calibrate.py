"""Measuring this machine: microbenchmarks in, a cost profile out.

Runs a cluster of one node with one CPU on the real runtime and reads how much
CPU time each process used (from the kernel's scheduler statistics, which count
nanoseconds) for three loads of empty tasks:

- **one at a time**: every process wakes for every message;
- **windows of single tasks**: batches, so what a wake-up costs spreads thin;
- **task arrays**: ranges, so what a message costs spreads thin.

What one load uses more than the next gives the cost of a wake-up, of a task on
its own and of a task in a range (see `simulator.costs`):

    node:    range = B / 4 (it is received and sent twice), turn = (A - B) / 2
    driver:  call  = time within ``.remote()`` per task, range = B - call,
             turn  = A - B
    worker:  task  = C, range = B - C, turn = A - B

with A, B, C the CPU time per task of the process under the three loads. The
latency of a hop is what is left of the round trip, over its four hops. Memory
and loopback bandwidth are timed with objects of `OBJECT_BYTES`.

Every figure is the median of several rounds. Nothing of a scenario is in here:
what the profile then predicts has not been fitted.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import raytwin as ray
from runtime.store.copying import Copier
from scenarios.base import Progress
from scenarios.workloads import empty

ROUNDS = 5
SYNC_TASKS = 400
WINDOW = 500
WINDOWS = 6
ARRAY_TASKS = 200_000
OBJECT_BYTES = 64_000_000
OBJECT_ROUNDS = 4
SMALL_COPY_BYTES = 1_000_000
LARGE_COPY_BYTES = 256_000_000
COPY_ROUNDS = 11
LEAST_S = 1e-8
"""A difference of two noisy figures is never taken to be less."""


def calibrate(progress: Progress) -> dict[str, Any]:
    """Measure this machine; return a profile as `simulator.costs` reads it.

    Raises RuntimeError if a cluster is connected already.
    """
    progress.begin("calibrating this machine", ROUNDS + 2)
    loads = _measure_loads(progress)
    start_worker_s = _measure_start_worker()
    progress.advance()
    memory, loopback = _measure_bandwidths()
    progress.advance()
    return _fit(loads, start_worker_s, memory, loopback) | _measure_copy_threads(memory)


class _Meter:
    """CPU time of a cluster's processes, by role."""

    def __init__(self, cluster: Any) -> None:
        cluster.poll()
        self._pids = {"head": [cluster.pids["head"]], "node": [cluster.pids["node:0"]]}
        zygote = psutil.Process(cluster.pids["zygote"])
        known = {pid for pids in self._pids.values() for pid in pids}
        self._pids["worker"] = [p.pid for p in zygote.children() if p.pid not in known]
        self._pids["driver"] = [os.getpid()]

    def read(self) -> dict[str, float]:
        """Return the CPU seconds that each role has used so far."""
        return {role: sum(map(_cpu_s, pids)) for role, pids in self._pids.items()}


def _cpu_s(pid: int) -> float:
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


Load = dict[str, float]
"""Seconds per task: CPU by role, ``wall``, and ``call`` (within .remote())."""


def _measure_loads(progress: Progress) -> dict[str, Load]:
    session: Any = ray.init(backend="local", nodes=1, cpus_per_node=1)
    rounds: dict[str, list[Load]] = {"sync": [], "single": [], "array": []}
    try:
        _sync()
        _single()
        _array()
        meter = _Meter(session.cluster)
        for _ in range(ROUNDS):
            rounds["sync"].append(_load(meter, _sync))
            rounds["single"].append(_load(meter, _single))
            rounds["array"].append(_load(meter, _array))
            progress.advance()
    finally:
        ray.shutdown()
    return {
        name: {key: statistics.median(load[key] for load in loads) for key in loads[0]}
        for name, loads in rounds.items()
    }


def _load(meter: _Meter, run: Any) -> Load:
    before, started_s = meter.read(), time.perf_counter()
    tasks, call_s = run()
    wall_s, after = time.perf_counter() - started_s, meter.read()
    load = {role: (after[role] - before[role]) / tasks for role in after}
    return {**load, "wall": wall_s / tasks, "call": call_s / tasks}


def _sync() -> tuple[int, float]:
    for _ in range(SYNC_TASKS):
        ray.get(empty.remote())
    return SYNC_TASKS, 0.0


def _single() -> tuple[int, float]:
    call_s = 0.0
    for _ in range(WINDOWS):
        started_s = time.thread_time()
        refs = [empty.remote() for _ in range(WINDOW)]
        call_s += time.thread_time() - started_s
        ray.get(refs)
    return WINDOW * WINDOWS, call_s


def _array() -> tuple[int, float]:
    ray.get(empty.map(range(ARRAY_TASKS)))
    return ARRAY_TASKS, 0.0


@ray.remote
def _nested() -> None:
    ray.get(empty.remote())


def _measure_start_worker() -> float:
    """Return what a nested task takes longer when a worker has to be started."""
    found = []
    for _ in range(ROUNDS):
        ray.init(backend="local", nodes=1, cpus_per_node=1)
        try:
            ray.get(empty.remote())
            started_s = time.perf_counter()
            ray.get(_nested.remote())
            first_s = time.perf_counter() - started_s
            started_s = time.perf_counter()
            ray.get(_nested.remote())
            found.append(first_s - (time.perf_counter() - started_s))
        finally:
            ray.shutdown()
    return max(LEAST_S, statistics.median(found))


@ray.remote
def _make() -> Any:
    return ray.Blob(OBJECT_BYTES)


def _measure_bandwidths() -> tuple[float, float]:
    """Return bytes/s of a copy into the store, and between two nodes' stores."""
    store = 4 * OBJECT_BYTES
    ray.init(backend="local", nodes=2, cpus_per_node=1, object_store_memory=store)
    copies, transfers = [], []
    try:
        value = np.ones(OBJECT_BYTES, dtype=np.uint8)
        for _ in range(OBJECT_ROUNDS):
            started_s = time.perf_counter()
            ref = ray.put(value)
            copies.append(time.perf_counter() - started_s)
            del ref
            far = _make.options(resources={"node:1": 0.01}).remote()
            ray.wait([far], fetch_local=False)
            started_s = time.perf_counter()
            ray.get(far)
            transfers.append(time.perf_counter() - started_s)
            del far
    finally:
        ray.shutdown()
    # The first of each touches memory that was never used.
    return (
        OBJECT_BYTES / statistics.median(copies[1:]),
        OBJECT_BYTES / statistics.median(transfers[1:]),
    )


def _measure_copy_threads(memory: float) -> dict[str, float]:
    """Return what several threads gain in a large copy, and cost in a small one."""
    threads = os.cpu_count() or 1
    if threads == 1:
        return {}
    copiers = Copier(1), Copier(threads)
    took: dict[int, list[list[float]]] = {}
    for nbytes in (SMALL_COPY_BYTES, LARGE_COPY_BYTES):
        source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        took[nbytes] = [[], []]
        for _ in range(COPY_ROUNDS):
            for copier, times in zip(copiers, took[nbytes], strict=True):
                started_s = time.perf_counter()
                copier.copy(target.data, source.data)
                times.append(time.perf_counter() - started_s)
    for copier in copiers:
        copier.close()
    medians = {nbytes: list(map(statistics.median, rounds)) for nbytes, rounds in took.items()}
    one_s, all_s = medians[LARGE_COPY_BYTES]
    gain = max(1.0, one_s / all_s)
    one_s, all_s = medians[SMALL_COPY_BYTES]
    return {
        "memory_bandwidth_all": memory * gain,
        "copy_thread_s": max(LEAST_S, all_s - one_s / gain) / (threads - 1),
    }


def _fit(
    loads: dict[str, Load], start_worker_s: float, memory: float, loopback: float
) -> dict[str, Any]:
    sync, single, array = loads["sync"], loads["single"], loads["array"]

    def more(left: float, right: float) -> float:
        return max(LEAST_S, left - right)

    node_range_s = single["node"] / 4
    node_turn_s = more(sync["node"], single["node"]) / 2
    driver = {
        "turn_s": more(sync["driver"], single["driver"]),
        "received": {"range_s": more(single["driver"], single["call"])},
    }
    task_s = array["worker"]
    busy_s = sync["driver"] + sync["node"] + sync["worker"]
    cores = os.cpu_count() or 1
    return {
        "name": "this machine",
        "source": (
            f"measured by raytwin calibrate on {cores} cores: medians of {ROUNDS} rounds;"
            f" {1 / sync['wall']:,.0f} tasks/s one at a time,"
            f" {1 / single['wall']:,.0f} in windows of {WINDOW},"
            f" {1 / array['wall']:,.0f} as an array"
        ),
        "cores": cores,
        "latency_s": more(sync["wall"], busy_s) / 4,
        "bandwidth": loopback,
        "loopback_latency_s": more(sync["wall"], busy_s) / 4,
        "loopback_bandwidth": loopback,
        "memory_bandwidth": memory,
        "start_worker_s": start_worker_s,
        "head": {"turn_s": node_turn_s, "received": {"range_s": node_range_s}},
        "node": {
            "turn_s": node_turn_s,
            "received": {"range_s": node_range_s},
            "sent": {"range_s": node_range_s},
        },
        # A submitter is a worker too: as a client it costs what a driver does.
        "worker": {
            "turn_s": more(sync["worker"], single["worker"]),
            "received_by_type": {"TaskResults": driver["received"]},
        },
        "driver": driver,
        "call_s": {"submit": single["call"]},
        "range_s": more(single["worker"], task_s),
        "task_s": task_s,
    }
