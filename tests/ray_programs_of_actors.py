"""Programs that do the same on Ray and on raytwin: actors, and how processes end.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import tempfile
import threading
import time
from typing import Any

import pytest

from tests.ray_programs import caught


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
                if method == "coming":
                    sleep(0.4)  # it has delivered its item, and sleeps
                ray.cancel(ref)
                ref = next(ref)
            else:
                sleep(0.4)
                ray.cancel(ref)
            with pytest.raises(Exception) as error:
                ray.get(ref)
            found.append((method, type(error.value).__name__, ray.get(actor.seen.remote())))

    @ray.remote
    def task(path: str) -> Any:
        try:
            open(path, "w").close()
            sleep(5)  # Ray interrupts it when it has slept
        except KeyboardInterrupt:
            return ray.get_runtime_context().is_canceled()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "started")
        ref = task.remote(path)
        while not os.path.exists(path):
            sleep(0.1)
        sleep(0.5)
        ray.cancel(ref)
        return [*found, ray.get(ref)]


def owners(ray: Any) -> Any:
    """What an actor has put is lost with it, for those with references, too."""

    @ray.remote(num_cpus=0)
    class Owner:
        def give(self) -> Any:
            return [ray.put("small"), ray.put(bytes(1_000_000))]

        def end(self) -> None:
            ray.actor.exit_actor()

    @ray.remote(num_cpus=0)
    def read(refs: list[Any]) -> str:
        return lost(refs[0])

    def lost(ref: Any) -> str:
        try:
            return repr(type(ray.get(ref, timeout=60)))
        except ray.exceptions.OwnerDiedError as error:
            return f"OwnerDiedError {isinstance(error, ray.exceptions.ObjectLostError)}"

    found = []
    for killed in (True, False):
        actor = Owner.remote()
        refs = ray.get(actor.give.remote())
        if killed:
            ray.kill(actor)
        else:
            found.append(caught(ray, actor.end.remote()))
        getattr(ray, "sleep", time.sleep)(2.0)
        found += [lost(ref) for ref in refs]
        found.append(ray.get(read.remote([refs[0]])))
    return found


def ends_of_actors(ray: Any) -> Any:
    """What actors do at their ends, by what they write to a file."""
    import atexit
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

    @ray.remote(num_cpus=0)
    class Shadowing:
        def __init__(self) -> None:
            for name in ("value", "double", "values"):
                setattr(self, name, 5)

        def value(self) -> int:
            return 3

        @staticmethod
        def double(x: int) -> int:
            return 2 * x

        def values(self) -> Any:
            yield 7

    found: list[Any] = [Actor.CONSTANT, Actor.double(2), Actor.constant()]
    found.append(hasattr(Actor, "nothing"))
    raylet = importlib.import_module(f"{ray.__name__}._raylet")
    found.append(raylet.ObjectRefGenerator is ray.ObjectRefGenerator)
    shadowing = Shadowing.remote()
    found += ray.get([shadowing.value.remote(), shadowing.double.remote(2)])
    found += [ray.get(item) for item in shadowing.values.remote()]
    actor = Actor.remote()
    for method in (plain, actor.items):
        for returns in ("streaming", "dynamic"):
            try:
                method.options(num_returns=returns).remote()
            except ValueError:
                found.append("refused")
    return found


def found_by_name(ray: Any) -> Any:
    """A handle that was found by name does not keep its actor."""
    sleep = getattr(ray, "sleep", time.sleep)

    @ray.remote
    class Named:
        def ping(self) -> int:
            return 1

    @ray.remote(num_cpus=0)
    def ping(handle: Any) -> int:
        return ray.get(handle.ping.remote())

    found: list[Any] = []
    for options in ({}, {"get_if_exists": True}):
        made = Named.options(name="n", **options).remote()
        weak = Named.options(name="n", **options).remote() if options else ray.get_actor("n")
        found.append((ray.get(weak.ping.remote()), ray.get(ping.remote(weak))))
        del made
        try:
            for _ in range(600):
                ray.get(weak.ping.remote())
                sleep(0.05)
        except ray.exceptions.RayActorError as error:
            found.append(type(error).__name__)
    kept = Named.options(name="d", lifetime="detached").remote()
    ray.get(kept.ping.remote())
    del kept
    sleep(0.5)
    weak = ray.get_actor("d")
    found.append(ray.get(weak.ping.remote()))
    ray.kill(weak)
    return found


def handles_in_cycles(ray: Any) -> Any:
    """An actor that only a reference cycle keeps makes room for the next one."""

    @ray.remote(num_cpus=2)
    class Large:
        def ping(self) -> int:
            return 1

    class Cycle:
        def __init__(self) -> None:
            self.actor = Large.remote()
            self.me = self

    found = []
    gc.disable()  # it must be asked for
    try:
        for _ in range(2):
            cycle = Cycle()
            found.append(ray.get(cycle.actor.ping.remote(), timeout=100))
            del cycle
    finally:
        gc.enable()
    return found


def calls_without_order(ray: Any) -> Any:
    """A call of a threaded or async actor does not wait for the arguments of earlier ones."""
    sleep = getattr(ray, "sleep", time.sleep)

    @ray.remote(num_cpus=0)
    class Gate:
        def __init__(self) -> None:
            self.is_open = False

        def open(self) -> None:
            self.is_open = True

        def state(self) -> bool:
            return self.is_open

    @ray.remote(num_cpus=0)
    def slow(gate: Any) -> str:
        while not ray.get(gate.state.remote()):
            sleep(0.05)
        return "slow"

    class Plain:
        def echo(self, value: Any) -> Any:
            return value

    class Async:
        async def echo(self, value: Any) -> Any:
            return value

    found: list[Any] = []
    for cls, options in (
        (Plain, {"max_concurrency": 2}),
        (Async, {}),
        (Async, {"max_concurrency": 1}),
    ):
        gate = Gate.remote()
        actor = ray.remote(num_cpus=0)(cls).options(**options).remote()
        late = [actor.echo.remote(slow.remote(gate)) for _ in range(2)]
        found.append(ray.get([actor.echo.remote(n) for n in range(3)], timeout=60))
        ray.get(gate.open.remote())
        found.append(ray.get(late, timeout=60))
    return found
