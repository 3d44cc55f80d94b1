"""Episodes of a steady load under fault plans: one after the other in a running cluster.

`run_episode` runs a quiet stretch, carries a plan out, and goes on until load and nodes are as they
were, so that the next episode begins from rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.faults.recovery_summary import Recovery
from raytwin.scenarios.core.executions import Execution
from raytwin.scenarios.workloads.disturbance import Episode, most_open
from raytwin.scenarios.workloads.steady_load import SteadyLoad

LIMIT_MIN_S = {"docker": 4.0}
"""By backend: the least limit of the failure detector for episodes with short cuts of links. To set
and remove the filters of a container takes up to a second, and connections as long to come back."""
LOOK_S = 0.05
"""Seconds between two looks at whether a plan has ended."""


def limit_on(backend: str, limit_s: float) -> float:
    """Return the failure detector's limit that a backend can have instead of a wanted one."""
    return max(limit_s, LIMIT_MIN_S.get(backend, 0.0))


@dataclass(frozen=True)
class Pace:
    """How long the parts of an episode take, in seconds."""

    quiet_s: float
    after_s: float
    """From the plan's last step on; as long again while load and nodes are not as they were."""
    patience_s: float
    """At most, for the plan to end, and for load and nodes to be as they were."""


@dataclass(frozen=True)
class FaultEpisode:
    """An episode that has been run, and what the cluster did about its faults."""

    span: Episode
    recovery: Recovery
    ranges: list[list[Any]]
    """The cluster's timeline at its end: a node that dies later takes its part along."""
    unplanned: tuple[int, ...]
    """Nodes that were given up though the plan does not start them again, as on a busy machine."""

    @property
    def steps_missed(self) -> int:
        """How many steps of the plan were impossible, or not due before the end."""
        numbers = self.recovery.numbers()
        return int(numbers["faults_failed"] + numbers["faults_not_due"])

    @property
    def plan_s(self) -> float:
        """When the last step of the plan was carried out, since the first fault."""
        injections = self.recovery.injections
        return max((each.clock_s for each in injections), default=self.span.fault_s) - (
            self.span.fault_s
        )

    @property
    def detected_s(self) -> float | None:
        """How long the cluster took to report the fault's death; None if it reports none."""
        found = self.recovery.detections()
        times = [event[0] - each.clock_s for each, event in found if event is not None]
        return times[0] if times else None

    def after_fault(self, executions: Sequence[Execution]) -> list[Execution]:
        """Return the executions that began in it after the fault."""
        begin_s, end_s = self.span.fault_s, self.span.ended_s
        return [each for each in executions if begin_s <= each.began_s < end_s]


def run_episode(session: Any, load: SteadyLoad, plan: Plan, pace: Pace) -> FaultEpisode:
    """Run a quiet stretch, a plan whose first step is due at once, and the time after it."""
    alive = _alive(session)
    began_s = ray.now()
    load.run(began_s + pace.quiet_s)
    injector = attach(session, plan)
    fault_s = injector.started_s
    while not injector.finished and ray.now() < fault_s + pace.patience_s:
        load.run(ray.now() + LOOK_S)
    over_s = ray.now()
    load.run(over_s + pace.after_s)
    unplanned = _start_again(session, plan)
    level = most_open(load.operations, began_s, fault_s)
    while (load.open > level or _alive(session) < alive) and (ray.now() < over_s + pace.patience_s):
        load.run(ray.now() + pace.after_s)
    injector.stop()
    recovery = Recovery(plan, injector.injections, fault_s)
    recovery.events = [
        event for event in map(tuple, session.query("events")) if event[0] >= fault_s
    ]
    span = Episode(began_s, fault_s, ray.now())
    return FaultEpisode(span, recovery, session.query("timeline"), unplanned)


def _start_again(session: Any, plan: Plan) -> tuple[int, ...]:
    """Start the dead nodes again that the plan does not, as an operator would; return them.

    Without them what is pinned to such a node would wait for it in all later episodes.
    """
    planned = {
        node for step in plan.steps if step.action == "restart" for node in step.target.nodes
    }
    dead = {row["node"] for row in session.query("nodes") if not row["alive"]}
    unplanned = tuple(sorted(dead - planned))
    for node in unplanned:
        session.cluster.restart_node(node)
    return unplanned


def _alive(session: Any) -> int:
    """Return how many nodes the cluster has."""
    return sum(row["alive"] for row in session.query("nodes"))
