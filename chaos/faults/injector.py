"""Carrying a plan out: what injectors of all backends share.

    WAITING ──its time comes──────────────────> DONE, or FAILED
       ↑  └──its event occurs──> due later ──────↗

A step that cannot be done when its time comes (its node is gone for good) is
noted as failed and the plan goes on: a random plan need not know what its
earlier steps lead to.

A world has to call `due` with the clock's time when a step may be due, and
`emit` with what occurs; where that happens is what `SimInjector` and
`LocalInjector` differ in.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from raytwin.chaos.faults.actions import ACTIONS
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api.exceptions import RaySystemError


@dataclass(frozen=True)
class Injection:
    """A step that was carried out, or could not be."""

    at_s: float
    """Since the plan was applied."""
    clock_s: float
    """On the cluster's clock."""
    step: Step
    error: str = ""


class Injector:
    """Which steps are due, and what has become of the others."""

    def __init__(self, cluster: Any, plan: Plan, started_s: float) -> None:
        self.cluster = cluster
        self.plan = plan
        self.started_s = started_s
        self.injections: list[Injection] = []
        self._due: list[tuple[float, int, Step]] = []
        self._waiting: list[Step] = []
        self._count = 0
        for step in plan.steps:
            if step.at_s is None:
                self._waiting.append(step)
            else:
                self._push(started_s + step.at_s, step)

    def mark(self, name: str) -> None:
        """The program has come to where steps of the plan wait for it."""
        self.emit(f"mark:{name}", self.now())

    def now(self) -> float:
        """Return the time on the cluster's clock."""
        raise NotImplementedError

    def next_due_s(self) -> float | None:
        """Return when the next step is due, None if none is as yet."""
        return self._due[0][0] if self._due else None

    def waits_for(self, kind: str) -> bool:
        """Whether a step waits for an event of that kind."""
        return any(step.after.startswith(kind) for step in self._waiting)

    def emit(self, event: str, now_s: float) -> None:
        """Something has occurred: steps that wait for it become due."""
        for step in [step for step in self._waiting if step.after == event]:
            self._waiting.remove(step)
            self._push(now_s + step.delay_s, step)

    def due(self, now_s: float) -> None:
        """Carry out every step that is due."""
        while self._due and self._due[0][0] <= now_s:
            _, _, step = heapq.heappop(self._due)
            error = ""
            try:
                ACTIONS[step.action].apply(step.target, self.cluster, step.parameters)
            except (ValueError, RuntimeError, RaySystemError) as failed:
                error = str(failed)
            self.injections.append(Injection(now_s - self.started_s, now_s, step, error))
            if step.name:
                self.emit(f"step:{step.name}", now_s)

    def _push(self, due_s: float, step: Step) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, step))


def timeline(injections: list[Injection]) -> list[dict[str, Any]]:
    """Return injections as events of Chrome's trace format, beside those of tasks."""
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
