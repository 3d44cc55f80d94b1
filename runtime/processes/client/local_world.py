"""The real world under a session: threads, the clock and shared memory.

One lock serializes turns of the client (and, in a worker, of the executor).
A thread that waits runs the event loop itself: in `block` it polls the socket and
handles the frames, so a round trip costs no thread switch. While no thread waits,
a background thread polls, so that buffered messages leave and the client answers requests
during long computations. It pauses while a thread waits, and until no wait has begun for
`ASIDE_S`, because the program is then likely to wait again soon.

At any moment at most one thread is the *poller*. The poller, the waiting threads and
the poller's deadline change under the lock only:

* a thread that finds another one polling sleeps. The poller, after handling frames, checks
  the condition `ready` of every sleeping thread and wakes those whose condition holds: a
  thread switch costs a hundred times as much as a check;
* a poller that leaves the loop wakes a sleeping thread, which polls, or leaves and wakes
  the next. So the loop has a poller while any thread waits outside of a signal's handler;
* a turn that sets a timer earlier than the poller's deadline wakes the poller.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.messages import Frame
from raytwin.runtime.control.worker.executor import DUE_S, Executor
from raytwin.runtime.processes.client.direct_connections import DirectConnections
from raytwin.runtime.processes.client.lease_environment import LeaseEnvironment
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.serialization import serialization
from raytwin.runtime.serialization.real_blob import Blob
from raytwin.runtime.session.world import LOOP_STOPPED, BodyWatcher, Environment, cluster_gone
from raytwin.runtime.store.arena import Arena
from raytwin.runtime.store.arena_writer import ArenaWriter, Copier

if TYPE_CHECKING:
    import asyncio

ASIDE_S = 0.005
CHECK_S = 0.02
"""The interval at which a worker's background thread checks the running range for a due report.
A driver's background thread counts dropped references after so long without an API call."""
RECORD = "RAYTWIN_RECORD"
"""The environment variable with the directory in which processes record what they run."""
_NEVER_S = float("inf")


def recorder() -> BodyWatcher | None:
    """Return the watcher of a driver or worker that is recorded; None if nobody records."""
    directory = os.environ.get(RECORD)
    if not directory:
        return None
    # Imported here: few processes record.
    from raytwin.runtime.processes.client.recorder import Recorder

    return Recorder(directory)


class _Sleeper(NamedTuple):
    """A thread that waits while another one polls."""

    ready: Callable[[], bool]
    woken: threading.Condition
    thread: threading.Thread


