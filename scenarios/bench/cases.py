"""The cases of the benchmark: one function per case, named as the case, for any engine.

Ray's own microbenchmark (``ray microbenchmark``) is the model; where a case
differs from it, its docstring says how. A case takes the engine's module and
returns the operation that is repeated for the length of a round, and `amount`
says how much of the unit one operation is. Remote functions are defined inside,
so that they travel by value and a worker need not find this file.

A figure of a whole cluster, such as `start_up`, has no operation to repeat: see `Fresh`.

The module imports nothing of raytwin's: see `side`.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import numpy as np

IN_FLIGHT = 1_000
CALLS = 100
"""Short operations are repeated so often between two looks at the clock."""
ACTORS = 100
END_TIMEOUT_S = 60.0
SETTLE_S = 3.0
"""Before `idle_memory`: what a cluster starts after its first task counts too."""
NODES = 100
ACTOR_NODES = 10
MANY_ACTORS = 2_000

Operation = Callable[[], None]


@dataclass(frozen=True)
class Fresh:
    """A figure of a cluster that the measurement itself starts."""

    name: str
    unit: str
    measure: Callable[[Any, dict[str, Any]], float]
    """Takes the engine's module and the options of its ``init``."""
    memory_bytes: float
    """Memory that the only living side needs for it."""
    higher_is_better: bool
    ours_alone: bool
    """Whether it is measured without peers, and only if it is named."""


@dataclass(frozen=True)
class Case:
    """A rate at which an operation can be repeated; higher is better."""

    name: str
    unit: str
    prepare: Callable[[Any], Operation]
    amount: float
    memory_bytes: float
    """Memory that each side needs for it beyond a small cluster."""
    rounds_max: int | None
    """Fewer rounds than asked for: an operation takes long."""
    ray_name: str = ""
    """The name that ``ray microbenchmark`` has for this case; empty: it lacks the case."""
    higher_is_better: bool = True


CASES: dict[str, Case] = {}
FRESH: dict[str, Fresh] = {}


def _case(
    unit: str,
    amount: float,
    memory_bytes: float = 0,
    rounds_max: int | None = None,
    ray_name: str = "",
) -> Callable[[Callable[[Any], Operation]], Callable[[Any], Operation]]:
    def register(prepare: Callable[[Any], Operation]) -> Callable[[Any], Operation]:
        name = prepare.__name__
        CASES[name] = Case(name, unit, prepare, amount, memory_bytes, rounds_max, ray_name)
        return prepare

    return register


def _fresh(
    unit: str, memory_bytes: float = 0, higher_is_better: bool = False, ours_alone: bool = False
) -> Any:
    def register(measure: Callable[[Any, dict[str, Any]], float]) -> Any:
        name = measure.__name__
        FRESH[name] = Fresh(name, unit, measure, memory_bytes, higher_is_better, ours_alone)
        return measure

    return register


def repeated_per_s(operation: Operation, round_s: float) -> float:
    """Return how often per second `operation` ran in at least `round_s` seconds."""
    count, elapsed_s = repeated(operation, round_s)
    return count / elapsed_s


def repeated(operation: Operation, round_s: float) -> tuple[int, float]:
    """Repeat `operation` for at least `round_s` seconds; return how often, and the seconds."""
    count = 0
    begun_s = time.perf_counter()
    while True:
        operation()
        count += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= round_s:
            return count, elapsed_s


# -- whole clusters --------------------------------------------------------------


@_fresh("s")
def start_up(ray: Any, options: dict[str, Any]) -> float:
    """Seconds from calling ``init`` until the first task's result, the module being imported."""
    begun_s = time.perf_counter()
    ray.init(**options)

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    assert ray.get(small_value.remote()) == b"ok"
    return time.perf_counter() - begun_s


@_fresh("MB")
def idle_memory(ray: Any, options: dict[str, Any]) -> float:
    """Memory of the driver and all processes of its cluster, idle after one task.

    Proportional set size: a page that n processes share counts 1/n in each, so
    that the sum is what the machine has spent.
    """
    start_up(ray, options)
    time.sleep(SETTLE_S)
    return memory_mb()


