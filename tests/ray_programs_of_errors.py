"""Programs that do the same on Ray and on raytwin: what goes wrong, and what it is called.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from typing import Any


class OwnError(BaseException):
    """What is no `Exception`."""


def outcome(ray: Any, ref: Any) -> Any:
    """Return a value, or the class of the error that `get` raises."""
    try:
        return ray.get(ref, timeout=60)
    except Exception as error:
        assert not isinstance(error, ray.exceptions.GetTimeoutError), "it hangs"
        names = ("TaskCancelledError", "RayActorError", "WorkerCrashedError")
        known = [name for name in names if isinstance(error, getattr(ray.exceptions, name))]
        return known or [type(error).__name__]


def base_exceptions(ray: Any) -> Any:
    """A call's BaseException goes to the caller; SystemExit ends the worker."""

    @ray.remote(max_retries=0)
    def raise_it(error: BaseException) -> None:
        raise error

    @ray.remote(max_retries=0, num_returns="streaming")
    def stream(error: BaseException) -> Any:
        yield 1
        raise error

    class Plain:
        def call(self, error: BaseException) -> None:
            raise error

        def stream(self, error: BaseException) -> Any:
            yield 1
            raise error

        def ping(self) -> str:
            return "alive"

    class Async(Plain):
        async def wait(self, error: BaseException) -> None:
            raise error

    class Failing:
        def __init__(self, error: BaseException) -> None:
            raise error

        def ping(self) -> str:
            return "alive"

    found: list[Any] = []
    for error in (OwnError("words"), GeneratorExit(), KeyboardInterrupt(), SystemExit(3)):
        found.append(outcome(ray, raise_it.remote(error)))
        actor = ray.remote(Plain).remote()
        found += [outcome(ray, ref) for ref in (actor.call.remote(error), actor.ping.remote())]
    for error in (OwnError(), KeyboardInterrupt()):
        actor = ray.remote(Plain).remote()
        for items in (
            stream.remote(error),
            actor.stream.options(num_returns="streaming").remote(error),
        ):
            ray.get(next(items))
            found.append(outcome(ray, next(items)))
        found.append(outcome(ray, actor.ping.remote()))
        found.append(outcome(ray, ray.remote(Failing).remote(error).ping.remote()))
    for cls in (Async, Plain):
        actor = ray.remote(max_concurrency=2)(cls).remote()
        found += [outcome(ray, ref) for ref in (actor.call.remote(OwnError()), actor.ping.remote())]
    actor = ray.remote(Async).remote()
    found += [outcome(ray, ref) for ref in (actor.wait.remote(OwnError()), actor.ping.remote())]
    return found


def more_yields(ray: Any) -> Any:
    """A generator that yields more than `num_returns` gives as many as there are."""

    class Counter:
        def count(self, limit: int) -> Any:
            yield from range(limit)

    @ray.remote(max_retries=0, num_returns=2)
    def count(limit: int) -> Any:
        yield from range(limit)

    @ray.remote(max_retries=0, num_returns=2)
    def late() -> Any:
        yield from range(2)
        raise ValueError("after the last")

    actor = ray.remote(Counter).remote()
    given = [count.remote(2), count.remote(5), late.remote()]
    given.append(actor.count.options(num_returns=2).remote(3))
    return [ray.get(refs, timeout=60) for refs in given]


def unserializable(ray: Any) -> Any:
    """The error of what cannot be serialized has the pickler's error as its cause, and that of a
    task which raises such an exception a RayError."""
    lock = threading.Lock()

    @ray.remote
    def uses() -> Any:
        return lock

    @ray.remote
    def takes(value: Any) -> Any:
        return value

    class Uses:
        def lock(self) -> Any:
            return lock

    def cause(start: Any) -> Any:
        try:
            start()
        except TypeError as error:
            return type(error.__cause__), str(error.__cause__)
        return None

    class Locked(Exception):
        def __init__(self) -> None:
            super().__init__("locked")
            self.lock = threading.Lock()

    @ray.remote(max_retries=0)
    def fails() -> None:
        raise Locked

    try:
        ray.get(fails.remote())
    except ray.exceptions.RayTaskError as error:
        found = type(error).__name__, type(error.cause).__name__, "serializable" in str(error.cause)
    return [found] + [
        cause(start)
        for start in (
            uses.remote,
            lambda: takes.remote(lock),
            lambda: ray.put(lock),
            ray.remote(Uses).remote,
        )
    ]


