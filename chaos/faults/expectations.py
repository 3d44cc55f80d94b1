"""The steady state that a plan expects in spite of its faults: bounds of metrics.

The metrics are the numbers of the recovery summary, some of them from before the faults and from
after them (`recovery_summary`), and for `raytwin run` those of the scenario's result as well::

    {"metric": "after_tasks_per_s", "min": 0.8, "relative_to": "before_tasks_per_s"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raytwin.chaos.faults.actions import ParameterError, instead
from raytwin.chaos.faults.parameters import is_number

BOUNDS = ("min", "max", "equals")


@dataclass(frozen=True)
class Finding:
    """An expectation that was compared with what happened."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Expectation:
    """Bounds of one metric. Raises ParameterError, a ValueError, for what is none."""

    metric: str
    min: float | None = None
    max: float | None = None
    equals: float | None = None
    relative_to: str = ""
    """The metric whose value multiplies the bounds."""

    def __post_init__(self) -> None:
        for name in ("metric", "relative_to"):
            if not isinstance(getattr(self, name), str):
                raise ParameterError(name, f"give {name}, the name of a metric")
        if not self.metric:
            raise ParameterError("metric", "it needs metric, the name of a metric")
        bounds = {name: getattr(self, name) for name in BOUNDS}
        if all(bound is None for bound in bounds.values()):
            raise ParameterError("", f"it needs one of {', '.join(BOUNDS)}")
        for name, bound in bounds.items():
            if bound is not None and not is_number(bound):
                raise ParameterError(name, f"give {name}, a number")

    def __str__(self) -> str:
        signs = {"min": "≥", "max": "≤", "equals": "="}
        times = f" × {self.relative_to}" if self.relative_to else ""
        return " and ".join(
            f"{self.metric} {signs[name]} {getattr(self, name):,.10g}{times}"
            for name in BOUNDS
            if getattr(self, name) is not None
        )

    def check(self, metrics: Mapping[str, float]) -> Finding:
        """Compare metrics with the bounds; an unknown metric does not hold."""
        name = f"expected {self}"
        for metric in filter(None, (self.metric, self.relative_to)):
            if metric not in metrics:
                return Finding(name, False, f"no metric {metric!r}: {instead(metric, metrics)}")
        value = metrics[self.metric]
        unit = metrics[self.relative_to] if self.relative_to else 1.0
        ok = (
            (self.min is None or value >= self.min * unit)
            and (self.max is None or value <= self.max * unit)
            and (self.equals is None or value == self.equals * unit)
        )
        return Finding(name, ok, f"{self.metric} is {value:,.10g}")

    def to_data(self) -> dict[str, Any]:
        """Return the expectation in the form of a file."""
        data: dict[str, Any] = {"metric": self.metric}
        data |= {name: getattr(self, name) for name in BOUNDS if getattr(self, name) is not None}
        return data | ({"relative_to": self.relative_to} if self.relative_to else {})


def check_all(expected: Iterable[Expectation], metrics: Mapping[str, float]) -> list[Finding]:
    """Compare metrics with all expectations."""
    return [each.check(metrics) for each in expected]
