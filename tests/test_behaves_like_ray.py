"""What programs do on Ray they do on raytwin.

Each program is one function of the module that stands for `ray`: it runs on Ray
and on raytwin's backends, and what it returns must be the same.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin
from tests.requirements import require

pytestmark = pytest.mark.ray


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

    group = ray.util.placement_group([{"CPU": 1}], strategy="STRICT_PACK", name="g")
    found: list[Any] = [group.wait(30), group.bundle_specs, group.bundle_count]
    into = strategies.PlacementGroupSchedulingStrategy(group, 0)
    found.append(ray.get(inside.options(scheduling_strategy=into).remote()))
    found.append(ray.get(inside.remote()))
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


def failing_early(ray: Any) -> Any:
    """Some of a group fail, and the others wait for them."""

    @ray.remote(num_cpus=0)
    class Barrier:
        def __init__(self) -> None:
            self.here = 0

        def come(self) -> int:
            self.here += 1
            return self.here

        def count(self) -> int:
            return self.here

        def fail(self) -> None:
            raise KeyError

    @ray.remote(num_cpus=0)
    def meet(rank: int, barrier: Any) -> int:
        if rank == 1:
            raise ValueError
        ray.get(barrier.come.remote())
        while ray.get(barrier.count.remote()) < 2:
            time.sleep(0.02)
        return rank

    barrier = Barrier.remote()
    refs = [meet.remote(rank, barrier) for rank in (0, 1)]
    found = [caught(ray, refs), caught(ray, refs[::-1])]
    call = barrier.fail.remote()
    ray.wait([call, refs[1]], num_returns=2)
    found += [caught(ray, [refs[0], *failed]) for failed in ([call, refs[1]], [refs[1], call])]
    ready, left = ray.wait([*refs, call], num_returns=3, timeout=0.01)
    found.append((len(ready), left == [refs[0]]))
    ray.get([barrier.come.remote() for _ in range(2)])
    return [*found, caught(ray, refs[0])]


def ends_at_once(ray: Any) -> Any:
    """Tasks and actors whose process ends itself."""
    import os
    import signal
    import tempfile

    @ray.remote
    def end(path: str, last: int, by_signal: bool) -> int:
        with open(path, "a", encoding="utf-8") as file:
            file.write("x")
        if os.path.getsize(path) < last:
            if by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(1)
        return os.path.getsize(path)

    @ray.remote(num_cpus=0)
    class Actor:
        def end(self) -> None:
            os._exit(0)

        def value(self) -> int:
            return 1

    def raised(ref: Any) -> str:
        try:
            return repr(ray.get(ref, timeout=60))
        except Exception as error:
            return type(error).__name__

    found = []
    for by_signal in (False, True):
        for tries in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "runs")
                ref = end.options(max_retries=tries - 1).remote(path, 3, by_signal)
                found.append((raised(ref), os.path.getsize(path)))
    for concurrency in (1, 2):
        actor = Actor.options(max_concurrency=concurrency).remote()
        calls = (actor.value, actor.end, actor.value)
        found += [raised(method.remote()) for method in calls]
    return found


def names(ray: Any) -> Any:
    """What classes and modules have, and what is refused at the call."""

    @ray.remote
    def plain() -> list[int]:
        return [1, 2]

    @ray.remote(num_cpus=0)
    class Actor:
        CONSTANT = 7

        @staticmethod
        def double(x: int) -> int:
            return 2 * x

        @classmethod
        def constant(cls) -> int:
            return cls.CONSTANT

        def items(self) -> list[int]:
            return [1]

    found: list[Any] = [Actor.CONSTANT, Actor.double(2), Actor.constant()]
    found.append(hasattr(Actor, "nothing"))
    raylet = importlib.import_module(f"{ray.__name__}._raylet")
    found.append(raylet.ObjectRefGenerator is ray.ObjectRefGenerator)
    actor = Actor.remote()
    for method in (plain, actor.items):
        for returns in ("streaming", "dynamic"):
            try:
                method.options(num_returns=returns).remote()
            except ValueError:
                found.append("refused")
    return found


PROGRAMS = [
    streams, retries, cancelling, awaiting, waiting, groups, context, affinity, pools, errors,
    failing_early, ends_at_once, names,
]  # fmt: skip


class OnRay:
    """Runs programs on Ray, in a process of its own.

    A check of Ray's own fails now and then when a task is cancelled whose input is being
    awaited, and ends the process: then the program runs once more, in another one.
    """

    TRIES = 3

    def __init__(self) -> None:
        self._process: Any = None

    def run(self, program: Callable[[Any], Any]) -> Any:
        """Return what the program does; raises what it raises."""
        for _ in range(self.TRIES):
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(target=serve, args=(theirs,))
                self._process.start()
                theirs.close()
            try:
                self._pipe.send(program.__name__)
                failed, result = self._pipe.recv()
            except (EOFError, ConnectionError):
                self.close()
                continue
            if failed:
                raise AssertionError(f"on Ray: {result}")
            return result
        raise AssertionError(f"Ray's process ended {self.TRIES} times in {program.__name__}")

    def close(self) -> None:
        """End the process, with its cluster."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(60)
            self._process.kill()
            self._process = None


def serve(pipe: Any) -> None:
    """Run the programs that are asked for, by name, until the other end is closed."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    named = {program.__name__: program for program in PROGRAMS}
    while True:
        try:
            name = pipe.recv()
        except (EOFError, ConnectionError):
            break
        try:
            answer = (False, named[name](ray))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
    ray.shutdown()


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    side = OnRay()
    yield side
    side.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_does_the_same(program: Callable[[Any], Any], on_ray: OnRay) -> None:
    expected = on_ray.run(program)
    for backend in ("local", "sim"):
        if backend == "sim" and program is cancelling:
            continue  # it waits in real time
        raytwin.init(backend=backend, num_cpus=2)
        try:
            assert program(raytwin) == expected, backend
        finally:
            raytwin.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_ray_that_ends_is_started_anew(on_ray: OnRay) -> None:
    before = on_ray.run(awaiting)
    on_ray._process.kill()
    on_ray._process.join()
    assert on_ray.run(awaiting) == before
