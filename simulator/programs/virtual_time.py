"""Python's clocks and sleeps in virtual time, for programs that do not know of it.

`install` replaces the functions of `time` that read a clock or sleep, and the event loops of
asyncio, for the process that runs a simulated program: then an unchanged script, its tasks and its
actors see virtual time alone. The clocks start at 0, and `time.time` at `EPOCH_S`, so that a
program which prints the time, or is seeded with it, does the same in each run. They stand still
while no cluster is connected, except that sleeps pass. A read takes `READ_S`, so that a loop which
waits for the clock ends.

Python's own remain for other threads, and for callers in Python's standard library, which wait for
real processes, sockets and locks. So do what is asked for the CPU time (`process_time`,
`thread_time`) and what C code reads by itself (`datetime.now`, `localtime` without an argument).
"""

from __future__ import annotations

import asyncio
import sys
import time
import timeit
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial, wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from raytwin.runtime.api import backend
from raytwin.simulator.programs.virtual_world import SimWorld, VirtualEventLoop

EPOCH_S = 1_538_956_800.0
"""What `time.time` says at the start of a program: 8 October 2018, when OSDI '18 began."""
READ_S = 1e-7
"""The CPU time of one read of a clock."""

_LIBRARY = sys.stdlib_module_names


class ProgramClock:
    """The time that a program sees: that of its cluster, on top of what was before."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._before_s = 0.0
        """The time that had passed when the current cluster, if any, started."""
        backend.on_connect.append(self._connected)

    def _connected(self, session: Any) -> None:
        session.before_shutdown.append(partial(self._disconnected, session))

    def _disconnected(self, session: Any) -> None:
        self._before_s += session.world.now()

    def concerns(self, depth: int) -> bool:
        """Whether the caller, so many frames up, is a simulated program."""
        if get_ident() != self._thread:
            return False
        module = sys._getframe(depth + 1).f_globals.get("__name__") or ""
        return module.partition(".")[0] not in _LIBRARY

    def world(self) -> SimWorld | None:
        """Return the world of the program that calls; None while it has no cluster."""
        session: Any = backend.connected()
        return None if session is None else session.world

    def now(self) -> float:
        """Return the seconds since the program's start."""
        world = self.world()
        if world is None:
            self._before_s += READ_S
            return self._before_s
        watcher = world.watcher
        own = watcher is not None and watcher.leave("now")
        world.process.debt_s += READ_S
        now_s = self._before_s + world.now()
        if own and watcher is not None:
            watcher.back()
        return now_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        world = self.world()
        if world is None:
            self._before_s += seconds
        elif world.session is not None:
            world.session.sleep(seconds)


def install() -> None:
    """Replace Python's functions by virtual ones; once in a process."""
    clock = ProgramClock()

    def reading(real: Callable[[], Any], read: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(real)
        def now() -> Any:
            return read() if clock.concerns(1) else real()

        return now

    real_sleep = time.sleep

    @wraps(real_sleep)
    def sleep(seconds: Any, /) -> None:
        if not clock.concerns(1):
            real_sleep(seconds)
            return
        if not seconds + 0.0 >= 0:
            raise ValueError("sleep length must be non-negative")
        clock.sleep(seconds + 0.0)

    def nanoseconds(since_s: float = 0.0) -> int:
        return int(since_s) * 1_000_000_000 + round(clock.now() * 1e9)

    reads: dict[str, Callable[[], Any]] = {
        "time": lambda: EPOCH_S + clock.now(),
        "time_ns": lambda: nanoseconds(EPOCH_S),
        **dict.fromkeys(("monotonic", "perf_counter"), clock.now),
        **dict.fromkeys(("monotonic_ns", "perf_counter_ns"), nanoseconds),
    }
    for name, read in reads.items():
        setattr(time, name, reading(getattr(time, name), read))
    time.sleep = sleep
    timeit.default_timer = time.perf_counter
    asyncio.set_event_loop_policy(_Policy(clock))


# -- asyncio -----------------------------------------------------------------------


class _CallersWorld:
    """The world of a program whose event loop may be older than its cluster."""

    def __init__(self, clock: ProgramClock) -> None:
        self._clock = clock
        self._last: SimWorld | None = None
        """The program's world, for threads that wake its loop."""

    def __getattr__(self, name: str) -> Any:
        world = self._clock.world()
        if world is None:
            raise RuntimeError("no cluster is connected: call init() first")
        return getattr(world, name)

    def __enter__(self) -> None:
        self.__getattr__("__enter__")()

    def __exit__(self, *exc: object) -> None:
        self.__getattr__("__exit__")(*exc)

    def now(self) -> float:
        return self._clock.now()

    def block(self, ready: Callable[[], object], timeout_s: float | None) -> bool:
        self._last = world = self._clock.world()
        if world is not None:
            return world.block(ready, timeout_s)
        if not ready():
            if timeout_s is None:
                raise RuntimeError(
                    "the event loop waits, and nothing will ever wake it: no cluster is connected"
                )
            self._clock.sleep(timeout_s)
        return bool(ready())

    def wake_blocked(self) -> None:
        if self._last is not None:
            self._last.wake_blocked()


class _ProgramLoop(VirtualEventLoop):
    """The event loop of a driver or of a task, in virtual time."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function beside the loop: in a greenlet, since virtual time has one thread."""
        future = self.create_future()

        def run() -> None:
            done: Future[Any] = Future()
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)
            self.call_soon_threadsafe(_copy, done, future)

        self._world.spawn(run, 1)
        return future


def _copy(done: Future[Any], future: asyncio.Future[Any]) -> None:
    if future.done():  # it was cancelled
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Makes virtual event loops for programs; each program has a current one of its own."""

    def __init__(self, clock: ProgramClock) -> None:
        super().__init__()
        self._clock = clock
        self._thread = get_ident()
        self._loops: WeakKeyDictionary[Any, asyncio.AbstractEventLoop] = WeakKeyDictionary()
        """By a worker's process, by the clock for a driver: the loop that was set."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        if get_ident() != self._thread:
            return super().new_event_loop()
        world: Any = _CallersWorld(self._clock)
        return _ProgramLoop(world)

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        if get_ident() != self._thread:
            return super().get_event_loop()
        key = self._key()
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = self.new_event_loop()
        return loop

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if get_ident() != self._thread:
            super().set_event_loop(loop)
        elif loop is None:
            self._loops.pop(self._key(), None)
        else:
            self._loops[self._key()] = loop

    def _key(self) -> Any:
        world = self._clock.world()
        # A driver has one loop, before and after it has connected to a cluster.
        return self._clock if world is None or world.executor is None else world.process
