"""A scenario's predictions of this machine, on both sides of the policy's threshold.

If a cluster with this machine's profile is near the threshold, the scenario is simulated again with
a lower one and with a higher one, and a finding has what they change. Which values are predictions
of this machine, the `Compare` of its figures says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Any

from raytwin.runtime.api import backend, lifecycle
from raytwin.runtime.control.scheduling.near_threshold import ThresholdTally
from raytwin.scenarios.core.near_threshold import milliseconds, near
from raytwin.scenarios.core.scenario import Outcome, Request, Scenario, matches
from raytwin.simulator.machine.costs import load_profile

SAME = 0.01
"""Predictions that differ by no more than this part are the same to a user."""
SHOWN_MAX = 3
"""A finding lists at most so many predictions, those that the threshold changes most."""


@dataclass(frozen=True)
class _Change:
    """A prediction that the threshold changes."""

    name: str
    value: float
    sides: tuple[float, float]

    @property
    def relative(self) -> float:
        """The greater change, as a part of the value."""
        most = max(abs(side - self.value) for side in self.sides)
        return most / abs(self.value) if self.value else (inf if most else 0.0)

    def __str__(self) -> str:
        lower, higher = map(_shown, self.sides)
        return f"{self.name} is {lower} and {higher} instead of {_shown(self.value)}"


def simulate(scenario: Scenario, request: Request) -> Outcome:
    """Run a scenario on `sim`; a finding says if its predictions are near a threshold.

    `request` has this machine's profile. Raises whatever the scenario raises with the threshold
    that it has; if it fails with another one, the finding says so.
    """
    if not any(spec.compare for spec in scenario.figures):
        return scenario.run(request)
    with _tallied(str(request.profile)) as tallies:
        outcome = scenario.run(request)
    before = _predictions(scenario, outcome)
    close = [tally for tally in tallies if tally.is_near]
    if not close:
        return outcome
    closest = max(close, key=lambda tally: tally.share)
    said = (
        f"Near a threshold in {len(close)} of {len(tallies)} simulated clusters of this machine:"
        f" up to {near(closest)}"
    )
    sides = []
    for wait_s in closest.sides_s:
        try:
            with _threshold(wait_s):
                sides.append(_predictions(scenario, scenario.run(request)))
        except Exception as error:
            fails = f"with {milliseconds(wait_s)} it fails: {type(error).__name__}: {error}"
            outcome.findings.append(f"{said}; {fails}")
            return outcome
    lower, higher = sides
    changes = [
        _Change(name, value, (lower[name], higher[name]))
        for name, value in before.items()
        if name in lower and name in higher
    ]
    both = " and ".join(map(milliseconds, closest.sides_s))
    outcome.findings.append(f"{said}; with {both} {_said(changes)}.")
    return outcome


@contextmanager
def _tallied(profile: str) -> Iterator[list[ThresholdTally]]:
    """Yield a list that gets the tally of each cluster with this profile when it ends."""
    tallies: list[ThresholdTally] = []

    def begin(session: Any) -> None:
        cluster = session.cluster
        if cluster.profile == load_profile(profile):
            session.before_shutdown.append(lambda: tallies.append(cluster.threshold.tally))

    backend.on_connect.append(begin)
    try:
        yield tallies
        lifecycle.shutdown()
    finally:
        backend.on_connect.remove(begin)


@contextmanager
def _threshold(wait_s: float) -> Iterator[None]:
    """Give all clusters that start meanwhile this threshold."""
    lifecycle.OVERRIDES["timers"] = {"spill_wait_s": wait_s}
    try:
        yield
    finally:
        lifecycle.shutdown()
        del lifecycle.OVERRIDES["timers"]


def _predictions(scenario: Scenario, outcome: Outcome) -> Mapping[str, float]:
    """Return what is predicted of this machine."""
    found: dict[str, float] = {}
    for spec in scenario.figures:
        compare = spec.compare
        if compare is None:
            continue
        groups: dict[str, list[float]] = {}
        for row in ({"backend": "sim", **row} for row in outcome.rows):
            if matches(row, compare.predicted) and row.get(compare.column) is not None:
                of = ", ".join(f"{column} {row.get(column)}" for column in compare.on)
                groups.setdefault(f"{compare.column} ({of})", []).append(row[compare.column])
        statistic = fmean if spec.statistic == "mean" else median
        found |= {name: float(statistic(values)) for name, values in groups.items()}
    return found


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _said(changes: list[_Change]) -> str:
    """Return what the threshold changes, for a sentence."""
    moved = sorted((each for each in changes if each.relative > SAME), key=lambda c: -c.relative)
    if not moved:
        return f"no prediction changes by more than {SAME:.0%}"
    said = "; ".join(map(str, moved[:SHOWN_MAX]))
    rest = len(moved) - SHOWN_MAX
    return f"{said}; {rest} more change by over {SAME:.0%}" if rest > 0 else said