@_fresh("GB/s", memory_bytes=2 * 0.8e9, higher_is_better=True)
def first_put_800mb(ray: Any, options: dict[str, Any]) -> float:
    """Put an array of 0.8 GB as the first object of a cluster that has just been started.

    None of the store's memory was touched before: the kernel finds, zeroes and maps every
    page of it within the time measured, and that takes several times as long as the copy.
    The array is there before, all of its pages its own.
    """
    start_up(ray, options)
    array = filled(8 * 10**8)
    begun_s = time.perf_counter()
    ray.put(array)
    return 0.8 / (time.perf_counter() - begun_s)


@_fresh("s", memory_bytes=4e9, ours_alone=True)
def start_100_nodes(ray: Any, options: dict[str, Any]) -> float:
    """Seconds from calling ``init`` of 100 nodes with a CPU each until a task has run on each."""
    begun_s = time.perf_counter()
    ray.init(nodes=NODES, cpus_per_node=1)

    @ray.remote(num_cpus=1)
    def node() -> str:
        return str(ray.get_runtime_context().get_node_id())

    ids = [node.options(resources={f"node:{i}": 0.01}).remote() for i in range(NODES)]
    assert len(set(ray.get(ids))) == NODES
    return time.perf_counter() - begun_s


@_fresh("MB", memory_bytes=4e9, ours_alone=True)
def memory_100_nodes(ray: Any, options: dict[str, Any]) -> float:
    """Memory of 100 nodes with a worker each and their driver, after a task on every node."""
    start_100_nodes(ray, options)
    return memory_mb()


@_fresh("s", memory_bytes=10e9, ours_alone=True)
def create_2000_actors(ray: Any, options: dict[str, Any]) -> float:
    """Seconds to create 2,000 actors, each a process, on 10 nodes and call each of them once.

    They have restarts and a checkpoint's hooks, as those of figure 11b. The cluster is
    there before; that they end is not in the time.
    """
    slots = {"CPU": 2.0, "slot": float(MANY_ACTORS)}
    ray.init(nodes=[{"CPU": 1.0}, *[slots] * ACTOR_NODES])

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

        def __ray_save__(self) -> int:
            return self.count

        def __ray_restore__(self, state: int) -> None:
            self.count = state

    remote = ray.remote(resources={"slot": 1}, num_cpus=0, max_restarts=-1, max_task_retries=-1)(
        Counter
    )
    begun_s = time.perf_counter()
    actors = [remote.remote() for _ in range(MANY_ACTORS)]
    assert ray.get([actor.add.remote() for actor in actors]) == [1] * MANY_ACTORS
    return time.perf_counter() - begun_s


def memory_mb() -> float:
    """Return the proportional set size of this process and all below it."""
    driver = psutil.Process()
    return sum(map(_pss_mb, [driver, *driver.children(recursive=True)]))


def _pss_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


# -- tasks -----------------------------------------------------------------------


@_case("tasks/s", amount=CALLS, ray_name="single client tasks sync")
def tasks_sync(ray: Any) -> Operation:
    """Submit an empty task and get its result, one at a time."""

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    def operation() -> None:
        for _ in range(CALLS):
            ray.get(small_value.remote())

    return operation


@_case("tasks/s", amount=IN_FLIGHT, ray_name="single client tasks async")
def tasks_1000(ray: Any) -> Operation:
    """Submit 1,000 empty tasks, each by a call of its own, then get all results."""

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    def operation() -> None:
        ray.get([small_value.remote() for _ in range(IN_FLIGHT)])

    return operation


@_case("tasks/s", amount=IN_FLIGHT)
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


@_case("batches/s", amount=1, ray_name="single client wait 1k refs")
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


# -- actors ----------------------------------------------------------------------


