"""What programs do on Ray they do on raytwin.

Each program is one function of the module that stands for `ray`: it runs on Ray
and on raytwin's backends, and what it returns must be the same.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import threading
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


def nested(ray: Any) -> Any:
    """Values that are nested as deeply as Ray takes them."""

    def nest(levels: int, make: Callable[[Any], Any]) -> Any:
        value = make(0)
        for _ in range(levels - 1):
            value = make(value)
        return value

    def depth(value: Any) -> int:
        found = 0
        while value != 0:
            value, found = value[0], found + 1
        return found

    @ray.remote
    def pass_on(levels: int, again: bool) -> Any:
        value = nest(levels, lambda inner: [inner])
        return ray.get(ray.put([value]))[0] if again else value

    @ray.remote
    def measure(value: Any) -> int:
        return depth(value)

    found: list[int] = []
    for levels, make in (950, lambda inner: [inner]), (950, lambda inner: {0: inner}):
        value = nest(levels, make)
        found.append(depth(ray.get(ray.put(value))))
        found.append(ray.get(measure.remote(value)))
    found += [depth(ray.get(pass_on.remote(950, again))) for again in (False, True)]
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


def event_loops(ray: Any) -> Any:
    """An async actor has one loop, in which its constructor runs, too."""

    class Looped:
        def __init__(self) -> None:
            self.loop = asyncio.get_event_loop()
            self.thread = threading.get_ident()
            self.running = asyncio.get_running_loop() is self.loop
            self.ticked = asyncio.Event()
            self.kept = [self.loop.create_task(self.tick())]

        async def tick(self) -> None:
            await asyncio.sleep(0.05)
            self.ticked.set()

        async def set_going(self) -> None:
            self.ticked.clear()
            self.kept.append(asyncio.get_running_loop().create_task(self.tick()))

        async def wait(self) -> Any:
            await self.ticked.wait()
            return self.running, self.place()

        def place(self) -> Any:
            here = threading.get_ident() == self.thread
            return here, asyncio.get_running_loop() is self.loop

    found: list[Any] = []
    for limit in (1, 2, 1000):
        actor = ray.remote(max_concurrency=limit)(Looped).remote()
        found.append(ray.get([actor.wait.remote(), actor.place.remote()], timeout=60))
        ray.get(actor.set_going.remote())
        found.append(ray.get(actor.wait.remote(), timeout=60))
    return found


def threads(ray: Any) -> Any:
    """What a thread of an actor has of its own it keeps for later calls."""

    class Counter:
        def __init__(self) -> None:
            self.own = threading.local()
            self.threads: set[int] = set()

        def count(self) -> int:
            self.threads.add(threading.get_ident())
            self.own.calls = getattr(self.own, "calls", 0) + 1
            return self.own.calls

        def most(self) -> bool:
            return len(self.threads) <= 2

    actor = ray.remote(max_concurrency=2)(Counter).remote()
    ray.get([actor.count.remote() for _ in range(50)], timeout=60)
    later = ray.get([actor.count.remote() for _ in range(50)], timeout=60)
    return max(later) >= 50, ray.get(actor.most.remote(), timeout=60)


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


def cancelled_calls(ray: Any) -> Any:
    """What becomes of calls that are cancelled while they run."""
    sleep = getattr(ray, "sleep", time.sleep)

    class Sync:
        def __init__(self) -> None:
            self.log: list[Any] = []

        def go_on(self) -> int:
            sleep(0.8)
            self.log.append("went on")
            return 1

        def fail(self) -> None:
            sleep(0.8)
            raise ValueError

        def poll(self) -> int:
            for _ in range(200):
                if ray.get_runtime_context().is_canceled():
                    self.log.append("saw it")
                    break
                sleep(0.02)
            return 1

        def items(self) -> Any:
            try:
                for number in range(20):
                    yield number
                    sleep(0.2)
            finally:
                self.log.append("closed")

        def seen(self) -> list[Any]:
            return self.log

    class Async(Sync):
        async def swallow(self) -> int:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                self.log.append("swallowed")
            return 1

        async def convert(self) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise ValueError from None

        async def coming(self) -> Any:
            for number in range(20):
                yield number
                await asyncio.sleep(100)

    found: list[Any] = []
    for cls, options, methods in (
        (Sync, {}, ["go_on", "fail", "poll", "items"]),
        (Sync, {"max_concurrency": 3}, ["go_on", "fail", "poll", "items"]),
        (Async, {}, ["go_on", "poll", "swallow", "convert", "items", "coming"]),
    ):
        actor = ray.remote(cls).options(**options).remote()
        ray.get(actor.seen.remote())
        for method in methods:
            ref = getattr(actor, method).remote()
            if method in ("items", "coming"):
                ray.get(next(ref))
                ray.cancel(ref)
                ref = next(ref)
            else:
                sleep(0.4)
                ray.cancel(ref)
            with pytest.raises(Exception) as error:
                ray.get(ref)
            found.append((method, type(error.value).__name__, ray.get(actor.seen.remote())))

    @ray.remote
    def task() -> Any:
        try:
            sleep(100)
        except KeyboardInterrupt:
            return ray.get_runtime_context().is_canceled()

    ref = task.remote()
    sleep(1.5)
    ray.cancel(ref)
    return [*found, ray.get(ref)]


def ends_of_actors(ray: Any) -> Any:
    """What actors do at their ends, by what they write to a file."""
    import atexit
    import tempfile
    from pathlib import Path

    sleep = getattr(ray, "sleep", time.sleep)
    directory = Path(tempfile.mkdtemp())

    def note(path: Path, what: str) -> None:
        with path.open("a") as file:
            file.write(what + "\n")

    class Base:
        def __init__(self, path: Path) -> None:
            self.path = path
            atexit.register(self.note, "handler")

        def note(self, what: str) -> None:
            note(self.path, what)

        def leave(self) -> None:
            ray.actor.exit_actor()

        def __ray_shutdown__(self) -> None:
            self.note("shutdown")
            raise ValueError

        def __del__(self) -> None:
            if hasattr(self, "path"):  # Ray's class of actors is one of these, too
                self.note("deleted")

    @ray.remote(num_cpus=0)
    class Plain(Base):
        pass

    @ray.remote(num_cpus=0)
    class Beside(Base):
        async def nap(self) -> str:
            await asyncio.sleep(0.5)
            self.note("napped")
            return "napped"

        async def leave(self) -> None:
            ray.actor.exit_actor()

        async def leave_later(self) -> None:
            async def bye() -> None:
                await asyncio.sleep(0.1)
                ray.actor.exit_actor()

            self.task = asyncio.create_task(bye())

    def until(path: Path) -> list[str]:
        for _ in range(600):
            sleep(0.05)
            if path.exists() and path.read_text().endswith("deleted\n"):
                break
        return path.read_text().splitlines()

    found: list[Any] = []
    for kind in (Plain, Beside):
        for how in ("scope", "__ray_terminate__", "leave"):
            path = directory / f"{len(found)}"
            actor = kind.remote(path)
            ray.get(actor.note.remote("called"))
            napping = actor.nap.remote() if kind is Beside else None
            sleep(0.2)
            if how != "scope":
                getattr(actor, how).remote()
                sleep(0.1)  # else Ray may have begun the next one
            late = actor.note.remote("late") if how != "scope" else None
            del actor
            if napping is not None:
                found.append(ray.get(napping))
            if late is not None:
                found.append(caught(ray, late))
            found.append(until(path))
    actor = Beside.remote(directory / "later")
    ray.get(actor.leave_later.remote())
    sleep(1.0)
    found.append(caught(ray, actor.note.remote("late")))
    actor = Plain.remote(directory / "killed")
    ray.get(actor.note.remote("called"))
    ray.kill(actor)
    sleep(0.5)
    found.append((directory / "killed").read_text().splitlines()[:1])


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
    streams, nested, retries, cancelling, awaiting, waiting, groups, context, affinity, pools,
    errors, failing_early, event_loops, ends_at_once, threads, arrays, cancelled_calls,
    ends_of_actors, names,
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
