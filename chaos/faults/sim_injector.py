"""Faults in virtual time: steps are events of the simulation."""

from __future__ import annotations

from typing import Any

from raytwin.chaos.faults.injector import Injector
from raytwin.chaos.faults.plan import Plan


class SimInjector(Injector):
    """Carries a plan out on a simulated cluster, from now on.

    Raises PlanError for a plan that has nothing to do in a simulation.
    """

    def __init__(self, cluster: Any, plan: Plan) -> None:
        plan.check_backend("sim")
        super().__init__(cluster, plan, cluster.env.now)
        self._stopped = False
        self._scheduled = 0
        cluster.on_membership.append(self._on_node)
        self._schedule()

    def now(self) -> float:
        return float(self.cluster.env.now)

    def mark(self, name: str) -> None:
        super().mark(name)
        self._schedule()

    def stop(self) -> None:
        """Carry nothing out any more."""
        if not self._stopped:
            self._stopped = True
            self.cluster.working -= self._scheduled
            self.cluster.on_membership.remove(self._on_node)

    def _on_node(self, node: int, alive: bool) -> None:
        self.emit(f"{'node_added' if alive else 'node_died'}:{node}", self.now())
        self._schedule()

    def _schedule(self) -> None:
        """Have an event for the next step; a cluster to which more will happen is not stuck."""
        due_s = self.next_due_s()
        if due_s is None or self._stopped:
            return
        self._scheduled += 1
        self.cluster.working += 1
        event = self.cluster.env.timeout(max(0.0, due_s - self.now()))
        event.callbacks.append(self._on_due)

    def _on_due(self, _: Any) -> None:
        if self._stopped:
            return
        self._scheduled -= 1
        self.cluster.working -= 1
        self.due(self.now())
        self._schedule()
