"""Virtual time under a session: programs run in greenlets.

The first driver's program runs in the main greenlet. When it waits, it runs the
simulation until its condition holds. A worker's program runs in a greenlet of
its own; when it waits, or uses time, it switches to the simulation, which
switches back when the event is due.

API calls and task overheads take CPU time too. They add to the program's *debt*,
which the program pays (time passes, on a core of the host) before its messages leave
and before it waits: a loop of a thousand submissions pays for all of them in a few
events, and so does a worker for many short tasks.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import selectors
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.objects.copy_threads import copy_threads
from raytwin.runtime.control.worker.executor import DUE_S, Executor
from raytwin.runtime.serialization import serialization
from raytwin.runtime.serialization.serialization import Serialized
from raytwin.runtime.session.futures import ItemWaiter, NotifyingWaiter, settle
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.world import LOOP_STOPPED, BodyWatcher, Environment
from raytwin.simulator.machine.costs import PARTS_OF_CALLS, Profile
from raytwin.simulator.machine.simulated_process import ProcessPort, SimProcess
from raytwin.simulator.programs import virtual_values
from raytwin.simulator.programs.process_ends import Handler, from_handler, run
from raytwin.simulator.programs.virtual_values import Functions

STALL_S = 60.0
"""After so many virtual seconds without progress a driver's wait raises.

Programs that use time or wait with a timeout, transfers and long turns are progress.
All timers of the control plane are shorter, see `SimCluster.stall_s`.
"""
SETTLE_S = 100e-6
"""A worker runs short tasks on until they have used so much CPU time, which passes in one event.

A real worker takes messages between short tasks no sooner: its interpreter's lock changes hands
after milliseconds. Times of tasks include what has not passed yet, see `SimWorld.now`.
"""

WAIT = "wait"
"""What a watcher is told where a program waits, in an API call or not."""

OTHER_THREAD = (
    "simulated programs have one thread, and this is another one: call raytwin in the thread that"
    " called init(), and use tasks, or actors with max_concurrency, for concurrency"
)

NO_REAL_IO = (
    "a simulated program's event loop is in virtual time, and cannot wait for real processes,"
    " sockets and pipes: use blocking calls (subprocess.run), or backend 'local'"
)


class BodyCosts(Protocol):
    """What the bodies of a cluster's programs cost."""

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        """Return what charges one driver or worker; None: bodies cost what they declare."""


class StorePort(Protocol):
    """A node's object store, as programs there see it."""

    values: dict[int, bytes]
    """The pickles in it, by offset."""

    def untouched(self, offset: int) -> int:
        """Return how many bytes at this offset no object has had before."""


