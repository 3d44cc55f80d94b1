"""Drawings of figures, as SVG images for the report.

Colour says where a number is from (published, simulated, measured, measured on
Ray), marker and dash say which series it is, the same on every source but for
Ray, whose markers are open and of other shapes; so a figure can be read
without telling colours apart. Where faults are shaded, what
was simulated is drawn above what was measured, and that above Ray, on one axis of time.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from raytwin.reports import palette, svg
from raytwin.reports.figures import MEASURED, RAY, SIMULATED, Curve, Figure, Point
from raytwin.reports.numbers import short
from raytwin.reports.sketch import Drawn, Sketch
from raytwin.scenarios.core.scenario import Band, PublishedPoint

SIZE_IN = (9.4, 5.2)
MARKERS = ("o", "s", "^", "v", "P", "X")
RAY_MARKERS = ("p", "h", "8", "*", "<", ">")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1.5, 2)))
FACETS_ACROSS = 3
ENVELOPE_MIN = 60
"""With more points than this, whiskers would hide the curve: an envelope is filled instead."""
PANEL_IN = 2.6
"""How much higher a second panel makes a figure."""
PANEL, INK, MUTED, GRID, BAND = (
    palette.LIGHT[name] for name in ("panel", "ink", "muted", "line", "band")
)
LINE_POINTS = 10
BAND_LINES_MAX = 6
"""Of the names of bands; with more they begin again at the top."""
COLOURS = {
    source: palette.curves(name)
    for source, name in ((SIMULATED, "sim"), (MEASURED, "mea"), (RAY, "ray"))
}
TICKS_MAX = 12
"""A logarithmic axis with more values of x than this has ticks at powers of ten."""


def drawn(figure: Figure, name: str = "figure") -> Drawn:
    """Return the drawing of `figure` for a page, in which it has a name.

    The same figure gives the same text.
    """
    with svg.settings():
        return sketched(figure).finished(name, describe(figure))


def image(figure: Figure) -> str:
    """Return `figure` as an SVG image of its own colours, in a ``data:`` URL.

    The same figure gives the same text.
    """
    buffer = io.BytesIO()
    with svg.settings():
        sketched(figure).canvas.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sketched(figure: Figure) -> Sketch:
    """Return `figure` with its legend on a canvas."""
    with svg.settings():
        facets = figure.facets
        down = -(-len(facets) // FACETS_ACROSS) if facets else max(1, len(figure.panels))
        across = min(FACETS_ACROSS, len(facets)) if facets else 1
        sketch = Sketch(SIZE_IN[0], SIZE_IN[1] + PANEL_IN * max(0, down - 1))
        rows = sketch.canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        # Above the axis, it can be read without turning the head.
        sketch.canvas.suptitle(figure.spec.y_label, x=0.008, ha="left", fontsize=9.5, color=MUTED)
        for number, axes in enumerate(rows.flat):
            if facets and number >= len(facets):
                axes.remove()
                # The panel above has the ticks of the axis then.
                rows.flat[number - across].xaxis.set_tick_params(labelbottom=True)
                continue
            if facets:
                _facet(sketch, axes, figure, facets[number], number == 0)
            else:
                _panel(sketch, axes, figure, figure.panels[number : number + 1], number == 0)
        below = rows[-1, (len(facets) - 1) % across // 2 if facets else 0]
        below.set_xlabel(figure.spec.x_label, fontsize=9.5, color=MUTED, labelpad=6)
        values = [point.low for curve in figure.curves for point in curve.points]
        values += [point.y for point in figure.spec.published]
        if figure.spec.y_scale == "linear" and min(values) >= 0:
            rows[0, 0].set_ylim(bottom=0)
        sketch.legend(3)
    return sketch


def describe(figure: Figure) -> str:
    """Return a description of the figure in words, for readers who cannot see it."""
    spec = figure.spec
    parts = [f"{spec.title}: {spec.y_label} by {spec.x_label}"]
    for curve in figure.curves:
        if curve.facet != figure.curves[0].facet:
            continue
        first, last = curve.points[0], curve.points[-1]
        parts.append(
            f"{_words(figure, curve)}: from {short(first.y, spec.y_unit)} at {_x(figure, first.x)} "
            f"to {short(last.y, spec.y_unit)} at {_x(figure, last.x)}"
        )
    parts += [
        f"{source} fault: {band.label}, from {_x(figure, band.start)} to {_x(figure, band.end)}"
        for source, bands in figure.bands.items()
        for band in bands
    ]
    parts += [
        f"{_published_label(point)}: {bound(point, spec.y_unit)} at {_x(figure, point.x)}"
        for point in spec.published
    ]
    return "; ".join(parts)


def bound(point: PublishedPoint, unit: str = "") -> str:
    """Return a published number with its sense.

    >>> bound(PublishedPoint(60, 1e6, "at_least"))
    '≥ 1M'
    """
    sign = {"value": "", "at_least": "≥ ", "at_most": "≤ "}[point.kind]
    return sign + short(point.y, unit)


def _x(figure: Figure, x: Any) -> str:
    return str(x) if figure.categories else short(float(x), figure.spec.x_unit)


def _words(figure: Figure, curve: Curve) -> str:
    """Return the name of a curve in a description: of one that is not of `y`, its column too."""
    column = "" if curve.column == figure.spec.y else curve.column.replace("_", " ")
    return " ".join(filter(None, (_label(curve), column)))


def _label(curve: Curve) -> str:
    return " ".join(filter(None, (curve.source, curve.label)))


# -- drawing -----------------------------------------------------------------------


def _panel(sketch: Sketch, axes: Axes, figure: Figure, sources: Sequence[str], first: bool) -> None:
    """Draw what is of some sources, of all if none is given, and what the paper published."""
    _axes(axes, figure)
    for source, bands in figure.bands.items():
        # Without panels of their own two sources would shade one fault twice.
        if source in sources or (not sources and source == next(iter(figure.bands))):
            _bands(axes, bands, "fault" if first else None)
    for source in sources:
        colour = COLOURS[source][0]
        axes.set_title(source, loc="right", fontsize=9.5, color=colour, fontweight="bold")
    curves = [curve for curve in figure.curves if not sources or curve.source in sources]
    if figure.spec.stack:
        _stack(sketch, axes, figure, curves, first)
    for curve in () if figure.spec.stack else curves:
        _curve(sketch, axes, figure, curve)
    _all_published(sketch, axes, figure, first)
    axes.margins(x=0.05, y=0.12)


def _facet_name(figure: Figure, value: Any) -> str:
    return f"{figure.spec.facet.replace('_', ' ')}: {value}" if figure.spec.facet else ""


def _facet(sketch: Sketch, axes: Axes, figure: Figure, value: Any, first: bool) -> None:
    """Draw the curves of one value of the column that makes facets."""
    _axes(axes, figure)
    axes.set_title(_facet_name(figure, value), fontsize=9.5, color=MUTED, loc="left")
    labelled = {curve.series for curve in figure.curves if curve.facet == figure.facets[0]}
    for curve in figure.curves:
        if curve.facet == value:
            _curve(sketch, axes, figure, curve, first or curve.series not in labelled)
    _all_published(sketch, axes, figure, first)
    axes.margins(x=0.05, y=0.12)


def _stack(
    sketch: Sketch, axes: Axes, figure: Figure, curves: Sequence[Curve], first: bool
) -> None:
    """Draw columns as bars on top of each other, and the second axis as steps."""
    spec = figure.spec
    bars = [curve for curve in curves if curve.column != spec.second]
    bottoms: dict[float, float] = {}
    for curve in bars:
        xs = [float(point.x) for point in curve.points]
        width = min((b - a for a, b in pairwise(xs)), default=1.0)
        colours = COLOURS[curve.source]
        label = f"{curve.source} {curve.column.replace('_', ' ')}"
        columns = axes.bar(
            xs,
            [point.y for point in curve.points],
            width,
            [bottoms.get(x, 0.0) for x in xs],
            color=colours[curve.shade % len(colours)],
            # Not by colour alone.
            hatch="////" if curve.column != spec.y else None,
            edgecolor=PANEL,
            linewidth=0.4,
            label=label,
            zorder=3,
        )
        for point in curve.points:
            bottoms[float(point.x)] = bottoms.get(float(point.x), 0.0) + point.y
        places = [(float(point.x), bottoms[float(point.x)], point) for point in curve.points]
        sketch.place(axes, label, places, columns)
    seconds = [curve for curve in curves if curve.column == spec.second]
    if seconds:
        twin = axes.twinx()
        for curve in seconds:
            steps = twin.step(
                [float(point.x) for point in curve.points],
                [point.y for point in curve.points],
                where="mid",
                color=INK,
                linewidth=1.4,
                label=spec.second_label if first else None,
            )
            places = [(float(point.x), point.y, point) for point in curve.points]
            sketch.place(twin, spec.second_label, places, steps)
        twin.set_ylim(bottom=0)
        twin.set_ylabel(spec.second_label, fontsize=9.5, color=MUTED)
        twin.tick_params(labelsize=9, colors=MUTED, length=0)
        twin.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        for side in ("top", "right", "left", "bottom"):
            twin.spines[side].set_visible(False)


def _bands(axes: Axes, bands: Sequence[Band], label: str | None) -> None:
    """Shade faults, and write what they are at the top, each below the one before."""
    for index, band in enumerate(bands):
        axes.axvspan(
            band.start,
            band.end,
            color=BAND,
            alpha=0.5,
            linewidth=0,
            label=label if index == 0 else None,
            zorder=0.5,
        )
        axes.axvline(band.start, color=MUTED, linewidth=0.8, zorder=0.6)
        axes.annotate(
            band.label,
            xy=(band.start, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -10 - LINE_POINTS * (index % BAND_LINES_MAX)),
            textcoords="offset points",
            fontsize=8,
            color=MUTED,
            annotation_clip=True,
        )


def plain_axes(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    """Give axes a grid, and take what else would distract."""
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(labelsize=9, colors=MUTED, length=0, pad=5)


def _axes(axes: Axes, figure: Figure) -> None:
    spec = figure.spec
    plain_axes(axes, "y")
    axes.tick_params(axis="x", length=3)
    axes.set_yscale(spec.y_scale)
    log = spec.y_scale == "log"
    _ticks(axes.yaxis, LogLocator(10, subs=(1.0, 3.0)) if log else MaxNLocator(6), spec.y_unit)
    if figure.categories:
        axes.set_xticks(range(len(figure.categories)), figure.categories)
        axes.set_xlim(-0.5, len(figure.categories) - 0.5)
        return
    axes.set_xscale(spec.x_scale)
    locator: Locator = MaxNLocator(10)
    if spec.x_scale == "log":
        xs = {float(point.x) for curve in figure.curves for point in curve.points}
        ticks = sorted(xs | {float(point.x) for point in spec.published})
        locator = (
            FixedLocator(ticks) if len(ticks) <= TICKS_MAX and not figure.facets else LogLocator(10)
        )
    _ticks(axes.xaxis, locator, spec.x_unit)


def _ticks(axis: Axis, locator: Locator, unit: str) -> None:
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, unit)))


def _at(figure: Figure, x: Any, source: str = "") -> float:
    """Return where `x` is drawn; sources stand side by side in one category."""
    if not figure.categories:
        return float(x)
    aside = {SIMULATED: -0.1, MEASURED: 0.1, RAY: 0.3}.get(source, 0.0)
    return figure.categories.index(str(x)) + aside


def _curve(sketch: Sketch, axes: Axes, figure: Figure, curve: Curve, labelled: bool = True) -> None:
    ys = [point.y for point in curve.points]
    below = [max(point.y - point.low, 0.0) for point in curve.points]
    above = [max(point.high - point.y, 0.0) for point in curve.points]
    colours = COLOURS[curve.source]
    measured = curve.source != SIMULATED
    ray = curve.source == RAY
    colour = colours[curve.shade % len(colours)]
    markers = RAY_MARKERS if ray else MARKERS
    edge = colour if ray else PANEL if measured else None
    xs = [_at(figure, point.x, curve.source) for point in curve.points]
    spread = any(below) or any(above)
    if spread and len(curve.points) > ENVELOPE_MIN:
        _envelope(sketch, axes, figure, curve, xs, labelled)
        return
    whiskers = axes.errorbar(
        xs,
        ys,
        yerr=[below, above] if spread else None,
        fmt=markers[curve.series % len(markers)],
        # A line says that there is something between its points: not so between categories.
        linestyle="none" if figure.categories else DASHES[curve.series % len(DASHES)],
        color=colour,
        linewidth=0.8 if measured else 2.2,
        markersize=7.5 if measured or figure.categories else 4.5,
        markeredgecolor=edge,
        markeredgewidth=1.6 if ray else 1.0,
        markerfacecolor=PANEL if ray else colour,
        elinewidth=1.4,
        capsize=3.5 if measured else 0,
        label=_label(curve) if labelled else None,
        zorder=5 if measured else 4,
    )
    places = list(zip(xs, ys, curve.points, strict=True))
    sketch.place(
        axes, _label(curve), places, whiskers.get_children(), _facet_name(figure, curve.facet)
    )


def _envelope(
    sketch: Sketch,
    axes: Axes,
    figure: Figure,
    curve: Curve,
    xs: Sequence[float],
    labelled: bool,
) -> None:
    """Draw a curve of many points as a line, in an area from its lowest to its highest."""
    colours = COLOURS[curve.source]
    colour = colours[curve.shade % len(colours)]
    lines = axes.plot(
        xs,
        [point.y for point in curve.points],
        linestyle=DASHES[curve.series % len(DASHES)],
        color=colour,
        linewidth=1.6,
        label=_label(curve) if labelled else None,
        zorder=5,
    )
    area = axes.fill_between(
        xs,
        [point.low for point in curve.points],
        [point.high for point in curve.points],
        color=colour,
        alpha=0.25,
        linewidth=0,
        zorder=3,
    )
    places = [(x, point.y, point) for x, point in zip(xs, curve.points, strict=True)]
    sketch.place(axes, _label(curve), places, [*lines, area], _facet_name(figure, curve.facet))


def _all_published(sketch: Sketch, axes: Axes, figure: Figure, first: bool) -> None:
    """Draw what the paper published; in the first panel each series gets its name."""
    named: set[str] = set()
    for point in figure.spec.published:
        label = _published_label(point)
        _published(sketch, axes, figure, point, label if first and label not in named else None)
        named.add(label)


def _published_label(point: PublishedPoint) -> str:
    named = " ".join(filter(None, ("published", point.of)))
    return f"{named}, fitted to" if point.fitted else named


def _published_marker(figure: Figure, point: PublishedPoint) -> str:
    """Return the marker of the point's series, or, where there is only one, a diamond.

    Series that nothing was run of have the markers after those of the others.
    """
    if not point.series:
        return "D"
    labels = dict.fromkeys(curve.label for curve in sorted(figure.curves, key=lambda c: c.series))
    labels |= dict.fromkeys(each.series for each in figure.spec.published if each.series)
    return MARKERS[list(labels).index(point.series) % len(MARKERS)]


def _published(
    sketch: Sketch, axes: Axes, figure: Figure, point: PublishedPoint, label: str | None
) -> None:
    x = _at(figure, point.x)
    artists: list[Artist] = []
    if point.kind != "value":
        arrow = axes.annotate(
            "",
            xy=(x, point.y),
            xytext=(0, 30 if point.kind == "at_least" else -30),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<|-", "color": INK, "linewidth": 1.5},
            zorder=6,
        )
        assert arrow.arrow_patch is not None
        artists.append(arrow.arrow_patch)
    artists += axes.plot(
        [x],
        [point.y],
        marker=_published_marker(figure, point),
        linestyle="none",
        markersize=7.5,
        markerfacecolor=MUTED if point.fitted else PANEL,
        markeredgecolor=INK,
        markeredgewidth=1.8,
        label=label,
        zorder=7,
    )
    # Of several at one place, the lower ones are written below.
    below = any(other.x == point.x and other.y > point.y for other in figure.spec.published)
    written = axes.annotate(
        bound(point, figure.spec.y_unit),
        xy=(x, point.y),
        xytext=(-8, -15 if below else 7),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        fontweight="bold",
        color=INK,
        zorder=8,
    )
    exact = Point(point.x, point.y, point.y, point.y, 1)
    sketch.place(axes, _published_label(point), [(x, point.y, exact)], [*artists, written])