class LocalWorld:
    """`backend.World` for a driver or worker process."""

    name = "local"

    def __init__(
        self,
        process: ComponentProcess,
        client: Client,
        executor: Executor | None,
        arena: Arena,
        on_lost: Callable[[str], None],
    ) -> None:
        self.process = process
        self.client = client
        self.executor = executor
        self.arena = arena
        self.lost = ""
        self._copier = Copier(client.config.store_copy_threads)
        self._writer = ArenaWriter(arena, self._copier)
        self._on_lost = on_lost
        self._lock = threading.RLock()
        self._depth = 0
        self._sleeping: list[_Sleeper] = []
        """Threads that wait while another one polls, in the order in which they began."""
        self._nobody_waits = threading.Condition(self._lock)
        self._waiting = 0
        self._waits = 0
        """How many waits have begun so far."""
        self._background_waits = False
        """Whether the background thread sleeps until no thread waits."""
        self._poller = 0
        """The poller's thread number; 0 for none."""
        self._polls_until_s = float("inf")
        """The poller's deadline: it returns then even without an event."""
        self._timers_seen = 0
        """How many timers had been set when the poller's deadline was last checked."""
        self.has_drops: Callable[[], bool] | None = None
        """Whether dropped references wait to be counted."""
        self.tidy: Callable[[], None] | None = None
        """Counts dropped references, in a turn, while the program makes no calls."""
        self._tidy_s = float("inf")
        """When the background thread counts dropped references, if there are any."""
        self.workers: DirectConnections | None = None
        """The driver's direct connections to workers, if it has started the cluster."""
        self._closed = False
        self._released = False
        self.environment = Environment()
        self.watcher: BodyWatcher | None = None
        self._lease_environment = LeaseEnvironment()
        self._task_thread = threading.get_ident()
        self._call_threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run_background, name="raytwin-io", daemon=True)

    def start(self) -> None:
        """Start the background thread."""
        self._thread.start()

    # -- turns -----------------------------------------------------------------

    def __enter__(self) -> LocalWorld:
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._depth == 1 and not self._closed:
                if self.process.turns.dirty:
                    self.process.turns.run_rounds()
                reactor = self.process.reactor
                if self._poller and reactor.timers_set != self._timers_seen:
                    self._timers_seen = reactor.timers_set
                    self._wake_for_timer()
        finally:
            self._depth -= 1
            self._lock.release()

    def _wake_for_timer(self) -> None:
        """Wake the poller if this turn has set a timer that is due before the poller's deadline."""
        due_s = self.process.reactor.next_due_s()
        if due_s is not None and due_s < self._polls_until_s:
            self._polls_until_s = due_s
            self.process.reactor.wake()

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        self.process.receive(frame)

    def on_close(self, connection: Connection, reason: str) -> None:
        if not self._closed:
            self.lost = reason or "connection lost"
            self._on_lost(self.lost)

    # -- waiting ---------------------------------------------------------------

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        deadline_s = _NEVER_S if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._waiting += 1
            self._waits += 1
            if self._poller and self._poller == self._thread.ident:
                self.process.reactor.wake()
        try:
            return self._wait(ready, deadline_s)
        finally:
            with self._lock:
                self._waiting -= 1
                if self._sleeping:
                    self._wake_successor()
                if not self._waiting:
                    if self._background_waits:
                        self._nobody_waits.notify()
                    if self._closed:
                        self._release_if_unused()

    def _wait(self, ready: Callable[[], bool], deadline_s: float) -> bool:
        me = threading.get_ident()
        checked = False
        while True:
            polling = False
            try:
                with self._lock:
                    if ready():
                        return True
                    if self._closed or self.lost:
                        raise cluster_gone(self.lost or "shut down")
                    left_s = deadline_s
                    if deadline_s != _NEVER_S:
                        left_s -= time.monotonic()
                        if left_s <= 0 and checked:
                            return False
                    checked = True
                    # A signal handler that waits may interrupt its thread's own poll.
                    before = self._poller
                    if before not in (0, me):
                        self._sleep(ready, None if left_s == _NEVER_S else max(0.0, left_s))
                        continue
                    polling = True
                    beside = me != self._task_thread
                    until_s = min(deadline_s, self._next_check_s()) if beside else deadline_s
                    timeout_s = self._begin_poll(me, until_s)
                events = self.process.reactor.wait(timeout_s)
                with self._lock:
                    self._handle(events)
                    if beside:
                        self._check_task()
            finally:
                if polling:
                    with self._lock:
                        self._poller = before
                        if self._sleeping:
                            self._wake_ready()

    def _sleep(self, ready: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait while another thread polls, until woken or timed out."""
        thread = threading.current_thread()
        sleeper = _Sleeper(ready, threading.Condition(self._lock), thread)
        self._sleeping.append(sleeper)
        try:
            sleeper.woken.wait(timeout_s)
        finally:
            self._sleeping.remove(sleeper)

    def _wake_ready(self) -> None:
        """Wake the threads whose wait is over, or all if the cluster is gone."""
        gone = self._closed or self.lost
        for sleeper in self._sleeping:
            try:
                over = gone or sleeper.ready()
            except Exception:
                over = True  # the thread checks again, and raises the error itself
            if over:
                sleeper.woken.notify()

    def _wake_successor(self) -> None:
        """Wake a sleeping thread to poll, if no thread polls."""
        if self._poller:
            return
        for sleeper in self._sleeping:
            sleeper.woken.notify()
            # A signal's handler may keep the main thread asleep: wake another thread too.
            if sleeper.thread is not threading.main_thread():
                return

    def _begin_poll(self, thread: int, deadline_s: float) -> float | None:
        """Make a thread the poller; return its timeout in seconds, None for none."""
        self._poller = thread
        due_s = self.process.reactor.next_due_s()
        until_s = deadline_s if due_s is None or deadline_s < due_s else due_s
        self._polls_until_s = until_s
        return None if until_s == _NEVER_S else max(0.0, until_s - time.monotonic())

    def _handle(self, events: list[tuple[int, int]]) -> None:
        if self._closed:
            return
        self._depth += 1
        try:
            self.process.take(events)
        finally:
            self._depth -= 1

    def _run_background(self) -> None:
        me = threading.get_ident()
        while True:
            with self._lock:
                if self._closed:
                    return
                free = not self._waiting and not self._poller
                if free:
                    timeout_s = self._begin_poll(me, self._next_check_s())
                    if self._drops_left():
                        # Checked as the poller, because later drops wake the poller.
                        timeout_s = self._begin_poll(me, self._tidy_s)
            if not free:
                self._step_aside()
                continue
            events = self.process.reactor.wait(timeout_s)
            with self._lock:
                self._poller = 0
                if self._waiting:
                    # The waiting thread polls and finds the same events.
                    self._wake_successor()
                else:
                    self._handle(events)
                    self._check_task()
                    if self.tidy is not None and time.monotonic() >= self._tidy_s:
                        with self:
                            self.tidy()

    def _check_task(self) -> None:
        """Report the results of the thread that runs tasks, and interrupt it if it has to be."""
        executor = self.executor
        if executor is None:
            return
        with self:
            executor.report_early()
        if executor.interrupt:
            # Repeated until the signal arrives while its handler may raise.
            signal.pthread_kill(self._task_thread, signal.SIGINT)

    def _next_check_s(self) -> float:
        """Return the time of the next check of the running range, for a poller that runs no
        tasks."""
        executor = self.executor
        if executor is None or executor.actor:
            # The worker neither reports actors' calls early nor interrupts them, and the end of a
            # call wakes a thread that waits for room.
            return float("inf")
        if not (executor.interrupt or executor.queue or executor.limit - executor.base > 1):
            return float("inf")
        return time.monotonic() + CHECK_S

    def _drops_left(self) -> bool:
        """Set the time to count dropped references, if any; return whether there are any."""
        if self.has_drops is None or not self.has_drops():
            self._tidy_s = float("inf")
            return False
        if self._tidy_s == float("inf"):
            self._tidy_s = time.monotonic() + CHECK_S
        return True

    def on_drop(self) -> None:
        """Note a dropped reference; takes no lock, since the garbage collector may call this."""
        if self._poller == self._thread.ident and self._tidy_s == float("inf"):
            self.process.reactor.wake()

    def _step_aside(self) -> None:
        """Leave the event loop to the threads that wait, until `ASIDE_S` after the last wait."""
        while True:
            waits = self._waits
            time.sleep(ASIDE_S)
            with self._lock:
                # A program that gets one value after another waits again already: polling
                # between its waits would cost a thread switch each time.
                if self._closed or self._waits == waits:
                    if self._waiting and not self._closed:
                        self._background_waits = True
                        self._nobody_waits.wait()
                        self._background_waits = False
                    return

    # -- several at a time -----------------------------------------------------

    def spawn(self, run: Callable[[], None], most: int) -> None:
        """Run a function in another thread, of at most `most` threads."""
        if self._call_threads is None:
            self._call_threads = ThreadPoolExecutor(most, "raytwin-call")
        self._call_threads.submit(run)

    unwinding: tuple[type[BaseException], ...] = ()

    def is_for_driver(self, error: BaseException) -> bool:
        return False

    def start_event_loop(
        self, failed: Callable[[BaseException], None]
    ) -> asyncio.AbstractEventLoop:
        """Return an event loop that runs in a thread of its own."""
        # Imported here: it would cost every process 3 MB, and few programs need it.
        import asyncio

        loop = asyncio.new_event_loop()

        def run() -> None:
            self._task_thread = threading.get_ident()
            try:
                loop.run_forever()
            except BaseException as error:
                failed(error)
            else:
                failed(RuntimeError(LOOP_STOPPED))

        threading.Thread(target=run, name="raytwin-asyncio", daemon=True).start()
        return loop

    def run_exit_handlers(self) -> None:
        # Including those of modules that the zygote has loaded.
        atexit._run_exitfuncs()
        gc.collect()  # the last chance of `__del__` for objects in reference cycles

    def wake_blocked(self) -> None:
        """Have all waiting threads check their conditions."""
        with self._lock:
            self._wake_ready()
            if self._poller not in (0, threading.get_ident()):
                self.process.reactor.wake()

    # -- time ------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def compute(self, seconds: float) -> None:
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            for _ in range(100):
                continue

    def collect_cycles(self) -> None:
        gc.collect()

    def overdue(self) -> Callable[[], bool]:
        clock = time.monotonic
        end_s = clock() + DUE_S
        return lambda: clock() >= end_s

    def on_task_thread(self) -> bool:
        return threading.get_ident() == self._task_thread

    def enter_lease(self, demand: str, gpus: Sequence[int]) -> None:
        self._lease_environment.enter(demand, gpus)

    def charge(self, what: str, count: int) -> None:
        """Do nothing: real calls take real time."""

    # -- values ----------------------------------------------------------------

    def blob(self, nbytes: int) -> Blob:
        return Blob(nbytes)

    sink = serialization.sink

    serialize = staticmethod(serialization.serialize)

    deserialize = staticmethod(serialization.deserialize)

    serialize_values = staticmethod(serialization.serialize_values)

    def dumps_function(self, function: Callable[..., Any]) -> bytes:
        return serialization.dumps_function(function)

    functions = None

    def identity_of(self, blob: bytes) -> bytes:
        return blob

    def loads_function(self, blob: bytes) -> Callable[..., Any]:
        return serialization.loads_function(blob)

    def write(self, oid: bytes, offset: int, value: Any) -> None:
        self._writer.write(value, offset)

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        def in_this_process() -> None:
            # A forked child inherits the value, but only its parent has the pin.
            if os.getpid() == self._pid:
                released()

        return serialization.deserialize(self.arena.readonly(offset, size), in_this_process)

    def close(self) -> None:
        """End all waits with RaySystemError, and close the descriptors.

        Values that share the arena's memory stay valid.
        """
        self._lease_environment.leave()
        with self._lock:
            self._closed = True
            self._wake_ready()
            self._nobody_waits.notify_all()
            if not self._released:
                self.process.reactor.wake()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if not self._waiting:
                self._release_if_unused()

    def _release_if_unused(self) -> None:
        """Close the descriptors once the last thread has left the event loop."""
        if self._closed and not self._released and not self._thread.is_alive():
            self._released = True
            if self.workers is not None:
                self.workers.close()
            for connection in list(self.process.routes.values()):
                connection.close("shut down")
            self.process.reactor.close()
            self._copier.close()
            self.arena.close()