class ProgramPort(ProcessPort, Protocol):
    """The interface of the cluster for its programs and their worlds."""

    profile: Profile
    hub: Any
    """The greenlet that runs the simulation, and the first driver's program."""
    thread: int
    """The one thread in which the simulation may run."""
    pid: int
    """The real process that runs the simulation."""
    loop_of_hub: asyncio.AbstractEventLoop | None
    """The hub's running asyncio loop, saved while a program's greenlet runs."""
    hooks_of_hub: Any
    """The hub's hooks for asynchronous generators: see `sys.set_asyncgen_hooks`."""
    functions: Functions
    costs_of_bodies: BodyCosts
    """What bodies cost, besides what they declare."""
    tasks: int
    """Tasks and calls that workers have run so far, repetitions included."""
    bodies_s: float
    """CPU seconds and sleeps of their bodies so far, without waits for other tasks."""
    closed: bool

    def run_until(self, ready: Callable[[], object], watch: bool) -> None:
        """Run the simulation until `ready()` holds; with `watch`, raise if it never can."""

    def worker_left(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that has exited in good order."""

    def worker_died(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that its program has killed (`os._exit`, a signal)."""


def check_thread(owner: int) -> None:
    """Raise RuntimeError unless called on the thread with this number.

    All programs take turns on that thread, and switch only where they wait. A call from another
    thread would interfere between; this check comes before the call has changed anything, so
    the simulation continues.
    """
    if get_ident() != owner:
        raise RuntimeError(OTHER_THREAD)


class ProgramGreenlet(greenlet):
    """A greenlet that knows the session of the program that it runs.

    Python keeps the running asyncio loop, and the hooks for asynchronous generators, per
    thread. One thread runs all programs, so each switch exchanges both.
    """

    session: Session

    def __init__(self, program: Callable[[], None], cluster: ProgramPort) -> None:
        super().__init__(self._run_program, cluster.hub)
        self._program = program
        self._cluster = cluster

    def _run_program(self) -> None:
        self._cluster.loop_of_hub = asyncio._get_running_loop()
        self._cluster.hooks_of_hub = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(None)
        try:
            self._program()
        finally:
            asyncio._set_running_loop(self._cluster.loop_of_hub)
            sys.set_asyncgen_hooks(*self._cluster.hooks_of_hub)


class SimWorld:
    """`backend.World` for a simulated driver or worker."""

    name = "sim"

    def __init__(
        self,
        cluster: ProgramPort,
        process: SimProcess,
        client: Client,
        executor: Executor | None,
        store: StorePort,
    ) -> None:
        self.cluster = cluster
        self.process = process
        self.client = client
        self.executor = executor
        self._store = store
        self.environment = Environment()
        self._env = cluster.env
        self._thread = cluster.thread
        self._depth = 0
        self.in_use = False
        """Whether the program computes or sleeps; then it does not wait for a turn."""
        self._waiting: list[tuple[Any, Callable[[], object]]] = []
        """The program's greenlets that wait, and the condition of each."""
        self.session: Session | None = None
        """The program's session, which its further greenlets share."""
        self.end: Callable[[str], None] = partial(cluster.worker_died, process)
        """Ends the process at once; takes the reason."""
        self.exit_handlers: list[Handler] | None = None if executor is None else []
        """Functions that a worker's program has registered with `atexit`; None for a driver."""
        self._spawned: list[ProgramGreenlet] = []
        self.watcher: BodyWatcher | None = cluster.costs_of_bodies.watcher(self)
        process.after_turn = self._after_turn

    # -- turns -----------------------------------------------------------------

    def __enter__(self) -> SimWorld:
        if get_ident() != self._thread:
            raise RuntimeError(OTHER_THREAD)
        self._depth += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self.process.turns.dirty:
            if self.process.debt_s > 0:
                self.settle()
            self.process.flush_calls()

    def enter_lease(self, demand: str, gpus: Sequence[int]) -> None:
        """Do nothing: libraries in this process use its resources, not simulated ones."""

    def charge(self, what: str, count: int) -> None:
        process = self.process
        if process.costs.rests_count and what not in PARTS_OF_CALLS:
            process.debt_s += process.end_rests((what,))
        if what == "run":
            process.debt_s += process.costs.ran(count)
            self.cluster.tasks += count
            if process.debt_s >= SETTLE_S:
                self.settle()
        else:
            process.debt_s += process.costs.called(what, count)

    def settle(self) -> None:
        """Pay the debt: let the CPU time pass that the program has used."""
        process, watcher = self.process, self.watcher
        own = watcher is not None and watcher.leave(WAIT)
        while process.debt_s > 0:
            # `now` adds the debt, which must not count twice while its time passes.
            debt_s, process.debt_s = process.debt_s, 0.0
            process.busy_s += debt_s
            self._pass_time(process.host.run, debt_s, process)
            if not self.in_use:  # what it has used is the runtime's code, as turns do
                process.stay_warm()
        if own and watcher is not None:
            watcher.back()

    # -- waiting ---------------------------------------------------------------

    def block(self, ready: Callable[[], object], timeout_s: float | None) -> bool:
        watcher = self.watcher
        if watcher is None or not watcher.leave(WAIT):
            return self._block(ready, timeout_s)
        try:
            return self._block(ready, timeout_s)
        finally:
            watcher.back()

    def _block(self, ready: Callable[[], object], timeout_s: float | None) -> bool:
        if self.process.debt_s > 0:
            self.settle()
        if ready():
            return True
        if timeout_s is None:
            self._wait(ready, True)
            return True
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.process.when_running(self._after_turn)

        self._env.after(timeout_s, expire)
        self.cluster.working += 1
        try:
            self._wait(lambda: expired or ready(), False)
        finally:
            self.cluster.working -= 1
        return bool(ready())

    def _pass_time(self, begin: Callable[..., None], seconds: float, *rest: Any) -> None:
        """Call ``begin(seconds, done, *rest)``, and let time pass until it calls `done()`."""
        cluster = self.cluster
        current = getcurrent()
        cluster.working += 1
        try:
            if current is cluster.hub:
                over: list[bool] = []
                begin(seconds, lambda: over.append(True), *rest)
                cluster.run_until(over.__len__, False)
            else:
                # Only `done` switches back to this greenlet.
                begin(seconds, current.switch, *rest)
                self._switch_out()
        finally:
            cluster.working -= 1

    def _wait(self, ready: Callable[[], object], watch: bool) -> None:
        """Wait until `ready()` holds after a turn of this process, or after a timeout."""
        current = getcurrent()
        if current is self.cluster.hub:
            self.cluster.run_until(ready, watch)
            return
        self._waiting.append((current, ready))
        self._switch_out()

    def _switch_out(self) -> None:
        """Run the simulation until it switches back.

        Raises GreenletExit, which no program catches by accident, once the
        process or the whole cluster has ended.
        """
        cluster, process = self.cluster, self.process
        if process.alive and not cluster.closed:
            # All programs share this real process and thread: withdraw this program's
            # environment variables and running event loop until it continues.
            environment = self.environment
            if environment.variables:
                environment.withdraw()
            loop = asyncio._get_running_loop()
            asyncio._set_running_loop(cluster.loop_of_hub)
            if loop is not None:
                hooks = sys.get_asyncgen_hooks()
                sys.set_asyncgen_hooks(*cluster.hooks_of_hub)
            try:
                cluster.hub.switch()
            except GreenletExit:
                _end_loop(loop)
                raise
            finally:
                # Also if GreenletExit ends the program: else its event loop would seem to run
                # in the greenlet that has ended the program.
                cluster.loop_of_hub = asyncio._get_running_loop()
                cluster.hooks_of_hub = sys.get_asyncgen_hooks()
                asyncio._set_running_loop(loop)
                if loop is not None:
                    sys.set_asyncgen_hooks(*hooks)
            if environment.variables:
                environment.apply()
        if not process.alive or cluster.closed:
            self._waiting.clear()
            _end_loop(asyncio._get_running_loop())
            raise GreenletExit

    def _after_turn(self) -> None:
        """Switch to each of the program's greenlets whose condition holds."""
        waiting = self._waiting
        if len(waiting) == 1:
            # Most programs have one greenlet.
            if waiting[0][1]():
                waiting.pop()[0].switch()
            return
        for waiter in list(waiting):
            if waiter in waiting and waiter[1]():
                waiting.remove(waiter)
                waiter[0].switch()

    # -- several at a time -----------------------------------------------------

    def spawn(self, run: Callable[[], None], most: int) -> None:
        """Run a function in a further greenlet of the program."""
        assert self.session is not None
        self._spawned = [spawned for spawned in self._spawned if not spawned.dead]
        spawned = ProgramGreenlet(run, self.cluster)
        spawned.session = self.session
        self._spawned.append(spawned)
        self._call_soon(spawned.switch)

    unwinding: tuple[type[BaseException], ...] = (GreenletExit,)
    is_for_driver = staticmethod(from_handler)

    def start_event_loop(
        self, failed: Callable[[BaseException], None]
    ) -> asyncio.AbstractEventLoop:
        """Return an event loop in virtual time, in a greenlet of its own."""
        loop = VirtualEventLoop(self)

        def run() -> None:
            if self.watcher is not None:
                self.watcher.begin()
            try:
                loop.run_forever()
            except GreenletExit:
                raise
            except BaseException as error:
                failed(error)
            else:
                failed(RuntimeError(LOOP_STOPPED))
            finally:
                if self.watcher is not None:
                    self.watcher.end()
                # The process has ended with its coroutines: asyncio must not report that
                # they are unfinished.
                loop.set_exception_handler(lambda loop, context: None)

        self.spawn(run, 1)
        return loop

    def run_exit_handlers(self) -> None:
        assert self.exit_handlers is not None, "a driver ends with the real process"
        run(self.exit_handlers)

    def wake_blocked(self) -> None:
        """Check the conditions of the program's greenlets, in an event of its own."""
        self._call_soon(self._after_turn)

    def _call_soon(self, call: Callable[[], object]) -> None:
        def run_alive() -> None:
            if self.process.alive:
                call()

        self._env.after(0, run_alive)

    def end_spawned(self) -> None:
        """Unwind the further greenlets of a program whose process has ended."""
        for spawned in self._spawned:
            if spawned:
                spawned.throw()

    def leave(self, code: int = 0) -> None:
        """End a worker's process in good order, once its last frames have left."""
        left = partial(self.cluster.worker_left, self.process, f"exit code {code}")
        self._call_soon(lambda: self.process.when_sent(left))

    def die(self, reason: str) -> NoReturn:
        """End the process at once, as the operating system would, for `reason`."""
        self.settle()
        program = getcurrent()

        def end() -> None:
            self.end(reason)
            if program:
                program.throw()

        # In an event of its own: unwinding may switch to another of the process's greenlets.
        self._call_soon(end)
        while True:
            self._switch_out()

    # -- time ------------------------------------------------------------------

    def pay(self) -> None:
        """Let the CPU time that a body has used pass, and have its range report, once that is due.

        On real processes a range that runs for longer than `DUE_S` reports in between.
        """
        if self.process.debt_s >= DUE_S:
            self.compute(0.0)

    def now(self) -> float:
        return self._env.now + self.process.debt_s + self.process.skew_s

    def count_body(self, seconds: float) -> None:
        """Count what a body takes, if this is a worker: the driver's program is not a body."""
        if self.executor is not None:
            self.cluster.bodies_s += seconds

    def sleep(self, seconds: float) -> None:
        self.settle()
        began_s = self._env.now
        executor = self.executor
        if executor is None or executor.running is None:
            self._pass_time(self._call_after, seconds)
        else:
            self.in_use = True
            try:
                self.block(lambda: executor.interrupt, seconds)
            finally:
                self.in_use = False
        self.count_body(self._env.now - began_s)
        self._after_time_passed()

    def _call_after(self, seconds: float, done: Callable[[], None]) -> None:
        self._env.after(seconds, partial(self.process.when_running, done))

    def compute(self, seconds: float) -> None:
        self.process.debt_s += seconds
        self.count_body(seconds)
        if self.executor is not None and 0 < self.process.debt_s < SETTLE_S:
            return
        self.in_use = True
        try:
            self.settle()
        finally:
            self.in_use = False
        self._after_time_passed()

    def _after_time_passed(self) -> None:
        """Have the executor report the running range; interrupt the task if it was cancelled."""
        if self.executor is not None:
            self.executor.alerts.append("time")
            if self.executor.interrupt:
                self.executor.interrupt = False
                raise KeyboardInterrupt

    def on_task_thread(self) -> bool:
        return True

    def collect_cycles(self) -> None:
        # All simulated processes have one garbage collector, and are asked at the same time.
        if self.executor is None:
            gc.collect()

    def overdue(self) -> None:
        return None

    # -- values ----------------------------------------------------------------

    def blob(self, nbytes: int) -> virtual_values.Blob:
        self.process.debt_s += nbytes * self.cluster.profile.blob_byte_s
        return virtual_values.Blob(nbytes)

    sink = serialization.sink
    deserialize = staticmethod(serialization.deserialize)
    dumps_function = staticmethod(serialization.dumps_function)
    loads_function = staticmethod(serialization.loads_function)

    def serialize(self, value: Any) -> Serialized:
        return self._charged(virtual_values.serialize(value))

    def serialize_values(self, values: list[Any]) -> Serialized:
        return self._charged(virtual_values.serialize_values(values))

    def _charged(self, serialized: Serialized) -> Serialized:
        if serialized.cloudpickled:
            self.charge("pickle", 1)
        return serialized

    @property
    def functions(self) -> Functions:
        return self.cluster.functions

    def identity_of(self, blob: bytes) -> bytes:
        return self.cluster.functions.identity(blob)

    def write(self, oid: bytes, offset: int, value: Any) -> None:
        profile, cores = self.cluster.profile, self.process.host.cores
        threads = copy_threads(value.nbytes, self.client.config.store_copy_threads, cores)
        self.process.debt_s += profile.put_copy_s(value.nbytes, threads)
        self.process.debt_s += profile.touch_byte_s * self._store.untouched(offset)
        self.settle()
        self._store.values[offset] = virtual_values.stored(value)

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        self.charge("read", 1)
        # This copies, but pins the object as a view of shared memory does.
        return virtual_values.read(self._store.values[offset], released)

    def close(self) -> None:
        """Do nothing: the cluster ends with its first driver."""


# -- asyncio in virtual time -------------------------------------------------------


class _VirtualSelector(selectors.BaseSelector):
    """Waits in virtual time; registered files never become ready."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.woken = False
        self.done: list[NotifyingWaiter] = []
        """Waiters whose reference has a value now, or whose stream has an item."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._keys:  # the first is the loop's own
            raise RuntimeError(NO_REAL_IO)
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._world.block(lambda: self.woken or bool(self.done), timeout)
        self.woken = False
        while self.done:
            waiter = self.done.pop(0)
            # The value may be unready again for a moment, while the node fetches it.
            if waiter.ready and not waiter.future.done():
                assert self._world.session is not None
                settle(waiter.future, partial(waiter.value, self._world.session))
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the simulation's."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._virtual = _VirtualSelector(world)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._world.now()

    def future_of(self, ref: ObjectRef) -> Future[Any]:
        """Return a future of a reference's value, which the loop can await."""
        future: Future[Any] = Future()
        waiter = NotifyingWaiter(ref, future, self._virtual.done)
        session = self._world.session
        assert session is not None
        with self._world:
            waiter.watch(session)
        if not waiter.missing:
            self._virtual.done.append(waiter)
        return future

    def future_of_item(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        """Return a future of the next item in a stream, which the loop can await."""
        session = self._world.session
        assert session is not None
        waiter = ItemWaiter(session, array, index, self._virtual.done)
        with self._world:
            waiter.watch(session)
        if waiter.ready:
            self._virtual.done.append(waiter)
        waiter.future.add_done_callback(
            lambda future: waiter.leave(session) if future.cancelled() else None
        )
        return waiter.future

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(NO_REAL_IO)

    def _write_to_self(self) -> None:
        self._virtual.woken = True
        self._world.wake_blocked()


def _end_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Stop a loop for good, without reports, because its process has ended.

    Otherwise asyncio would take GreenletExit for the result of the coroutine that it unwinds,
    and run the next one. The greenlet that runs the loop must call this. It ignores None and
    loops that are not asyncio's.
    """
    if not isinstance(loop, asyncio.BaseEventLoop):
        return
    own: Any = loop
    loop.set_exception_handler(lambda loop, context: None)
    own._run_once = partial(_exit_loop, loop)
    _close_unstarted(loop)
    for handle in own._ready:  # or the current iteration would still run them
        handle.cancel()


def _exit_loop(loop: asyncio.BaseEventLoop) -> NoReturn:
    _close_unstarted(loop)  # `asyncio.run` makes further coroutines at its end
    raise GreenletExit


def _close_unstarted(loop: asyncio.BaseEventLoop) -> None:
    """Close coroutines that have not started; else Python warns that they were never awaited."""
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        if inspect.iscoroutine(coroutine) and (
            inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        ):
            coroutine.close()
