"""The page of `raytwin whatif`: a program's predictions on several clusters, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytwin.reports import plots, templating
from raytwin.reports.figures import SIMULATED, Curve, Figure, Point
from raytwin.reports.html import data_of
from raytwin.scenarios.core.scenario import FigureSpec

MAKESPAN = FigureSpec(
    title="Makespan by number of nodes",
    x="nodes",
    y="makespan_s",
    x_label="nodes",
    y_label="predicted makespan",
    x_scale="log",
    y_scale="log",
    y_unit="s",
)


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """All of one question."""

    program: str
    command: str
    """As it was typed."""
    findings: Sequence[str]
    tables: Sequence[Table]
    curves: Mapping[str, Sequence[tuple[int, float]]]
    """By label: (nodes, makespan in seconds); curves of one point are not drawn."""


def render(page: Page) -> str:
    """Return the page. The same input gives the same text; all text of it is escaped."""
    drawn, data = _drawn(page)
    return templating.page(
        "what_if.html.j2",
        {},
        page=page,
        drawn=drawn,
        data=data,
        title=MAKESPAN.title,
    )


def _drawn(page: Page) -> tuple[Any, dict[str, Any]]:
    """Return the drawing of the curves with its numbers for the page's script; None, and none."""
    lines = {name: line for name, line in page.curves.items() if len(line) > 1}
    curves = []
    for number, (name, line) in enumerate(lines.items()):
        points = tuple(Point(nodes, took_s, took_s, took_s, 1) for nodes, took_s in line)
        curves.append(Curve(SIMULATED, name, points, number, number))
    if not curves or any(point.y <= 0 for curve in curves for point in curve.points):
        return None, {}
    drawn = plots.drawn(Figure(MAKESPAN, tuple(curves), ()), "makespan")
    return drawn, data_of(drawn, MAKESPAN.x_label, MAKESPAN.y_label, "", "s")
