"""The report: one HTML file that needs nothing else.

The page's own content security policy forbids style, fonts and pictures from elsewhere, and every
script but its own (`templates/report.js`), without which it says the same. All text of result files
is escaped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from raytwin.reports import benchmarks, plots, scatter, templating
from raytwin.reports.fidelity import Fidelity, judge, of_study
from raytwin.reports.figures import STATISTICS, Figure, build, check_columns
from raytwin.reports.lanes import View, views
from raytwin.reports.measurements import NONE, Measurements
from raytwin.reports.numbers import lasting, percent, short, show, with_unit
from raytwin.reports.provenance import provenance
from raytwin.reports.sketch import Drawn
from raytwin.reports.standing import Row, Standing, row_of, typical_of
from raytwin.scenarios.core.results import Result, ResultError
from raytwin.scenarios.core.scenario import FigureSpec, PublishedPoint, Scenario

ROWS_SHOWN_MAX = 100
"""More rows than this are left to rows.csv, and the report says so."""


CLASSES = {
    Standing.REPRODUCED: "good",
    Standing.SHAPE_ONLY: "muted",
    Standing.FITTED: "muted",
    Standing.MISSED: "bad",
    Standing.NOT_RUN: "warn",
}
"""How the style sheet calls the colour of each word."""


@dataclass
class Drawing:
    """A figure as the template takes it."""

    name: str
    """The figure's identifier in the page."""
    figure: Figure
    drawn: Drawn
    fidelity: Fidelity | None

    @property
    def spec(self) -> FigureSpec:
        """The declaration of the figure."""
        return self.figure.spec

    @property
    def data(self) -> dict[str, Any]:
        """The points and units from which the page's script makes hover values and CSV."""
        spec = self.spec
        return data_of(self.drawn, spec.x_label, spec.y_label, spec.x_unit, spec.y_unit)

    @property
    def published(self) -> list[tuple[str, str, str, str]]:
        """Each published number: where, of what, what, and how the paper says it."""
        spec = self.spec
        return [
            (
                str(point.x) if self.figure.categories else short(float(point.x), spec.x_unit),
                point.of,
                plots.bound(point, spec.y_unit),
                point.note,
            )
            for point in spec.published
        ]


def data_of(drawn: Drawn, x: str, y: str, x_unit: str = "", y_unit: str = "") -> dict[str, Any]:
    """Return the numbers of a drawing for the page's script, with what its axes say."""
    marks = [(mark.label, mark.panel, mark.points) for mark in drawn.marks]
    return {"x": x, "y": y, "xUnit": x_unit, "yUnit": y_unit, "marks": marks}


@dataclass
class Chapter:
    """All of one scenario."""

    scenario: Scenario
    results: list[Result]
    drawings: list[Drawing] = field(default_factory=list)
    recovery: list[View] = field(default_factory=list)
    """Pictures of its nodes around the faults, a picture a run."""

    @property
    def fidelity(self) -> list[Fidelity]:
        """How good its predictions were, figure by figure."""
        return [each.fidelity for each in self.drawings if each.fidelity is not None]

    @property
    def predicted_late(self) -> bool:
        """Whether its prediction was written after the measurement with which it is compared had
        begun; a measurement that has not noted which prediction was there does not say."""
        of = {result.record.backend: result for result in self.results}
        made = of["local"].record.made if "local" in of else None
        known = made.prediction_sha256 if made is not None else None
        return known is not None and "sim" in of and known != of["sim"].sha256

    @property
    def missing(self) -> list[str]:
        """Backends that it supports and has no result from."""
        have = {result.record.backend for result in self.results}
        return [backend for backend in self.scenario.default_backends if backend not in have]

    @property
    def failed(self) -> int:
        """How many checks do not hold."""
        return sum(not check.ok for result in self.results for check in result.record.checks)

    @property
    def checks(self) -> int:
        """How many checks there are."""
        return sum(len(result.record.checks) for result in self.results)

    @property
    def scaled(self) -> str:
        """How its runs are smaller than the paper's, and on which backends."""
        found: dict[str, list[str]] = {}
        for result in self.results:
            text = self.scenario.scaled(result.record.parameters)
            if text:
                found.setdefault(text, []).append(result.record.backend)
        return "; ".join(f"{text} ({', '.join(on)})" for text, on in found.items())

    @property
    def about(self) -> list[str]:
        """Paragraphs."""
        return [part.strip() for part in self.scenario.about.split("\n\n") if part.strip()]


@dataclass
class Origin:
    """A host with versions, and the results that were made there."""

    host: dict[str, Any]
    versions: dict[str, str]
    names: list[str]


