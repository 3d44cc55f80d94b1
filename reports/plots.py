"""Drawing figures: an SVG for the report, a PNG for a README.

Colour says where a number is from (published, simulated, measured), marker and
dash say which series it is, the same on every source; so a figure can be read
without telling colours apart. The hues are blue and vermilion after Okabe and
Ito, which differ for every kind of colour vision.

The SVG names no colour and no font: it asks the page for its CSS variables, so
one drawing serves light and dark, and text stays text.
"""

from __future__ import annotations

import html
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from raytwin.reports.figures import MEASURED, SIMULATED, Curve, Figure
from raytwin.reports.numbers import short
from raytwin.scenarios.core.scenario import PublishedPoint

WIDE_IN = (9.4, 4.7)
NARROW_IN = (4.2, 3.9)
MARKERS = ("o", "s", "^", "v", "P", "X")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1.5, 2)))
SHADES = 4

LIGHT = {
    "panel": "#ffffff",
    "ink": "#16191d",
    "muted": "#59616b",
    "grid": "#e3e7ec",
    "sim0": "#0062ad",
    "sim1": "#2f93dd",
    "sim2": "#5b46b8",
    "sim3": "#00807a",
    "mea0": "#c8400a",
    "mea1": "#a86a00",
    "mea2": "#a92b6b",
    "mea3": "#7c5a1c",
}
DARK = {
    "panel": "#1a1e24",
    "ink": "#f0f3f6",
    "muted": "#a3adb8",
    "grid": "#2f363f",
    "sim0": "#5cb0ff",
    "sim1": "#a6d5ff",
    "sim2": "#b1a2ff",
    "sim3": "#4fd0c4",
    "mea0": "#ff8b52",
    "mea1": "#f2c04c",
    "mea2": "#f78fc2",
    "mea3": "#d8ab72",
}
# what stands for a CSS variable while matplotlib, which knows none, draws
_STAND_IN = {name: f"#0{index:x}f1e{index % 10}" for index, name in enumerate(LIGHT, start=1)}


@dataclass(frozen=True)
class Key:
    """One entry of a figure's legend, drawn in HTML by the report."""

    source: str
    label: str
    colour: str
    """Name of a colour of `LIGHT` and `DARK`."""
    marker: str
    dash: str | None
    """SVG ``stroke-dasharray``; None: no line."""


def colour_of(curve: Curve) -> str:
    """Return the name of a curve's colour."""
    return f"{'sim' if curve.source == SIMULATED else 'mea'}{curve.shade % SHADES}"


def legend(figure: Figure) -> list[Key]:
    """Return the legend: what was published first, then simulated, then measured."""
    keys = [Key("published", "", "ink", "D", None)] if figure.spec.published else []
    for curve in figure.curves:
        marker = MARKERS[curve.series % len(MARKERS)]
        dash = None
        if not figure.categories:
            dash = ("", "6 3", "1.5 2", "8 2.5 2 2.5")[curve.series % len(DASHES)]
        keys.append(Key(curve.source, curve.label, colour_of(curve), marker, dash))
    return keys


def svg(figure: Figure, identity: str, narrow: bool = False) -> str:
    """Return `figure` as an ``<svg>`` element for a page that styles it.

    `identity` makes the element's inner names unique within the page. The
    same figure gives the same text. Without legend; see `legend`.
    """
    size = NARROW_IN if narrow else WIDE_IN
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": identity, "text.parse_math": False}
    ):
        canvas = _draw(figure, _STAND_IN, size, narrow)
        buffer = io.StringIO()
        canvas.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return _for_page(buffer.getvalue(), identity, f"{figure.spec.title}: {describe(figure)}")


def save_png(figure: Figure, path: Path, dark: bool = False, dpi: int = 160) -> None:
    """Write `figure` with its legend to `path`. Raises OSError."""
    palette = DARK if dark else LIGHT
    with matplotlib.rc_context({"text.parse_math": False}):
        canvas = _draw(figure, palette, WIDE_IN, narrow=False)
        handles, labels = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=3,
            frameon=False,
            fontsize=9,
            labelcolor=palette["ink"],
        )
        canvas.savefig(path, dpi=dpi, facecolor=palette["panel"], metadata={"Software": None})