def names_of_tasks(ray: Any) -> Any:
    """Tasks are named after the function, calls after class and method, wherever defined."""

    def name() -> Any:
        return ray.get_runtime_context().get_task_name()

    class Named:
        def name(self) -> Any:
            return ray.get_runtime_context().get_task_name()

        @staticmethod
        def static() -> Any:
            return ray.get_runtime_context().get_task_name()

    found = [ray.remote(name).remote(), ray.remote(name).options(name="given").remote()]
    found.append(ray.remote(Named.static).remote())
    actor = ray.remote(Named).remote()
    found.append(actor.name.remote())
    raylet = ray._raylet.ObjectRef  # without an import of the module
    assert isinstance(found[0], raylet)
    return ray.get(found, timeout=60)


def names_of_concurrent_calls(ray: Any) -> Any:
    """Calls that run side by side, or in an event loop, know their names as others do."""

    def names() -> Any:
        here = ray.get_runtime_context()
        return here.get_task_name(), here.get_task_function_name().rpartition(".")[2]

    class Plain:
        def call(self) -> Any:
            return names()

        def stream(self) -> Any:
            yield names()

    class Async:
        def call(self) -> Any:
            return names()

        async def stream(self) -> Any:
            await asyncio.sleep(0.01)
            yield names()

        async def wait(self) -> Any:
            before = names()
            await asyncio.sleep(0.01)
            return before, names()

    found: list[Any] = []
    for cls in (Plain, Async):
        for options in ({}, {"max_concurrency": 2}):
            actor = ray.remote(cls).options(**options).remote()
            found.append(actor.call.remote())
            found.append(next(actor.stream.options(num_returns="streaming").remote()))
            if cls is Async:
                found += [actor.wait.remote(), actor.wait.options(name="given").remote()]
    return ray.get(found, timeout=60)


def rows_of_groups(ray: Any) -> Any:
    """A group that waits has a row, too, in which no bundle has a node."""
    util = importlib.import_module(f"{ray.__name__}.util")
    sleep = getattr(ray, "sleep", time.sleep)
    never, placed = util.placement_group([{"CPU": 64}] * 2), util.placement_group([{"CPU": 1}])
    ray.get(placed.ready(), timeout=60)
    waiting = util.placement_group([{"CPU": 2}])
    rows = [util.placement_group_table(group) for group in (never, placed)]
    while util.placement_group_table(waiting)["stats"]["scheduling_attempt"] < 2:
        sleep(0.1)
    rows.append(util.placement_group_table(waiting))
    util.remove_placement_group(placed)
    ray.get(waiting.ready(), timeout=60)
    rows += [util.placement_group_table(group) for group in (waiting, placed)]
    for group in (never, waiting):
        util.remove_placement_group(group)
    rows += [util.placement_group_table(group) for group in (never, waiting)]
    found = []
    for row in rows:
        stats = row["stats"]
        took_ms, delay_ms = stats["end_to_end_creation_latency_ms"], stats["highest_retry_delay_ms"]
        found.append(
            (
                row["state"],
                [bool(node) for node in row["bundles_to_node_id"].values()],
                sorted(stats),
                stats["scheduling_state"],
                stats["scheduling_attempt"] > 0,
                0 < stats["scheduling_latency_ms"] <= took_ms,
                # An infeasible group is tried again and again here, on Ray when a node joins.
                took_ms and (delay_ms > 0, took_ms >= delay_ms),
            )
        )
    return found


def unordered_refs(ray: Any) -> Any:
    util = importlib.import_module(f"{ray.__name__}.util")

    @ray.remote
    def square(x: int) -> int:
        return x * x

    class Many:
        async def ping(self) -> int:
            return 1

    refs = list(util.map_unordered(square, range(5), yield_obj_refs=True))
    many = ray.remote(max_concurrency=20_000)(Many).remote()
    return sorted(ray.get(refs, timeout=60)), ray.get(many.ping.remote(), timeout=60)


def ended_pools(ray: Any) -> Any:
    """`imap` yields the error of a call that failed; a terminated pool's result is a failure."""
    Pool = importlib.import_module(f"{ray.__name__}.util.multiprocessing").Pool
    sleep = getattr(ray, "sleep", time.sleep)

    def inverse(x: int) -> int:
        return 1 // x

    def wait_long(x: int) -> None:
        sleep(60)

    pool = Pool(2)
    found: list[Any] = []
    for chunksize in (1, 2):
        found.append([repr(value) for value in pool.imap(inverse, [1, 0, 2, 0], chunksize)])
        found.append(
            sorted(repr(value) for value in pool.imap_unordered(inverse, [0, 1, 2], chunksize))
        )
    error = next(iter(pool.imap(inverse, [0])))
    found.append(repr(error.underlying))
    result = pool.map_async(wait_long, range(4))
    pool.terminate()
    result.wait(60)
    return [*found, result.ready(), result.successful()]
