"""Virtual time under a session: programs run in greenlets.

The driver's program runs in the main greenlet. When it waits, the simulation
runs until what it waits for has come. A worker's program runs in a greenlet of
its own; when it waits, or uses time, it switches back to the simulation, which
switches to it again when the event is due.

API calls and task overheads take CPU time too. They run up a *debt*, which is
paid (time passes, on a core of the host) before the program's messages leave
or it waits: a loop of a thousand submissions takes its thousand times in a few
events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from runtime.api.exceptions import RaySystemError
from runtime.control.client import Client
from runtime.control.executor import Executor
from simulator import values
from simulator.process import SimProcess
from simulator.store import SimStore

if TYPE_CHECKING:
    from runtime.backend.session import Session
    from simulator.cluster import SimCluster

STALL_S = 3600.0
"""Virtual time without a sign of progress after which waiting is given up."""


class ProgramGreenlet(greenlet):
    """A greenlet that knows whose program it runs."""

    session: Session


class SimWorld:
    """`backend.World` for a simulated driver or worker."""

    name = "sim"

    def __init__(
        self,
        cluster: SimCluster,
        process: SimProcess,
        client: Client,
        executor: Executor | None,
        store: SimStore,
    ) -> None:
        self.cluster = cluster
        self.process = process
        self.client = client
        self.executor = executor
        self.store = store
        self._depth = 0
        self._sleeping: tuple[Any, Callable[[], bool]] | None = None
        process.after_turn = self._after_turn

    # -- turns -----------------------------------------------------------------

    def __enter__(self) -> SimWorld:
        self._depth += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self.process.dirty:
            self.settle()
            self.process.flush_calls()

    def charge(self, what: str, count: int) -> None:
        profile = self.cluster.profile
        if what == "run":
            self.process.debt_s += profile.range_s + profile.task_s * count
            self.settle()
        else:
            self.process.debt_s += profile.call_s.get(what, 0.0) * count

    def settle(self) -> None:
        """Let the time pass that the program has used so far."""
        while self.process.debt_s > 0:
            # While it passes, the debt is not to be counted twice.
            debt_s, self.process.debt_s = self.process.debt_s, 0.0
            self.process.busy_s += debt_s
            self._pass(lambda done, d=debt_s: self.process.host.run(d, done, self.process))

    # -- waiting ---------------------------------------------------------------

    def block(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        self.settle()
        if ready():
            return True
        expired = False
        if timeout_s is not None:

            def expire(_: Any) -> None:
                nonlocal expired
                expired = True
                self._after_turn()

            self.cluster.env.timeout(timeout_s).callbacks.append(expire)
        self._wait(lambda: expired or ready(), timeout_s is None)
        return ready()

    def _pass(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """Wait until what `begin` has started calls back."""
        over = False

        def done() -> None:
            nonlocal over
            over = True
            self._after_turn()

        self.cluster.working += 1
        begin(done)
        try:
            if not over:
                self._wait(lambda: over, False)
        finally:
            self.cluster.working -= 1

    def _wait(self, ready: Callable[[], bool], watch: bool) -> None:
        current = getcurrent()
        if current is self.cluster.hub:
            self.cluster.run_until(ready, watch)
            return
        outer, self._sleeping = self._sleeping, (current, ready)
        while not ready():
            self.cluster.hub.switch()
            if self.cluster.closed:
                raise RaySystemError("the cluster was shut down")
        self._sleeping = outer

    def _after_turn(self) -> None:
        """Go on with the program if what it waits for is there."""
        if self._sleeping is not None and self._sleeping[1]():
            self._sleeping[0].switch()

    # -- time ------------------------------------------------------------------

    def now(self) -> float:
        return self.cluster.env.now + self.process.debt_s

    def sleep(self, seconds: float) -> None:
        self.settle()
        env = self.cluster.env
        self._pass(lambda done: env.timeout(seconds).callbacks.append(lambda _: done()))
        self._look_up()

    def compute(self, seconds: float) -> None:
        self.process.debt_s += seconds
        self.settle()
        self._look_up()

    def _look_up(self) -> None:
        """Time has passed within an element: report it before the next one."""
        if self.executor is not None:
            self.executor.alerts.append("time")

    def due(self) -> Callable[[], bool]:
        assert self.executor is not None
        return self.executor.alerts.__len__  # type: ignore[return-value]

    # -- values ----------------------------------------------------------------

    def blob(self, nbytes: int) -> values.Blob:
        return values.Blob(nbytes)

    def serialize(self, value: Any) -> values.SimSerialized:
        return values.serialize(value)

    def deserialize(self, payload: bytes) -> Any:
        return values.deserialize(payload)

    def dumps_function(self, function: Callable[..., Any]) -> bytes:
        return values.dumps_function(function)

    def loads_function(self, blob: bytes) -> Callable[..., Any]:
        return values.loads_function(blob)

    def write(self, oid: bytes, offset: int, value: Any) -> None:
        self.process.debt_s += value.nbytes / self.cluster.profile.memory_bandwidth
        self.settle()
        self.store.values[offset] = value.to_bytes()

    def read(self, oid: bytes, offset: int, size: int, released: Callable[[], None]) -> Any:
        # Real readers share memory for as long as they look at it; here they
        # get a copy, and the pin is given back at once.
        value = values.deserialize(self.store.values[offset])
        released()
        return value

    def close(self) -> None:
        """The cluster ends with its driver."""