def describe(figure: Figure) -> str:
    """Return what the figure shows, in words, for those who cannot see it."""
    spec = figure.spec
    parts = [f"{spec.y_label} by {spec.x_label}"]
    for curve in figure.curves:
        first, last = curve.points[0], curve.points[-1]
        name = " ".join(filter(None, (curve.source, curve.label)))
        parts.append(
            f"{name}: from {short(first.y, spec.y_unit)} at {_x(figure, first.x)} "
            f"to {short(last.y, spec.y_unit)} at {_x(figure, last.x)}"
        )
    parts += [
        f"published: {bound(point, spec.y_unit)} at {_x(figure, point.x)}"
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


# -- drawing -----------------------------------------------------------------------


def _draw(
    figure: Figure, colours: dict[str, str], size: tuple[float, float], narrow: bool
) -> Canvas:
    canvas = Canvas(figsize=size, layout="constrained")
    canvas.patch.set_alpha(0)
    axes = canvas.add_subplot()
    # above the axis, where it can be read without turning the head
    canvas.suptitle(figure.spec.y_label, x=0.008, ha="left", fontsize=9.5, color=colours["muted"])
    axes.patch.set_alpha(0)
    _axes(axes, figure, colours, narrow)
    for curve in figure.curves:
        _curve(axes, figure, curve, colours[colour_of(curve)], colours["panel"])
    for index, point in enumerate(figure.spec.published):
        _published(axes, figure, point, colours, label="published" if index == 0 else None)
    _limits(axes, figure)
    return canvas


def _axes(axes: Axes, figure: Figure, colours: dict[str, str], narrow: bool) -> None:
    spec = figure.spec
    axes.set_xlabel(spec.x_label, fontsize=9.5, color=colours["muted"], labelpad=6)
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["muted"])
    axes.tick_params(labelsize=9, colors=colours["muted"], length=0, pad=5)
    axes.tick_params(axis="x", length=3)
    axes.set_yscale(spec.y_scale)
    if figure.categories:
        axes.set_xticks(range(len(figure.categories)), figure.categories)
    else:
        axes.set_xscale(spec.x_scale)
        ticks = _ticks(figure, narrow)
        axes.xaxis.set_major_locator(
            FixedLocator(ticks) if ticks else MaxNLocator(5 if narrow else 10)
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x, spec.x_unit)))
    if spec.y_scale == "log":
        axes.yaxis.set_major_locator(LogLocator(10, subs=_steps(figure), numticks=9))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: short(y, spec.y_unit)))


def _ticks(figure: Figure, narrow: bool) -> list[float]:
    """Return where on x something is, as far as labels find room there."""
    if figure.spec.x_scale != "log":
        return []
    xs = {float(point.x) for curve in figure.curves for point in curve.points}
    xs |= {float(point.x) for point in figure.spec.published}
    positive = sorted(x for x in xs if x > 0)
    if len(positive) < 2:
        return positive
    room = (positive[-1] / positive[0]) ** (0.13 if narrow else 0.06)
    ticks = [positive[-1]]
    for x in reversed(positive[:-1]):
        if ticks[-1] / x >= room:
            ticks.append(x)
    return ticks


