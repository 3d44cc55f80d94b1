"""Carries a plan out on a running cluster, in virtual and in real time.

If a step cannot be carried out when it is due (its node was removed), the injector records the
error and goes on with the plan: so a random plan need not know the effects of its earlier steps.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.proxied_links import SPARE_NODES, proxied
from raytwin.chaos.faults.targets import Link
from raytwin.runtime.api.backend import on_connect
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.containers.default_disk import limited_disks

LOOK_S = 0.005
"""Seconds between two queries of the node table, while a step waits for a node."""


@dataclass(frozen=True)
class Injection:
    """A step that the injector has carried out, or that failed with an error.

    Of a step on several targets each part is an injection of its own.
    """

    at_s: float
    """Seconds since the plan was applied."""
    clock_s: float
    """The same moment on the cluster's clock."""
    step: Step
    error: str = ""
    planned: Step | None = None
    """The step of the plan, if `step` is one of its parts."""


@dataclass(frozen=True)
class _Due:
    """A planned step that is to begin, or a part of one."""

    step: Step
    planned: Step | None = None
    """Of a part: the step of the plan."""
    last: bool = False
    """Whether the planned step ends with this part."""


class Injector:
    """The schedule of a plan: its future steps, and the outcomes of earlier ones.

    A world calls `run_due` when a step may be due, and `on_node` when a node has joined or died.
    """

    def __init__(self, cluster: Any, plan: Plan, clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self.clock = clock
        """The cluster's clock: an operation may take its time on it."""
        self.started_s = clock()
        self.injections: list[Injection] = []
        self._due: list[tuple[float, int, _Due]] = []
        self._waiting = [step for step in plan.steps if step.at_s is None]
        self.broken: dict[Link, None] = {}
        """The links that steps have changed, for a step that heals them all."""
        self._count = 0
        for step in plan.steps:
            if step.at_s is not None:
                self._push(self.started_s + step.at_s, _Due(step))

    def next_due_s(self) -> float | None:
        """Return the time of the next step, None if no step has a time yet."""
        return self._due[0][0] if self._due else None

    @property
    def finished(self) -> bool:
        """Whether no step is left that is due, or will be after an event."""
        return not self._due and not self._waiting

    def on_node(self, node: int, alive: bool) -> None:
        """Schedule the steps that wait for a node which has joined or was declared dead."""
        self._on_event(f"{'node_added' if alive else 'node_died'}:{node}")

    def run_due(self) -> None:
        """Carry out every step that is due."""
        while self._due and self._due[0][0] <= self.clock():
            due_s, _, due = heapq.heappop(self._due)
            if due.planned is None:
                self._begin(due.step, due_s)
            else:
                self._carry_out(due, due.planned)

    def _begin(self, step: Step, due_s: float) -> None:
        """Schedule the parts of a planned step; most have one, due at once."""
        parts = step.target.expand(step.action, step.parameters, tuple(self.broken))
        if not parts:  # no link is broken that it could heal
            now_s = self.clock()
            self.injections.append(Injection(now_s - self.started_s, now_s, step))
            self._on_event(step.name)
        last = max(range(len(parts)), key=lambda n: (parts[n][0], n), default=0)
        for number, (delay_s, action, target, parameters) in enumerate(parts):
            part = step
            if (action, target) != (step.action, step.target):
                part = replace(step, action=action, target=target, parameters=parameters)
            self._push(due_s + delay_s, _Due(part, step, number == last))

    def _carry_out(self, due: _Due, planned: Step) -> None:
        step = due.step
        error = ""
        now_s = self.clock()
        try:
            step.target.apply(self.cluster, step.action, step.parameters)
        except (ValueError, RuntimeError, RaySystemError) as failed:
            error = str(failed)
        whole = planned if planned is not step else None
        self.injections.append(Injection(now_s - self.started_s, now_s, step, error, whole))
        if isinstance(step.target, Link) and not error:
            if step.action == "heal":
                self.broken.pop(step.target, None)
            else:
                self.broken[step.target] = None
        if due.last:
            self._on_event(planned.name)

    def _on_event(self, event: str) -> None:
        now_s = self.clock()
        for step in [step for step in self._waiting if step.after == event]:
            self._waiting.remove(step)
            self._push(now_s + step.delay_s, _Due(step))

    def _push(self, due_s: float, due: _Due) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, due))


