"""How each figure and table of the paper stands: the table that opens the report.

A row holds what the paper published, what was simulated at the paper's set-up, what was measured on
one machine, and what a peer did in the same run. One word judges it:

==========  =======================================================================
reproduced  the simulation meets the published number: a bound, or a value within
            `Headline.tolerance_percent`; and every check holds
shape only  the paper only drew it, and every check of the shape holds
fitted      the costs were fitted to this number, so that meeting it says nothing
missed      the number is not met, or a check fails
not run     there is no simulated result
==========  =======================================================================

Where the paper has a ratio between two systems, a row has that of the run, too, and why its sign
differs, if it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from raytwin.reports.fidelity import Fidelity
from raytwin.scenarios.core.results import Result
from raytwin.scenarios.core.scenario import (
    Headline,
    Metrics,
    PublishedPoint,
    Quantity,
    Ratio,
    Scenario,
)

LEVEL = 0.1
"""How far a ratio between systems may be from 1 where the paper says that they were level."""


class Standing(Enum):
    """The one word; see the table above."""

    REPRODUCED = "reproduced"
    SHAPE_ONLY = "shape only"
    FITTED = "fitted"
    MISSED = "missed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class FoundRatio:
    """A published ratio between systems, and that of a run."""

    ratio: Ratio
    found: float
    why: str
    """Why the sign differs from the published one; empty: it does not."""


@dataclass(frozen=True)
class Row:
    """A figure or table of the paper in the first table."""

    scenario: Scenario
    headline: Headline
    simulated: float | None
    measured: float | None
    peers: tuple[tuple[str, float], ...]
    """(name of the system, its number)"""
    prediction: float | None
    """The median size of the errors of prediction, of all pairs of its figures."""
    prediction_kept: bool | None
    """Whether each figure keeps its aim; None: none has one, or nothing was compared."""
    standing: Standing
    ratios: tuple[FoundRatio, ...] = ()

    @property
    def error(self) -> float | None:
        """The simulated number's relative error against the published one; None for a bound that
        is kept, and where one of the two is missing."""
        return error_of(self.simulated, self.headline.published)


def error_of(found: float | None, published: PublishedPoint | None) -> float | None:
    """Return the relative error against a published number; None for a bound that is kept."""
    if found is None or published is None:
        return None
    if published.kind != "value" and meets(found, published, 0.0):
        return None
    return (found - published.y) / published.y


def meets(found: float, published: PublishedPoint, tolerance: float) -> bool:
    """Whether a number keeps a published bound, or is within a share of a published value."""
    if published.kind == "at_least":
        return found >= published.y
    if published.kind == "at_most":
        return found <= published.y
    return abs(found - published.y) <= tolerance * abs(published.y)


def row_of(scenario: Scenario, results: Sequence[Result], fidelity: Sequence[Fidelity]) -> Row:
    """Return the row of a scenario that has a headline, from its results."""
    headline = scenario.headline
    assert headline is not None, f"{scenario.name} is in the paper, and has no headline"
    metrics = {result.record.backend: result.record.metrics for result in results}
    measure = headline.measured or headline.simulated
    simulated = _value(headline.simulated, metrics.get("sim"))
    peers = [
        (headline.peer_name, _value(headline.peer, metrics.get("local"))),
        ("Ray", _value(measure, metrics.get("ray"))),
    ]
    kept = [found.good for found in fidelity]
    return Row(
        scenario,
        headline,
        simulated,
        _value(measure, metrics.get("local")),
        tuple((name, value) for name, value in peers if value is not None),
        typical_of(fidelity),
        None if None in kept or not kept else all(kept),
        _standing(headline, simulated, all(result.ok for result in results)),
        _ratios(scenario, metrics),
    )


def has_sign_of(found: float, published: PublishedPoint) -> bool:
    """Whether of two systems the same one is better as in the paper, by their ratio."""
    if published.kind == "at_least":
        return found > 1.0
    if published.kind == "at_most":
        return found < 1.0
    if published.y == 1.0:
        return abs(found - 1.0) <= LEVEL
    return (found > 1.0) == (published.y > 1.0)


def _ratios(scenario: Scenario, metrics: Mapping[str, Metrics]) -> tuple[FoundRatio, ...]:
    """Return those ratios of a scenario of which the runs have both systems."""
    ratios = []
    for ratio in scenario.ratios:
        found = _value(ratio.found, metrics.get(ratio.backend))
        if found is not None:
            same = has_sign_of(found, ratio.published)
            why = "" if same else _why(ratio, metrics[ratio.backend])
            ratios.append(FoundRatio(ratio, found, why))
    return tuple(ratios)


def _why(ratio: Ratio, metrics: Metrics) -> str:
    try:
        return ratio.why(metrics)
    except KeyError as missing:
        return f"the run was too small to say why: it has no {missing.args[0]}"


def typical_of(fidelity: Sequence[Fidelity]) -> float | None:
    """Return the median size of the errors of all pairs, each once: a scenario counts as one."""
    errors = [error for found in fidelity for error in found.errors]
    return median(errors) if errors else None


def _value(quantity: Quantity | None, metrics: Mapping[str, float] | None) -> float | None:
    """Return a quantity; None where there is no result, or one that was too small to have it."""
    if quantity is None or metrics is None:
        return None
    try:
        return quantity(metrics)
    except KeyError:
        return None


def _standing(headline: Headline, simulated: float | None, ok: bool) -> Standing:
    if simulated is None:
        return Standing.NOT_RUN
    if not ok:
        return Standing.MISSED
    if headline.published is None:
        return Standing.SHAPE_ONLY
    if not meets(simulated, headline.published, headline.tolerance_percent / 100):
        return Standing.MISSED
    return Standing.FITTED if headline.fitted else Standing.REPRODUCED
