"""Programs that do the same on Ray and on raytwin: tasks, values, groups, errors.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any


def caught(ray: Any, ref: Any) -> str:
    """Return what `get` raises, by the names that programs catch it by."""
    try:
        return repr(ray.get(ref, timeout=60))
    except Exception as error:
        known = ("TaskCancelledError", "TaskPlacementGroupRemoved", "TaskUnschedulableError")
        for name in known:
            if isinstance(error, getattr(ray.exceptions, name)):
                return name
        return next(c.__name__ for c in (ValueError, KeyError, ray.exceptions.RayError)
                    if isinstance(error, c))  # fmt: skip


def streams(ray: Any) -> Any:
    @ray.remote
    def count(n: int, fail_at: int = -1) -> Iterator[int]:
        for i in range(n):
            if i == fail_at:
                raise ValueError
            yield i

    found: list[Any] = [type(count.remote(1)).__name__]
    found.append([ray.get(ref) for ref in count.remote(3)])
    found.append([caught(ray, ref) for ref in count.remote(5, 2)])
    found.append(ray.get(count.options(num_returns=2).remote(2)))
    dynamic = count.options(num_returns="dynamic").remote(3)
    found.append(type(dynamic).__name__)
    found.append([ray.get(ref) for ref in ray.get(dynamic)])
    failing = ray.get(count.options(num_returns="dynamic").remote(3, 1))
    found.append([caught(ray, ref) for ref in failing])
    return found


def arrays(ray: Any) -> Any:
    """Nobody may write to what others read, small or large."""
    import numpy as np

    @ray.remote
    def writable(arrays: dict[int, Any], one: Any) -> list[bool]:
        return [array.flags.writeable for array in (*arrays.values(), one)]

    @ray.remote
    def many(count: int, length: int) -> list[Any]:
        return [np.full(length, number) for number in range(count)]

    found: list[Any] = []
    for length in 1, 100, 10_000:
        value = {number: np.full(length, number) for number in range(20)}
        value[20] = np.asfortranarray(np.ones((length, 2)))
        found.append(ray.get(writable.remote(value, value[3])))
        again = ray.get(ray.put(value))
        found.append([array.flags.writeable for array in again.values()])
        found.append([float(array.sum()) for array in again.values()])
        found.append([(a.flags.writeable, int(a[-1])) for a in ray.get(many.remote(20, length))])
    return found


def retries(ray: Any) -> Any:
    import os
    import tempfile

    @ray.remote
    def fail(path: str, kind: type[Exception]) -> int:
        with open(path, "a", encoding="utf-8") as file:
            file.write("x")
        raise kind

    found = []
    for given in (False, True, [ValueError], [KeyError]):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs")
            task = fail.options(max_retries=2, retry_exceptions=given)
            found.append((caught(ray, task.remote(path, ValueError)), os.path.getsize(path)))
    return found


def cancelling(ray: Any) -> Any:
    @ray.remote
    def work() -> str:
        for _ in range(600):
            time.sleep(0.1)
        return "done"

    @ray.remote
    def quick(x: Any = 5) -> Any:
        return x

    found = []
    for force in (False, True):
        ref = work.remote()
        time.sleep(2)
        ray.cancel(ref, force=force)
        found.append(caught(ray, ref))
    ref = quick.remote()
    ray.get(ref)
    ray.cancel(ref)
    found.append(ray.get(ref))
    blocker = work.remote()
    waiting = quick.remote(blocker)
    ray.cancel(waiting)
    found.append(caught(ray, waiting))
    ray.cancel(blocker)
    return found


def awaiting(ray: Any) -> Any:
    @ray.remote
    def double(x: int) -> int:
        return 2 * x

    async def main() -> Any:
        one = await double.remote(1)
        more = await asyncio.gather(*[double.remote(i) for i in range(4)])
        return one, more, await asyncio.wrap_future(double.remote(9).future())

    return asyncio.run(main()), double.remote(4).future().result()


def waiting(ray: Any) -> Any:
    """Which waits of a task let a child have the CPUs that the task itself has."""

    @ray.remote(num_cpus=2)
    def child() -> int:
        return 1

    @ray.remote(num_cpus=2)
    def parent(wait: Callable[[Any], Any]) -> Any:
        return wait(child.remote())

    async def awaited(ref: Any) -> Any:
        return await ref

    waits: list[Callable[[Any], Any]] = [
        ray.get,
        lambda ref: len(ray.wait([ref])[0]),
        lambda ref: ref.future().result(),
        lambda ref: asyncio.run(awaited(ref)),
    ]
    gives_up = []
    for number, wait in enumerate(waits):
        ref = parent.remote(wait)
        gives_up.append(bool(ray.wait([ref], timeout=90 if number < 2 else 2)[0]))
        ray.cancel(ref, force=True)
    return gives_up


def groups(ray: Any) -> Any:
    import importlib

    name = ray.__name__
    strategies = importlib.import_module(f"{name}.util.scheduling_strategies")
    table = ray.util.placement_group_table

    @ray.remote
    def inside() -> bool:
        return ray.util.get_current_placement_group() is not None

    @ray.remote(num_cpus=0)
    def parent() -> list[bool]:
        away = inside.options(num_cpus=0, scheduling_strategy="DEFAULT")
        return ray.get([inside.options(num_cpus=0).remote(), away.remote()])

    @ray.remote
    def assigned() -> Any:
        return ray.get_runtime_context().get_assigned_resources()

    group = ray.util.placement_group([{"CPU": 1}], strategy="STRICT_PACK", name="g")
    found: list[Any] = [group.wait(30), group.bundle_specs, group.bundle_count]
    into = strategies.PlacementGroupSchedulingStrategy(group, 0)
    found.append(ray.get(inside.options(scheduling_strategy=into).remote()))
    found.append(ray.get(inside.remote()))
    capturing = strategies.PlacementGroupSchedulingStrategy(
        group, 0, placement_group_capture_child_tasks=True
    )
    found.append(ray.get(parent.options(scheduling_strategy=capturing).remote()))
    found.append(ray.get(assigned.options(scheduling_strategy=into).remote()))
    found.append(table(group)["state"])
    found.append(ray.util.get_placement_group("g").id.hex() == group.id.hex())
    never = ray.util.placement_group([{"CPU": 64}])
    found.append(never.wait(1))
    for one in (never, group):
        ray.util.remove_placement_group(one)
    time.sleep(1)
    found.append(table(group)["state"])
    return found


def context(ray: Any) -> Any:
    @ray.remote
    def inside() -> Any:
        here = ray.get_runtime_context()
        return (
            here.get_task_name(), here.get_actor_id(), here.get_assigned_resources(),
            here.get_placement_group_id(), here.get_node_id() in [n["NodeID"] for n in ray.nodes()],
        )  # fmt: skip

    here = ray.get_runtime_context()
    inside = inside.options(name="inside")
    return ray.get(inside.remote()), here.get_actor_id(), here.get_task_id(), here.get_job_id()


def affinity(ray: Any) -> Any:
    import importlib

    strategies = importlib.import_module(f"{ray.__name__}.util.scheduling_strategies")

    @ray.remote
    def where() -> str:
        return str(ray.get_runtime_context().get_node_id())

    here = ray.get_runtime_context().get_node_id()
    to = strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    found: list[Any] = [ray.get(where.options(scheduling_strategy=to).remote()) == here]
    for wrong in ({"scheduling_strategy": 5}, {"retry_exceptions": [1]}, {"bogus": 1}):
        try:
            where.options(**wrong)
        except (TypeError, ValueError):
            found.append("refused")
    return found


def pools(ray: Any) -> Any:
    import importlib

    Pool = importlib.import_module(f"{ray.__name__}.util.multiprocessing").Pool
    with Pool(2) as pool:
        found: list[Any] = [
            pool.map(lambda x: x * x, range(9)),
            pool.starmap(lambda x, y: x + y, [(1, 2), (3, 4)]),
            list(pool.imap(lambda x: -x, range(5))),
            sorted(pool.imap_unordered(lambda x: -x, range(5))),
            pool.apply(lambda x, y=0: x + y, (1,), {"y": 2}),
            pool.apply_async(lambda: 7).get(timeout=60),
        ]
        try:
            pool.map(lambda x: 1 // x, [1, 0])
        except ZeroDivisionError:
            found.append("raised")
        pool.close()
        pool.join()
    return found


def errors(ray: Any) -> Any:
    class Unloadable(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one)

    @ray.remote
    def fail(kind: int) -> None:
        raise [ValueError("a", 7), Unloadable(1, 2)][kind]

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self, fails: bool = False) -> None:
            if fails:
                raise ValueError("no")

        def leave(self) -> None:
            ray.actor.exit_actor()

        def where(self) -> Any:
            here = ray.get_runtime_context()
            return here.get_task_function_name().rpartition(".")[2]

    @ray.remote
    def work() -> str:
        return str(ray.get_runtime_context().get_task_function_name()).rpartition(".")[2]

    def raised(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error.with_traceback(None)

    found: list[Any] = []
    error = raised(lambda: ray.get(fail.remote(0)))
    found.append([repr(each) for each in error.args])
    found.append(error.cause.args)
    found.append(isinstance(error.as_instanceof_cause(), ValueError))
    error = raised(lambda: ray.get(fail.remote(1)))
    found.append(isinstance(error, ray.exceptions.UnserializableException))
    actor = Actor.options(name="taken").remote()
    taken = raised(lambda: Actor.options(name="taken").remote())
    found.append((type(taken).__name__, isinstance(taken, ValueError)))
    found.append(ray.get(actor.where.remote()))
    died = raised(lambda: ray.get(actor.leave.remote()))
    made = Actor.remote(True)
    unmade = raised(lambda: ray.get(made.where.remote()))
    for one, error in ((actor, died), (made, unmade)):
        found.append(
            (
                type(error).__name__,
                error.actor_id == one._actor_id.hex(),
                error.error_msg == str(error),
                error.actor_init_failed,
                error.preempted,
            )
        )
    ref = work.options(num_cpus=2).remote()
    waiting = fail.remote(work.options(resources={"none": 1}).remote())
    ray.cancel(waiting)
    error = raised(lambda: ray.get(waiting))
    found.append((type(error).__name__, hasattr(error, "task_id")))
    found.append(ray.get(work.options(name="other").remote()))
    found.append(type(raised(lambda: ray.get((ref, ref)))).__name__)
    found.append(type(raised(lambda: ray.wait((ref,)))).__name__)
    found.append(type(raised(lambda: ray.remote(num_cpus=-1)(lambda: 1))).__name__)

    def inherit() -> None:
        class Sub(Actor):  # type: ignore[misc, valid-type]
            pass

    found.append(type(raised(inherit)).__name__)

    class Waits:
        async def __init__(self) -> None:
            pass

        async def value(self) -> int:
            return 5

    found.append(type(raised(lambda: ray.get(ray.remote(Waits).remote().value.remote()))).__name__)
    return found
