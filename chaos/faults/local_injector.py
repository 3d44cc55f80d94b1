"""Faults in real time: a thread that sleeps until the next step, and sends signals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from raytwin.chaos.faults.injector import Injector
from raytwin.chaos.faults.plan import Plan
from raytwin.runtime.api.exceptions import RaySystemError

LOOK_S = 0.02
"""How often the node table is looked at while a step waits for a node."""


class LocalInjector(Injector):
    """Carries a plan out on a cluster of processes, from now on, in a thread of its own.

    `nodes` returns the node table's rows, for steps that wait for a node. Raises
    PlanError for a plan that real processes cannot follow.
    """

    def __init__(self, cluster: Any, plan: Plan, nodes: Callable[[], list[dict[str, Any]]]) -> None:
        plan.check_backend("local")
        super().__init__(cluster, plan, time.monotonic())
        self._nodes = nodes
        self._alive = {row["node"]: row["alive"] for row in nodes()}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="raytwin-chaos", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic()

    def mark(self, name: str) -> None:
        with self._changed:
            super().mark(name)
            self._changed.notify()

    def stop(self) -> None:
        """Carry nothing out any more; returns when nothing is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            looks = self.waits_for("node_")
            if looks and not self._look():
                return
            with self._changed:
                if self._stopped:
                    return
                # Restarting waits for a process to end, and nobody else uses the plan.
                self.due(self.now())
                due_s = self.next_due_s()
                if due_s is None and not self._waiting:
                    return
                left_s = None if due_s is None else max(0.0, due_s - self.now())
                if looks:
                    left_s = LOOK_S if left_s is None else min(LOOK_S, left_s)
                self._changed.wait(left_s)

    def _look(self) -> bool:
        """Tell of nodes that came or went since the last look; False: the cluster is gone."""
        now_s = self.now()
        try:
            rows = self._nodes()
        except RaySystemError:
            return False
        for row in rows:
            node, alive = row["node"], row["alive"]
            if alive != self._alive.get(node, False):
                self._alive[node] = alive
                with self._changed:
                    self.emit(f"{'node_added' if alive else 'node_died'}:{node}", now_s)
        return True