def _steps(figure: Figure) -> tuple[float, ...]:
    """Return what within a decade of y gets a label: more, the fewer decades there are."""
    ys = [y for curve in figure.curves for point in curve.points for y in (point.low, point.high)]
    positive = [y for y in ys + [point.y for point in figure.spec.published] if y > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    return (1.0, 2.0, 5.0) if decades < 1.5 else (1.0, 3.0) if decades < 2.5 else (1.0,)


def _at(figure: Figure, x: Any, source: str = "") -> float:
    """Return where `x` is drawn; sources stand side by side in one category."""
    if not figure.categories:
        return float(x)
    aside = {SIMULATED: -0.1, MEASURED: 0.1}.get(source, 0.0)
    return figure.categories.index(str(x)) + aside


def _curve(axes: Axes, figure: Figure, curve: Curve, colour: str, panel: str) -> None:
    xs = [_at(figure, point.x, curve.source) for point in curve.points]
    ys = [point.y for point in curve.points]
    below = [max(point.y - point.low, 0.0) for point in curve.points]
    above = [max(point.high - point.y, 0.0) for point in curve.points]
    spread = [below, above] if any(below) or any(above) else None
    marker = MARKERS[curve.series % len(MARKERS)]
    # a line says that there is something between its points: not so between categories
    dash = "none" if figure.categories else DASHES[curve.series % len(DASHES)]
    label = ": ".join(filter(None, (curve.source, curve.label)))
    if curve.source == MEASURED:
        axes.plot(xs, ys, color=colour, alpha=0.35, linewidth=1.2, linestyle=dash, zorder=3)
        axes.errorbar(
            xs,
            ys,
            yerr=spread,
            fmt=marker,
            color=colour,
            markersize=7.5,
            markeredgecolor=panel,
            markeredgewidth=1.0,
            elinewidth=1.6,
            capsize=3.5,
            capthick=1.6,
            label=label,
            zorder=5,
        )
    else:
        axes.errorbar(
            xs,
            ys,
            yerr=spread,
            fmt=marker,
            color=colour,
            linestyle=dash,
            linewidth=2.2,
            markersize=7 if figure.categories else 4.5,
            elinewidth=1.0,
            label=label,
            zorder=4,
        )


def _published(
    axes: Axes, figure: Figure, point: PublishedPoint, colours: dict[str, str], label: str | None
) -> None:
    x = _at(figure, point.x)
    if point.kind != "value":
        axes.annotate(
            "",
            xy=(x, point.y),
            xytext=(0, 30 if point.kind == "at_least" else -30),
            textcoords="offset points",
            arrowprops={
                "arrowstyle": "<|-",
                "color": colours["ink"],
                "linewidth": 1.5,
                "shrinkA": 0,
                "shrinkB": 4,
            },
            zorder=6,
        )
    axes.plot(
        [x],
        [point.y],
        marker="D",
        linestyle="none",
        markersize=7.5,
        markerfacecolor=colours["panel"],
        markeredgecolor=colours["ink"],
        markeredgewidth=1.8,
        label=label,
        zorder=7,
    )
    # Of several at one place, the lower ones are written below.
    below = any(other.x == point.x and other.y > point.y for other in figure.spec.published)
    axes.annotate(
        bound(point, figure.spec.y_unit),
        xy=(x, point.y),
        xytext=(-8, -15 if below else 7),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        fontweight="bold",
        color=colours["ink"],
        bbox={"boxstyle": "round,pad=0.2", "facecolor": colours["panel"], "alpha": 0.8, "lw": 0},
        zorder=8,
    )


def _limits(axes: Axes, figure: Figure) -> None:
    """Leave room: above for arrows, beside for labels; linear y starts at 0."""
    axes.margins(x=0.05)
    axes.autoscale_view()
    if figure.categories:
        axes.set_xlim(-0.5, len(figure.categories) - 0.5)
    low, high = axes.get_ylim()
    arrows = any(point.kind == "at_least" for point in figure.spec.published)
    if figure.spec.y_scale == "log":
        room = 0.12 if arrows else 0.04
        axes.set_ylim(low, high * (high / low) ** room if low > 0 else high)
    else:
        values = [point.low for curve in figure.curves for point in curve.points]
        values += [point.y for point in figure.spec.published]
        start = 0.0 if not values or min(values) >= 0 else low
        axes.set_ylim(start, high + (high - start) * (0.12 if arrows else 0.03))


# -- from matplotlib's SVG to the page's -------------------------------------------


def _for_page(text: str, identity: str, title: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]*)"', rf'id="{identity}-\1"', text)
    text = re.sub(r"url\(#", f"url(#{identity}-", text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{identity}-', text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # how 3.10 and later name fonts
    text = re.sub(r"""(font: [^;"']*)'[^;"]*""", r"\1var(--font)", text)  # and earlier ones
    for name, stand_in in _STAND_IN.items():
        text = text.replace(stand_in, f"var(--{name})")
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None, "matplotlib's SVG has a viewBox"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box.group(0)} role="img" '
        f'aria-label="{html.escape(title)}">{rest.strip()}'
    )
