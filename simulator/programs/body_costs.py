"""What the bodies of programs cost in virtual time: what they declare, or what they take here.

A body is what a task, a call or a driver does between its API calls. What the API calls cost is in
the profile.

declared   nothing, but for `raytwin.compute`, `raytwin.sleep` and, where the clock is virtual,
           `time.sleep` and its like: one seed is one execution
measured   besides these the CPU time of the simulation's thread in the body, times the profile's
           `body_scale`: no two runs are quite the same
recorded   what they took when `raytwin record` ran the program: see `recording`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from time import thread_time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from greenlet import getcurrent

from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.session.recording import Recording
from raytwin.runtime.session.watched_calls import BLOCKING
from raytwin.runtime.session.world import BodyWatcher

if TYPE_CHECKING:
    from raytwin.simulator.programs.virtual_world import SimWorld


Parts = list[tuple[float, float]]
"""[CPU time, time waited] between a body's waits, in seconds."""


class BodyCost(Enum):
    """How the cost of a body is known."""

    DECLARED = "declared"
    MEASURED = "measured"
    RECORDED = "recorded"


class DeclaredCosts:
    """Bodies cost what they declare."""

    cost = BodyCost.DECLARED

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        return None


class MeasuredCosts:
    """Bodies cost the CPU time that they take here, times `scale`."""

    cost = BodyCost.MEASURED

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.measured_s = 0.0
        """CPU time of all bodies so far, as it was here."""

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        return _Stopwatch(self, world)


class _Stopwatch:
    """Charges one program the CPU time that its own code takes; see `BodyWatcher`.

    Whenever the program waits its own code does not run, so one thread's clock serves all of its
    greenlets.
    """

    def __init__(self, costs: MeasuredCosts, world: SimWorld) -> None:
        self._costs = costs
        self._world = world
        self._since_s: float | None = None
        """The thread's CPU time when own code began or went on; None while it does not run."""

    def opened(self, session: Any) -> None:
        """A stopwatch needs no session."""

    def begin(self) -> None:
        self._since_s = thread_time()

    def end(self) -> None:
        self.leave("")
        self._world.pay()

    yielded = end

    def leave(self, call: str) -> bool:
        since_s, self._since_s = self._since_s, None
        if since_s is None:
            return False
        used_s = thread_time() - since_s
        self._costs.measured_s += used_s
        self._world.process.debt_s += used_s * self._costs.scale
        self._world.count_body(used_s * self._costs.scale)
        return True

    def waited(self, waitables: Sequence[Any]) -> None:
        """Waiting costs nothing by itself."""

    def back(self) -> None:
        self._since_s = thread_time()

    def reported(
        self, spec: TaskSpec, start: int, count: int, nbytes: int, began_s: float, ended_s: float
    ) -> None:
        """What the report costs is in the profile."""

    def stored(self, array: bytes, nbytes: int) -> None:
        """What a put costs is in the profile."""


class RecordedCosts:
    """Bodies cost what a recording says: their CPU time, times `scale`, and what they waited.

    A body has the ID that it had when it was recorded, if the program does the same again. A
    program that submits more on a larger cluster, such as an actor for each CPU, shifts the IDs of
    what it submits afterwards: a body counts as the recorded one if its function is the same, too.
    Any other costs the mean of its function's bodies, one of a function that is not in the
    recording nothing; the counts say how many there were of each.
    """

    cost = BodyCost.RECORDED

    def __init__(self, recording: Recording, scale: float) -> None:
        self.scale = scale
        self.root = bytes.fromhex(recording.driver.id)
        """The ID of the driver, from which those of all tasks follow."""
        self.known = self.by_function = self.unknown = 0
        """How many bodies were found by their ID, by their function alone, or not at all."""
        self._own: dict[tuple[str, str], Parts] = {
            (body.id, body.name): body.own for body in recording.bodies
        }
        self._driver = recording.driver.own
        sums: dict[str, list[float]] = {}
        for body in recording.bodies:
            total = sums.setdefault(body.name, [0.0, 0.0, 0.0])
            total[0] += sum(cpu_s for cpu_s, _ in body.own)
            total[1] += sum(waited_s for _, waited_s in body.own)
            total[2] += 1
        self._mean: dict[str, Parts] = {
            name: [(cpu_s / count, waited_s / count)]
            for name, (cpu_s, waited_s, count) in sums.items()
        }

    def watcher(self, world: SimWorld) -> BodyWatcher | None:
        return _Replayed(self, world)

    def driver(self) -> Parts:
        """Return what the driver did between its waits."""
        return self._driver

    def parts_of(self, task: bytes, name: str) -> Parts:
        """Return what a body did between its waits."""
        own = self._own.get((task.hex(), name))
        if own is not None:
            self.known += 1
            return own
        mean = self._mean.get(name)
        if mean is not None:
            self.by_function += 1
            return mean
        self.unknown += 1
        return []