class SimInjector(Injector):
    """Carries a plan out on a simulated cluster, where steps are events of the simulation."""

    def __init__(self, cluster: Any, plan: Plan) -> None:
        super().__init__(cluster, plan, lambda: float(cluster.env.now))
        self._stopped = False
        self._scheduled = 0
        cluster.on_membership.append(self._on_node)
        self._schedule()

    def stop(self) -> None:
        """Carry out no further step."""
        if not self._stopped:
            self._stopped = True
            self.cluster.working -= self._scheduled
            self.cluster.on_membership.remove(self._on_node)

    def _on_node(self, node: int, alive: bool) -> None:
        self.on_node(node, alive)
        self._schedule()

    def _schedule(self) -> None:
        """Schedule an event for the next step; meanwhile the cluster does not count as stuck."""
        due_s = self.next_due_s()
        if due_s is None or self._stopped:
            return
        self._scheduled += 1
        self.cluster.working += 1
        event = self.cluster.env.timeout(max(0.0, due_s - self.cluster.env.now))
        event.callbacks.append(self._on_due)

    def _on_due(self, _: Any) -> None:
        if self._stopped:
            return
        self._scheduled -= 1
        self.cluster.working -= 1
        self.run_due()
        self._schedule()


class LocalInjector(Injector):
    """Carries a plan out on a cluster of processes, in a thread of its own.

    `nodes` returns the rows of the node table, for steps that wait for a node; `clock` is that of
    the cluster's `now`.
    """

    def __init__(
        self,
        cluster: Any,
        plan: Plan,
        nodes: Callable[[], list[dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cluster, plan, clock)
        self._nodes = nodes
        self._alive = {row["node"]: row["alive"] for row in nodes()}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytwin-chaos", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Carry out no further step; return when no step runs any more."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if self._waiting and not self._poll_nodes():
                return
            self.run_due()
            due_s = self.next_due_s()
            if due_s is None and not self._waiting:
                return
            left_s = LOOK_S if due_s is None else max(0.0, due_s - self.clock())
            self._stopped.wait(min(LOOK_S, left_s) if self._waiting else left_s)

    def _poll_nodes(self) -> bool:
        """Report nodes that joined or died since the last poll; False if the cluster has ended."""
        try:
            rows = self._nodes()
        except RaySystemError:
            return False
        for row in rows:
            node, alive = row["node"], row["alive"]
            if alive != self._alive.get(node, False):
                self._alive[node] = alive
                self.on_node(node, alive)
        return True


def attach(session: Any, plan: Plan) -> SimInjector | LocalInjector:
    """Start to apply a plan to a session's cluster; return the injector.

    Raises PlanError for a plan that the session's backend cannot carry out.
    """
    plan.check_backend(session.name)
    if session.name == "sim":
        return SimInjector(session.cluster, plan)
    clock = time.time if session.name == "ray" else time.monotonic
    return LocalInjector(session.cluster, plan, lambda: list(session.query("nodes")), clock)


@contextmanager
def attached(
    plan: Plan, begin: Callable[[Any, SimInjector | LocalInjector], None]
) -> Iterator[None]:
    """Apply a plan to each cluster that starts within this context.

    `begin` gets the session and the injector of each, and sees to it that the injector stops.
    """

    def attach_to(session: Any) -> None:
        begin(session, attach(session, plan))

    on_connect.append(attach_to)
    try:
        with proxied_for(plan), limited_disks(plan.uses("fill_disk")):
            yield
    finally:
        on_connect.remove(attach_to)


def proxied_for(plan: Plan) -> AbstractContextManager[None]:
    """Put proxies on the links of clusters that start within this context, where the plan needs
    any: on those of all nodes that it adds as well."""
    added = sum(step.action == "add_node" for step in plan.steps)
    return proxied(*plan.proxied_on, spare_nodes=max(SPARE_NODES, added))


def timeline(injections: list[Injection]) -> list[dict[str, Any]]:
    """Return injections as events of Chrome's trace format, to add to those of the tasks."""
    return [
        {
            "name": str(each.step) + (f" (failed: {each.error})" if each.error else ""),
            "cat": "fault",
            "ph": "i",
            "s": "g",
            "ts": each.clock_s * 1e6,
            "pid": "faults",
            "tid": each.step.action,
        }
        for each in injections
    ]


def recovery_span(fault_clock_s: float, full_s: float) -> dict[str, Any]:
    """Return the time from a fault to full throughput as an event of Chrome's trace format."""
    return {
        "name": "to full throughput",
        "cat": "recovery",
        "ph": "X",
        "ts": fault_clock_s * 1e6,
        "dur": full_s * 1e6,
        "pid": "faults",
        "tid": "recovery",
    }
