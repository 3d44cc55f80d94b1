"""The loads of a calibration: small programs that run on both backends.

Each is about one thing and returns the number of its operations and the CPU time
of the calling thread within API calls that submit, s (0 where it is not measured):

- `sync`: empty tasks one at a time; every process wakes for every message;
- `single`: windows of single tasks; batches, so what a wake-up costs spreads thin;
- `array`: a task array; ranges, so what a message costs spreads thin;
- `put`: small objects, put and dropped;
- `wait`: windows of single tasks, taken one by one as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import raytwin as ray
from raytwin.scenarios.workloads.programs import empty

SYNC_TASKS = 400
WINDOW = 500
WINDOWS = 6
ARRAY_TASKS = 200_000
PUT_BYTES = 1_000


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


def _put() -> tuple[int, float]:
    value = ray.Blob(PUT_BYTES)
    for _ in range(WINDOWS):
        refs = [ray.put(value) for _ in range(WINDOW)]
        del refs
    return WINDOW * WINDOWS, 0.0


def _wait() -> tuple[int, float]:
    for _ in range(WINDOWS):
        left = [empty.remote() for _ in range(WINDOW)]
        while left:
            _, left = ray.wait(left)
    return WINDOW * WINDOWS, 0.0


LOADS: dict[str, Callable[[], tuple[int, float]]] = {
    "sync": _sync,
    "single": _single,
    "array": _array,
    "put": _put,
    "wait": _wait,
}