class _Part:
    """What is left of the recorded times of a body that runs."""

    __slots__ = ("cpu_s", "left", "runs", "since_s", "waited_s", "what")

    def __init__(self, parts: Parts) -> None:
        self.left = deque(parts)
        self.cpu_s, self.waited_s = self.left.popleft() if self.left else (0.0, 0.0)
        self.runs = True
        self.what = ""
        """The API call that the body is in, and since when."""
        self.since_s = 0.0


class _Replayed:
    """Charges one program's bodies what they took when they were recorded; see `BodyWatcher`.

    What was between two waits passes before the second. A body that sleeps, or declares what it
    computes, uses up what was recorded for that part.
    """

    def __init__(self, costs: RecordedCosts, world: SimWorld) -> None:
        self._costs = costs
        self._world = world
        self._session: Any = None
        self._bodies: dict[bytes | None, _Part] = {}
        """Those that are not reported, by task; None for a driver."""
        self._of_greenlet: WeakKeyDictionary[Any, _Part] = WeakKeyDictionary()

    def opened(self, session: Any) -> None:
        self._session = session

    def begin(self) -> None:
        running = self._session.running_task()
        task = None if running is None else running[1]
        body = self._bodies.get(task)
        if body is not None:
            body.runs = True
        elif task is not None:
            body = _Part(self._costs.parts_of(task, running[0].name))
        elif self._world.executor is None:
            body = _Part(self._costs.driver())
        else:
            return  # the event loop of an actor
        self._bodies[task] = self._of_greenlet[getcurrent()] = body

    def end(self) -> None:
        body = self._of_greenlet.get(getcurrent())
        if body is None:
            return
        body.runs = False
        while True:
            self._pay(body)
            if not body.left:
                return
            body.cpu_s, body.waited_s = body.left.popleft()

    def yielded(self) -> None:
        body = self._of_greenlet[getcurrent()]
        body.runs = False
        self._end_part(body)

    def leave(self, call: str) -> bool:
        body = self._of_greenlet.get(getcurrent())
        if body is None or not body.runs:
            return False
        body.runs = False
        body.what, body.since_s = call, self._world.now()
        if call in BLOCKING:
            self._end_part(body)
        return True

    def waited(self, waitables: Sequence[Any]) -> None:
        """The program itself waits again."""

    def back(self) -> None:
        body = self._of_greenlet[getcurrent()]
        body.runs = True
        passed_s = self._world.now() - body.since_s
        if body.what == "sleep":
            body.waited_s = max(0.0, body.waited_s - passed_s)
        elif body.what == "compute":
            body.cpu_s = max(0.0, body.cpu_s - passed_s)

    def reported(
        self, spec: TaskSpec, start: int, count: int, nbytes: int, began_s: float, ended_s: float
    ) -> None:
        for index in range(start, start + count):
            self._bodies.pop(task_id(spec.array, index), None)

    def stored(self, array: bytes, nbytes: int) -> None:
        """What a put costs is in the profile."""

    def _end_part(self, body: _Part) -> None:
        self._pay(body)
        if body.left:
            body.cpu_s, body.waited_s = body.left.popleft()

    def _pay(self, body: _Part) -> None:
        """Let pass what is left of a part."""
        cpu_s, body.cpu_s = body.cpu_s, 0.0
        waited_s, body.waited_s = body.waited_s, 0.0
        self._world.process.debt_s += cpu_s * self._costs.scale
        self._world.count_body(cpu_s * self._costs.scale)
        self._world.pay()
        if waited_s:
            self._world.sleep(waited_s)