def render(
    results: Sequence[Result],
    scenarios: Mapping[str, Scenario],
    measurements: Measurements = NONE,
) -> str:
    """Return the report on `results`, drawn as their `scenarios` declare, and on `measurements`.

    The same input gives the same text. Raises ResultError for a result of a scenario that is
    not known, and where rows do not fit the figure that is to be drawn from them.
    """
    have = {result.record.scenario for result in results}
    for name in have - set(scenarios):
        raise ResultError(
            f"{name}: this version of raytwin has no such scenario; one in a file is given with"
            " --scenario FILE"
        )
    chapters = [
        _chapter(scenario, [r for r in results if r.record.scenario == name])
        for name, scenario in scenarios.items()
        if name in have
    ]
    filters: dict[str, Callable[..., Any]] = {
        "show": _show,
        "percent": percent,
        "lasting": lasting,
        "title": _title,
        "published": _published,
    }
    fidelity = [
        (chapter, drawing, drawing.fidelity)
        for chapter in chapters
        for drawing in chapter.drawings
        if drawing.fidelity is not None and drawing.fidelity.pairs
    ]
    table = _table(chapters, scenarios)
    typical = [typical_of(chapter.fidelity) for chapter in chapters]
    errors = [error for error in typical if error is not None]
    return templating.page(
        "report.html.j2",
        filters,
        provenance=provenance(results),
        measurements=measurements,
        against_peers=benchmarks.against_peers(measurements.bench),
        history=benchmarks.history(measurements.history),
        predictions=scatter.predictions(
            [(chapter.scenario.name, found) for chapter, _, found in fidelity]
        ),
        held_out=(
            scatter.predictions(of_study(measurements.study), "held-out-1")
            if measurements.study is not None
            else None
        ),
        data_of=data_of,
        chapters=chapters,
        checks=sum(chapter.checks for chapter in chapters),
        failed=sum(chapter.failed for chapter in chapters),
        missing=sum(len(chapter.missing) for chapter in chapters),
        fidelity=fidelity,
        table=table,
        Standing=Standing,
        kind_classes=CLASSES,
        standings=Counter(row.standing for row in table),
        errors=errors,
        error=median(errors) if errors else None,
        aims=[found.good for *_, found in fidelity],
        origins=_origins(results),
        rows_max=ROWS_SHOWN_MAX,
        columns=_columns,
    )


def _table(chapters: Sequence[Chapter], scenarios: Mapping[str, Scenario]) -> list[Row]:
    """Return a row for each figure and table of the paper, run or not."""
    found = {chapter.scenario.name: chapter for chapter in chapters}
    rows = []
    for name, scenario in scenarios.items():
        if scenario.headline is not None:
            chapter = found.get(name, Chapter(scenario, []))
            rows.append(row_of(scenario, chapter.results, chapter.fidelity))
    return rows


def _chapter(scenario: Scenario, results: list[Result]) -> Chapter:
    results = sorted(results, key=lambda result: result.record.backend != "sim")
    chapter = Chapter(scenario, results)
    try:
        for result in results:
            check_columns(scenario.figures, result)
        for number, spec in enumerate(scenario.figures, start=1):
            figure = build(spec, results)
            fidelity: Fidelity | None = None
            if spec.compare is not None:
                fidelity = judge(spec.compare, results, STATISTICS[spec.statistic])
            if figure.drawable:
                name = f"{scenario.name}-{number}"
                chapter.drawings.append(Drawing(name, figure, plots.drawn(figure, name), fidelity))
        chapter.recovery = views(results, f"{scenario.name}-recovery")
    except ResultError as error:
        raise ResultError(f"{scenario.name}/{error}") from error
    return chapter


def _origins(results: Sequence[Result]) -> list[Origin]:
    origins: dict[str, Origin] = {}
    for result in results:
        record = result.record
        key = json.dumps([record.host, record.versions], sort_keys=True, default=str)
        origin = origins.setdefault(key, Origin(record.host, record.versions, []))
        origin.names.append(result.name)
    return list(origins.values())


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _published(point: PublishedPoint | None) -> str:
    if point is None:
        return ""
    return {"value": "", "at_least": "≥ ", "at_most": "≤ "}[point.kind] + show(point.y)


def _show(value: Any, name: str = "") -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_show(each, str(key))}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_show(each, name) for each in value)
    return with_unit(value, name)


def _title(name: str) -> str:
    """Return a column's or metric's name for a heading: spaces, not underscores."""
    return name.replace("_", " ")
