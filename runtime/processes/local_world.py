"""The real world under a session: threads, the clock and shared memory.

One lock serializes turns of the client (and, in a worker, of the executor).
Whoever waits runs the loop himself: a thread in `block` polls the socket and
handles what comes, so a round trip costs no thread switch. While nobody waits,
a background thread does the same, so that buffered messages leave and requests
are answered during long computations. It steps aside while a thread waits, and
stays aside for `ASIDE_S` longer, because the next wait is likely near.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from runtime.api.exceptions import RaySystemError
from runtime.control.client import Client
from runtime.control.executor import Executor
from runtime.control.messages import Frame
from runtime.processes.connection import Connection
from runtime.processes.process import Process
from runtime.store import serialization
from runtime.store.arena import Arena
from runtime.store.blob import Blob

ASIDE_S = 0.005
DUE_S = 0.005
"""How long a running range may go without a report."""


class LocalWorld:
    """`backend.World` for a driver or worker process."""

    name = "local"

    def __init__(
        self,
        process: Process,
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
        self._on_lost = on_lost
        self._lock = threading.RLock()
        self._depth = 0
        self._polling = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._in_background = False
        self._aside = threading.Event()
        self._far_aside = False
        self._next_due_s: float | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._run_background, name="raytwin-io", daemon=True
        )

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
            if self._depth == 1:
                if self.process.dirty:
                    self.process.run_turns()
                if self._in_background:
                    self._wake_for_timer()
        finally:
            self._depth -= 1
            self._lock.release()

    def _wake_for_timer(self) -> None:
        """The background thread polls without knowing of a timer set since."""
        due_s = self.process.reactor.next_due_s()
        if due_s is not None and (self._next_due_s is None or due_s < self._next_due_s):
            self._next_due_s = due_s
            self.process.reactor.wake()

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        self.process.receive(connection, frame)

    def on_close(self, connection: Connection, reason: str) -> None:
        if not self._closed:
            self.lost = reason or "connection lost"
            self._on_lost(self.lost)

    # -- waiting ---------------------------------------------------------------

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._waiting += 1
            kick = self._in_background
        if kick:
            self.process.reactor.wake()
        try:
            return self._wait(ready, deadline_s)
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting:
                    self._changed.notify_all()
                elif self._far_aside:
                    self._aside.set()

    def _wait(self, ready: Callable[[], bool], deadline_s: float | None) -> bool:
        while True:
            with self._lock:
                if ready():
                    return True
                if self._closed or self.lost:
                    raise RaySystemError(f"the cluster is gone: {self.lost or 'shut down'}")
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            if self._polling.acquire(blocking=False):
                try:
                    events = self.process.reactor.poll(left_s)
                    self._handle(events)
                finally:
                    self._polling.release()
            else:
                with self._changed:
                    if not ready():
                        # Another thread polls and tells; or the background
                        # thread is about to leave the loop to us.
                        self._changed.wait(0.001 if left_s is None else min(0.001, left_s))

    def _handle(self, events: list[tuple[int, int]]) -> None:
        with self._lock:
            if self._closed:
                return
            self._depth += 1
            try:
                self.process.reactor.dispatch(events)
                self.process.run_turns()
            finally:
                self._depth -= 1
            if self._waiting > 1:
                self._changed.notify_all()

    def _run_background(self) -> None:
        while not self._closed:
            if self._waiting:
                self._step_aside()
                continue
            with self._polling:
                with self._lock:
                    if self._waiting or self._closed:
                        continue
                    self._in_background = True
                    self._next_due_s = self.process.reactor.next_due_s()
                try:
                    events = self.process.reactor.poll(None)
                finally:
                    self._in_background = False
                if self._closed:
                    return
                if not self._waiting:
                    self._handle(events)
                # Else: the waiting thread polls and finds the same events.

    def _step_aside(self) -> None:
        """Leave the loop to the threads that wait."""
        time.sleep(ASIDE_S)
        with self._lock:
            if not self._waiting or self._closed:
                return
            self._aside.clear()
            self._far_aside = True
        self._aside.wait()
        self._far_aside = False

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

    def due(self) -> Callable[[], bool]:
        assert self.executor is not None
        alerts = self.executor.alerts
        clock = time.monotonic
        end_s = clock() + DUE_S
        return lambda: bool(alerts) or clock() >= end_s

    def charge(self, what: str, count: int) -> None:
        """Real calls take real time."""

    # -- values ----------------------------------------------------------------

    def blob(self, nbytes: int) -> Blob:
        return Blob(nbytes)

    def serialize(self, value: Any) -> serialization.Serialized:
        return serialization.serialize(value)

    def deserialize(self, payload: bytes) -> Any:
        return serialization.deserialize(payload)

    def dumps_function(self, function: Callable[..., Any]) -> bytes:
        return serialization.dumps_function(function)

    def loads_function(self, blob: bytes) -> Callable[..., Any]:
        return serialization.loads_function(blob)

    def write(self, oid: bytes, offset: int, value: Any) -> None:
        value.write_into(self.arena.writable(offset, value.nbytes))

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        def in_this_process() -> None:
            # A forked child has inherited the value, but not the pin.
            if os.getpid() == self._pid:
                released()

        return serialization.deserialize(self.arena.readonly(offset, size), in_this_process)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._aside.set()
        self.process.reactor.wake()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()
        self.arena.close()


