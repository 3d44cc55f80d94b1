"""What is measured: one function per case, named as the case, for any engine.

Ray's own microbenchmark (``ray microbenchmark``) is the model; where a case
differs from it, its docstring says how. A case takes the engine's module and
returns the operation that is repeated for the length of a round, and `amount`
says how much of the unit one operation is. Remote functions are defined inside,
so that they travel by value and a worker need not find this file.

`start_up` and `idle_memory` have no operation to repeat: see `Fresh`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

IN_FLIGHT = 1_000
CALLS = 100
"""Short operations are repeated so often between two looks at the clock."""

Operation = Callable[[], None]


@dataclass(frozen=True)
class Fresh:
    """A figure of a cluster that has just been started; lower is better."""

    name: str
    unit: str
    limit: str
    about: str
    higher_is_better: bool = False


@dataclass(frozen=True)
class Case:
    """A rate at which an operation can be repeated; higher is better."""

    name: str
    unit: str
    limit: str
    """The name of a limit in `limits.LIMITS`."""
    about: str
    prepare: Callable[[Any], Operation]
    amount: float
    memory_bytes: float
    """What one side needs for it beyond a small cluster."""
    higher_is_better: bool = True


CASES: dict[str, Case] = {}
FRESH: dict[str, Fresh] = {}


def _about(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


def _case(unit: str, limit: str, amount: float, memory_bytes: float = 0) -> Any:
    def register(prepare: Callable[[Any], Operation]) -> Callable[[Any], Operation]:
        name = prepare.__name__
        CASES[name] = Case(name, unit, limit, _about(prepare), prepare, amount, memory_bytes)
        return prepare

    return register


def _fresh(unit: str, limit: str) -> Any:
    def register(function: Callable[..., float]) -> Callable[..., float]:
        name = function.__name__
        FRESH[name] = Fresh(name, unit, limit, _about(function))
        return function

    return register


def repeated_per_s(operation: Operation, round_s: float) -> float:
    """Return how often per second `operation` ran in at least `round_s` seconds."""
    count = 0
    begun_s = time.perf_counter()
    while True:
        operation()
        count += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= round_s:
            return count / elapsed_s


# -- a cluster that has just been started ----------------------------------------


@_fresh("s", limit="interpreter_s")
def start_up(ray: Any, options: dict[str, Any]) -> float:
    """Seconds from calling ``init`` until the first task's result, the module being imported."""
    begun_s = time.perf_counter()
    ray.init(**options)

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    assert ray.get(small_value.remote()) == b"ok"
    return time.perf_counter() - begun_s


@_fresh("MB", limit="interpreter_mb")
def idle_memory(settle_s: float) -> float:
    """Memory of the driver and all processes of its cluster, idle after one task.

    Proportional set size: a page that n processes share counts 1/n in each, so
    that the sum is what the machine has spent.
    """
    time.sleep(settle_s)
    driver = psutil.Process()
    return sum(map(pss_mb, [driver, *driver.children(recursive=True)]))


def pss_mb(process: psutil.Process) -> float:
    """Return the proportional set size of a process in MB; 0 if it is gone."""
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


# -- tasks -----------------------------------------------------------------------


@_case("tasks/s", limit="round_trips_per_s", amount=CALLS)
def tasks_sync(ray: Any) -> Operation:
    """Submit an empty task and get its result, one at a time."""

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    def operation() -> None:
        for _ in range(CALLS):
            ray.get(small_value.remote())

    return operation


@_case("tasks/s", limit="pipelined_per_s", amount=IN_FLIGHT)
def tasks_1000(ray: Any) -> Operation:
    """Submit 1,000 empty tasks, each by a call of its own, then get all results."""

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    def operation() -> None:
        ray.get([small_value.remote() for _ in range(IN_FLIGHT)])

    return operation


@_case("tasks/s", limit="calls_per_s", amount=IN_FLIGHT)
def task_array(ray: Any) -> Operation:
    """Apply a function to each of 1,000 numbers and get all results.

    By ``f.map`` where the engine has it, else by a loop of ``f.remote``: Ray has
    no task arrays.
    """

    @ray.remote
    def small_value(number: int) -> bytes:
        return b"ok"

    def mapped() -> None:
        ray.get(small_value.map(range(IN_FLIGHT)))

    def looped() -> None:
        ray.get([small_value.remote(number) for number in range(IN_FLIGHT)])

    return mapped if hasattr(small_value, "map") else looped


@_case("batches/s", limit="pipelined_batches_per_s", amount=1)
def wait_1000(ray: Any) -> Operation:
    """Submit 1,000 empty tasks, then ``wait`` 1,000 times for one of those still out.

    As in Ray's own benchmark, values are asked to be fetched by the first of
    these calls only.
    """

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    def operation() -> None:
        left = [small_value.remote() for _ in range(IN_FLIGHT)]
        for index in range(IN_FLIGHT):
            _, left = ray.wait(left, fetch_local=index == 0)

    return operation


# -- objects ---------------------------------------------------------------------


@_case("puts/s", limit="pickles_per_s", amount=CALLS)
def put_small(ray: Any) -> Operation:
    """Put the number 0 and drop the reference; every 100th object is read by a task.

    The task is not in Ray's benchmark. Without it, an engine that only notes what
    is to be stored would be compared with one that has stored it.
    """

    @ray.remote
    def read(value: int) -> int:
        return value

    def operation() -> None:
        for _ in range(CALLS - 1):
            ray.put(0)
        assert ray.get(read.remote(ray.put(0))) == 0

    return operation


@_case("gets/s", limit="pickles_per_s", amount=CALLS)
def get_small(ray: Any) -> Operation:
    """Get the same small object again and again in the driver that has put it."""
    ref = ray.put(0)

    def operation() -> None:
        for _ in range(CALLS):
            ray.get(ref)

    return operation


@_case("GB/s", limit="copy_1mb_gb_per_s", amount=10 * 1e6 / 1e9)
def put_1mb(ray: Any) -> Operation:
    """Put the same array of 1 MB and drop the reference, one at a time."""
    array = filled(10**6)

    def operation() -> None:
        for _ in range(10):
            ray.put(array)

    return operation


@_case("GB/s", limit="copy_256mb_gb_per_s", amount=0.8, memory_bytes=0.8e9 + 2 * 0.8e9)
def put_800mb(ray: Any) -> Operation:
    """Put the same array of 0.8 GB and drop the reference, one at a time.

    This is the steady state: the store has room for two, and after the first few
    puts its memory has been touched. Ray's benchmark puts ``numpy.zeros``, whose
    pages are all the one zero page of the kernel; this array has pages of its own.
    """
    array = filled(8 * 10**8)

    def operation() -> None:
        ray.put(array)

    return operation


def filled(nbytes: int) -> np.ndarray[Any, Any]:
    """Return an array of floats of `nbytes` bytes in memory of its own."""
    return np.ones(nbytes // 8)
