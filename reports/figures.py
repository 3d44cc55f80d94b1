"""From tidy rows to the curves of one figure: data, no drawing.

Of several rows at one x the median is the point, unless the figure says the mean, and lowest and
highest are its spread, so that a single stray repeat moves no point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from raytwin.scenarios.core.results import Result, ResultError
from raytwin.scenarios.core.scenario import Band, FigureSpec, Row, matches

DRAWABLE_MAX = 1e100
"""Beyond it axes run out of floats; nothing that was measured is there."""

STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {"median": median, "mean": fmean}

SIMULATED, MEASURED, RAY, PUBLISHED = "simulated", "measured", "Ray", "published"
SOURCES = {"sim": SIMULATED, "ray": RAY}
"""By backend, where it is not `MEASURED`."""


@dataclass(frozen=True)
class Point:
    """A median or mean with its spread; `count` rows are in it."""

    x: Any
    y: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Curve:
    """One line or set of points of a figure."""

    source: str
    """``simulated``, ``measured`` or ``Ray``."""
    label: str
    """The values of the series columns; "" where there are none."""
    points: tuple[Point, ...]
    series: int
    """Which of the figure's series: the same one on each source."""
    shade: int
    """Which of its source's curves."""
    facet: Any = None
    """The value of the column `FigureSpec.facet`."""
    column: str = ""
    """The column that the curve draws: `FigureSpec.y`, one of its `stack`, or its `second`."""


@dataclass(frozen=True)
class Figure:
    """A `FigureSpec` with its curves."""

    spec: FigureSpec
    curves: tuple[Curve, ...]
    categories: tuple[str, ...]
    """The values of x, in order, where they are no numbers."""
    bands: Mapping[str, tuple[Band, ...]] = field(default_factory=dict)
    """The faults to shade, by source."""

    @property
    def panels(self) -> tuple[str, ...]:
        """The sources that have a panel each, from above; empty: all share one."""
        have = {curve.source for curve in self.curves}
        found = tuple(each for each in (SIMULATED, MEASURED, RAY) if each in have)
        return found if self.spec.stack or (self.bands and len(have) > 1) else ()

    @property
    def facets(self) -> tuple[Any, ...]:
        """The values that have a small panel each, in order; empty: no facets."""
        found = {curve.facet for curve in self.curves} if self.spec.facet else set()
        return tuple(sorted(found, key=lambda value: (str(type(value)), value)))

    @property
    def drawable(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.curves or self.spec.published)


def all_rows(results: Sequence[Result]) -> list[Row]:
    """Return the rows of all `results`, each with the ``backend`` it is from."""
    return [{**row, "backend": result.record.backend} for result in results for row in result.rows]


def source_of(backend: str) -> str:
    """Return whether a backend simulates, measures raytwin, or is Ray."""
    return SOURCES.get(backend, MEASURED)


def build(spec: FigureSpec, results: Sequence[Result]) -> Figure:
    """Return the figure that `spec` declares, from `results` of its scenario.

    Raises ResultError if a row has a text where the axis needs a number.
    """
    columns = (spec.y, *spec.stack, *filter(None, [spec.second]))
    groups: dict[tuple[str, Any, str, str], dict[Any, list[Row]]] = {}
    for row in all_rows(results):
        if not matches(row, spec.where) or row.get(spec.x) is None:
            continue
        label = " · ".join(str(row[name]) for name in spec.series if row.get(name) is not None)
        for column in columns:
            if row.get(column) is not None:
                key = row["backend"], row.get(spec.facet), label, column
                groups.setdefault(key, {}).setdefault(row[spec.x], []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != "sim", item[0][0] == "ray"))
    labels = list(dict.fromkeys((label, column) for (_, _, label, column), _ in ordered))
    shades: dict[str, list[tuple[str, str]]] = {}
    curves = []
    for (backend, facet, label, column), by_x in ordered:
        source = source_of(backend)
        points = tuple(_point(spec, column, x, rows) for x, rows in by_x.items())
        if all(_is_number(point.x) for point in points):
            points = tuple(sorted(points, key=lambda point: point.x))
        known = shades.setdefault(source, [])
        if (label, column) not in known:
            known.append((label, column))
        series, shade = labels.index((label, column)), known.index((label, column))
        curves.append(Curve(source, label, points, series, shade, facet, column))
    xs = [point.x for curve in curves for point in curve.points]
    xs += [point.x for point in spec.published]
    numeric = all(_is_number(x) for x in xs)
    categories = () if numeric else tuple(dict.fromkeys(str(x) for x in xs))
    return Figure(spec, tuple(curves), categories, {} if categories else _bands(spec, results))


def _bands(spec: FigureSpec, results: Sequence[Result]) -> dict[str, tuple[Band, ...]]:
    """Return the faults that the figure shades, by source, each once."""
    found: dict[str, dict[str, Band]] = {}
    for result in results:
        source = found.setdefault(source_of(result.record.backend), {})
        for band in result.record.bands:
            if band.column == spec.x and _concerns(band, spec):
                source.setdefault(band.label, band)
    return {source: tuple(bands.values()) for source, bands in found.items() if bands}


def _concerns(band: Band, spec: FigureSpec) -> bool:
    """Whether a figure may have the rows that a band belongs to."""
    return all(
        name not in spec.where or matches({name: value}, {name: spec.where[name]})
        for name, value in band.where.items()
    )


def check_columns(figures: Sequence[FigureSpec], result: Result) -> None:
    """Raise ResultError if the rows of a result have the columns of no figure of its scenario."""
    rows = all_rows([result])
    if figures and not any(
        row.get(spec.x) is not None and row.get(spec.y) is not None
        for spec in figures
        for row in rows
    ):
        columns = dict.fromkeys(name for spec in figures for name in (spec.x, spec.y))
        raise ResultError(
            f"{result.record.backend}/rows.csv: no figure can be drawn from it: there are no rows"
            f" with columns of one (of {', '.join(columns)})"
        )


def number(row: Row, column: str) -> float:
    """Return a cell of a row with ``backend``. Raises ResultError if it is no number."""
    value = row.get(column)
    if not _is_number(value):
        where = f"{row['backend']}/rows.csv"
        raise ResultError(f"{where}: column {column!r} holds {value!r}, which cannot be drawn")
    return float(value)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= DRAWABLE_MAX
    )


def _point(spec: FigureSpec, column: str, x: Any, rows: Sequence[Row]) -> Point:
    values = [number(row, column) for row in rows]
    spread = column == spec.y
    low = min(number(row, spec.y_min or column) for row in rows) if spread else min(values)
    high = max(number(row, spec.y_max or column) for row in rows) if spread else max(values)
    return Point(x, STATISTICS[spec.statistic](values), low, high, len(rows))