@_case("calls/s", amount=CALLS, ray_name="1:1 actor calls sync")
def actor_sync(ray: Any) -> Operation:
    """Call an empty method of one actor and get its result, one at a time."""
    actor = _server(ray)

    def operation() -> None:
        for _ in range(CALLS):
            ray.get(actor.small_value.remote())

    return operation


@_case("calls/s", amount=IN_FLIGHT, ray_name="1:1 actor calls async")
def actor_1000(ray: Any) -> Operation:
    """Call an empty method of one actor 1,000 times, then get all results."""
    actor = _server(ray)

    def operation() -> None:
        ray.get([actor.small_value.remote() for _ in range(IN_FLIGHT)])

    return operation


def _server(ray: Any) -> Any:
    """Return an actor that has answered once: its start is not part of the case."""

    class Server:
        def small_value(self) -> bytes:
            return b"ok"

    actor = ray.remote(Server).remote()
    assert ray.get(actor.small_value.remote()) == b"ok"
    return actor


@_case("actors/s", amount=ACTORS, memory_bytes=2.5e9, rounds_max=3)
def create_100_actors(ray: Any) -> Operation:
    """Create 100 actors, call each once, get all results, drop them, until all are gone.

    Not in Ray's benchmark. An actor here is a process of its own, with a state
    of nothing and no CPU reserved (``num_cpus=0``); the call returns its PID, by
    which its end is awaited, so that the next operation starts with none. That
    end is within the time measured.
    """

    class Empty:
        def pid(self) -> int:
            return os.getpid()

    remote = ray.remote(num_cpus=0)(Empty)

    def operation() -> None:
        actors = [remote.remote() for _ in range(ACTORS)]
        pids = ray.get([actor.pid.remote() for actor in actors])
        assert len(set(pids)) == ACTORS
        ended = [os.pidfd_open(pid) for pid in pids]
        del actors
        await_ends(ended)

    return operation


def await_ends(pidfds: list[int]) -> None:
    """Wait until the processes have ended, and close their descriptors.

    Raises TimeoutError if one is alive after `END_TIMEOUT_S`.
    """
    try:
        for pidfd in pidfds:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(END_TIMEOUT_S * 1000):
                raise TimeoutError(f"an actor is alive {END_TIMEOUT_S:g} s after it was dropped")
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


# -- objects ---------------------------------------------------------------------


@_case("puts/s", amount=CALLS, ray_name="single client put calls (Plasma Store)")
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


@_case("gets/s", amount=CALLS, ray_name="single client get calls (Plasma Store)")
def get_small(ray: Any) -> Operation:
    """Get the same small object again and again in the driver that has put it."""
    ref = ray.put(0)

    def operation() -> None:
        for _ in range(CALLS):
            ray.get(ref)

    return operation


@_case("GB/s", amount=10 * 1e6 / 1e9)
def put_1mb(ray: Any) -> Operation:
    """Put the same array of 1 MB and drop the reference, one at a time."""
    array = filled(10**6)

    def operation() -> None:
        for _ in range(10):
            ray.put(array)

    return operation


@_case("GB/s", amount=0.8, memory_bytes=0.8e9 + 2 * 0.8e9, ray_name="single client put gigabytes")
def put_800mb(ray: Any) -> Operation:
    """Put the same array of 0.8 GB and drop the reference, one at a time.

    This is the steady state, as in Ray's benchmark: the store has room for two, and
    after the first few puts its memory has been touched. What is left is one copy,
    at the speed of memory; `first_put_800mb` is the other case. Ray's benchmark puts
    ``numpy.zeros``, whose pages are all the one zero page of the kernel; this array
    has pages of its own.
    """
    array = filled(8 * 10**8)

    def operation() -> None:
        ray.put(array)

    return operation


def filled(nbytes: int) -> np.ndarray[Any, Any]:
    """Return an array of floats of `nbytes` bytes in memory of its own."""
    import numpy as np  # here, so that it is not part of `idle_memory` unless an engine loads it

    return np.ones(nbytes // 8)
