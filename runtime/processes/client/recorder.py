"""Records the bodies that a process runs, for `raytwin record`; see `recording` for the format.

The command line names a directory in the environment variable `local_world.RECORD`, which every
process of the cluster inherits. Each driver and worker appends a line to a file of its own there
when a body is reported, since workers are killed at the end: what the kernel has, SIGKILL does not
take back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.core.resources import UNIT, parse_demand
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.session.recording import Body, Driver
from raytwin.runtime.session.watched_calls import BLOCKING, SUBMITTING

SCHEDSTAT = "/proc/thread-self/schedstat"
"""A thread's CPU time, and the time that it was ready and had no core; both in nanoseconds."""
NOISE_S = 1e-4
"""A body that has waited for less has not waited."""


class _ThreadClock:
    """The clocks of one thread: its CPU time, and the time that it was on a core or waited.

    On a busy machine a thread that is ready waits for a core. That is no time of the body's own: in
    the simulation it waits for a simulated core. Where the system does not say how long that was
    (anywhere but on Linux), it counts as time that the body has waited.
    """

    def __init__(self) -> None:
        try:
            self._stat = os.open(SCHEDSTAT, os.O_RDONLY)
        except FileNotFoundError:
            self._stat = -1

    def read(self) -> tuple[float, float]:
        """Return the CPU time and the time on a core or waiting; their zeros mean nothing."""
        ready_ns = self._ready_ns()
        while True:
            now_s = time.monotonic()
            before_ns, ready_ns = ready_ns, self._ready_ns()
            # Else the thread has lost its core in between, and the two do not belong together.
            if ready_ns == before_ns:
                return time.thread_time(), now_s - ready_ns / 1e9

    def _ready_ns(self) -> int:
        return 0 if self._stat < 0 else int(os.pread(self._stat, 100, 0).split()[1])


class Line(msgspec.Struct, omit_defaults=True):
    """A line of a process's file: a body or a driver with its counts, or an object that was put."""

    body: Body | None = None
    submissions: list[int] = []
    """Of each task, call and actor that the body or driver has submitted: in which part."""
    puts: list[int] = []
    """Of each object that it has put: in which part."""
    stored: tuple[str, int] | None = None
    """An array that was put, and its bytes."""
    driver: tuple[Driver, float, float] | None = None
    """A driver, its start and its end."""


class _Running:
    """A body that has begun and is not reported."""

    __slots__ = (
        "_clock", "_on_since", "_wall_s", "began_s", "cpu_s", "ended_s", "own", "puts",
        "submissions", "waits",
    )  # fmt: skip

    def __init__(self, clock: _ThreadClock) -> None:
        self._clock = clock
        self.began_s = self.ended_s = time.monotonic()
        self.own: list[tuple[float, float]] = []
        self.cpu_s = self._wall_s = 0.0
        """Of the part that has not ended."""
        self._on_since: tuple[float, float] | None = None
        """The clock when own code began or went on; None while it does not run."""
        self.submissions: list[int] = []
        self.puts: list[int] = []
        self.waits: list[list[str]] = []
        """Of each part that has ended with a wait: for what."""

    def go_on(self) -> None:
        self._on_since = self._clock.read()

    def pause(self) -> bool:
        since, self._on_since = self._on_since, None
        if since is None:
            return False
        cpu_s, wall_s = self._clock.read()
        self.cpu_s += cpu_s - since[0]
        self._wall_s += wall_s - since[1]
        self.ended_s = time.monotonic()
        return True

    def end_part(self) -> None:
        waited_s = self._wall_s - self.cpu_s
        self.own.append((self.cpu_s, waited_s if waited_s > NOISE_S else 0.0))
        self.cpu_s = self._wall_s = 0.0


class Recorder:
    """Records one driver or worker; a `BodyWatcher`."""

    def __init__(self, directory: str) -> None:
        path = Path(directory) / f"{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._running: dict[bytes | None, _Running] = {}
        """By task, None for a driver."""
        self._of_thread = threading.local()
        self._session: Any = None

    def opened(self, session: Any) -> None:
        self._session = session

    def begin(self) -> None:
        task = self._session.task_id()
        body = self._running.get(task)
        if body is None:
            body = self._running[task] = _Running(self._clock())
        self._of_thread.body = body
        body.go_on()

    def _clock(self) -> _ThreadClock:
        """Return the calling thread's clock."""
        found: _ThreadClock | None = getattr(self._of_thread, "clock", None)
        if found is None:
            found = self._of_thread.clock = _ThreadClock()
        return found

    def end(self) -> None:
        self._of_thread.body.pause()

    def yielded(self) -> None:
        body = self._of_thread.body
        body.pause()
        body.end_part()
        body.waits.append([])

    def leave(self, call: str) -> bool:
        body: _Running | None = getattr(self._of_thread, "body", None)
        if body is None or not body.pause():
            return False
        if call in BLOCKING:
            body.end_part()
            body.waits.append([])
        elif call in SUBMITTING:
            body.submissions.append(len(body.own))
        elif call == "put":
            body.puts.append(len(body.own))
        elif call == "shutdown" and None in self._running:
            self._end_driver()
        return True

    def waited(self, waitables: Sequence[Any]) -> None:
        refs = (each if isinstance(each, ObjectRef) else each.completed() for each in waitables)
        self._of_thread.body.waits[-1] = [ref.binary().hex() for ref in refs]

    def back(self) -> None:
        self._of_thread.body.go_on()

    def reported(
        self, spec: TaskSpec, start: int, count: int, nbytes: int, began_s: float, ended_s: float
    ) -> None:
        for index in range(start, start + count):
            task = task_id(spec.array, index)
            body = self._running.pop(task, None)
            if body is None:  # a coroutine, or it has failed before it began
                line = Line(_body(spec, task, nbytes // count, began_s, ended_s, []))
            else:
                body.end_part()
                found = _body(spec, task, nbytes // count, body.began_s, body.ended_s, body.own)
                found.waits = body.waits
                line = Line(found, body.submissions, body.puts)
            assert line.body is not None
            line.body.node = self._session.node
            self._write(line)

    def stored(self, array: bytes, nbytes: int) -> None:
        self._write(Line(stored=(array.hex(), nbytes)))

    def _end_driver(self) -> None:
        body = self._running.pop(None)
        body.end_part()
        # A driver that waits in an event loop waits for others: only its CPU time is its own.
        own = [(cpu_s, 0.0) for cpu_s, _ in body.own]
        root = self._session.client.submitter.parent.hex()
        self._write(
            Line(
                submissions=body.submissions,
                puts=body.puts,
                driver=(Driver(root, own, body.waits), body.began_s, body.ended_s),
            )
        )

    def _write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def _body(
    spec: TaskSpec,
    task: bytes,
    nbytes: int,
    began_s: float,
    ended_s: float,
    own: list[tuple[float, float]],
) -> Body:
    extra = spec.extra
    creates = extra is not None and extra.actor is not None
    actor = extra.call.hex() if extra is not None and extra.call else None
    items = 1 if spec.first < 0 else spec.start + spec.count - spec.first
    return Body(
        id=task.hex(),
        name=spec.name,
        kind="actor" if creates else "call" if actor else "task",
        parent=None,
        demand={name: units / UNIT for name, units in parse_demand(spec.demand)},
        inputs=[oid.hex() for oid in spec.deps],
        args_bytes=len(spec.args) // max(1, items),
        result_bytes=nbytes,
        start_s=began_s,
        end_s=ended_s,
        node=0,
        own=own,
        actor=actor,
    )
