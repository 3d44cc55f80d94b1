"""Predicted against measured: a small panel for each comparison of a figure.

On the diagonal a prediction is right; the area around it is the aim, without noise. What is beyond
the aim, and beyond twice its noise floor, has another marker, too. Lines go from the lowest
measurement to the highest.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from raytwin.reports import palette, svg
from raytwin.reports.fidelity import Fidelity, Pair
from raytwin.reports.figures import Point
from raytwin.reports.numbers import show, with_unit
from raytwin.reports.plots import INK, MUTED, PANEL, plain_axes
from raytwin.reports.sketch import Drawn, Sketch

WIDTH_IN, SMALL_IN, ACROSS = 9.4, 2.9, 3
ROOM = 1.4
"""Times the largest, and below the smallest, that is seen."""
WITHIN, BEYOND, UNJUDGED = "within its aim", "beyond its aim", "without an aim"
LOOKS = {WITHIN: ("good", "o", True), BEYOND: ("bad", "X", True), UNJUDGED: ("sim0", "o", False)}
"""Colour, marker, whether it is filled."""


def predictions(found: Sequence[tuple[str, Fidelity]], drawing: str = "fidelity-1") -> Drawn | None:
    """Return the panels for comparisons that have pairs, each with its name; or None."""
    drawn = [(name, each, pairs) for name, each in found if (pairs := _positive(each))]
    if not drawn:
        return None
    with svg.settings():
        down = -(-len(drawn) // ACROSS)
        sketch = Sketch(WIDTH_IN, 0.5 + SMALL_IN * down)
        panels = sketch.canvas.subplots(down, ACROSS, squeeze=False)
        named: set[str] = set()
        for number, axes in enumerate(panels.flat):
            if number < len(drawn):
                name, each, pairs = drawn[number]
                _panel(sketch, axes, f"{name}: {each.compare.column}", each, pairs, named)
            else:
                axes.remove()
        sketch.canvas.supxlabel("measured", fontsize=9.5, color=MUTED)
        sketch.canvas.supylabel("predicted", fontsize=9.5, color=MUTED)
        sketch.legend(3)
        words = f"Predicted against measured, {sum(len(pairs) for *_, pairs in drawn)} pairs"
        return sketch.finished(drawing, words)


def _positive(found: Fidelity) -> list[Pair]:
    """Return the pairs that a logarithmic axis can have."""
    return [pair for pair in found.pairs if pair.predicted > 0 and pair.low > 0]


def _panel(
    sketch: Sketch,
    axes: Axes,
    title: str,
    found: Fidelity,
    pairs: Sequence[Pair],
    named: set[str],
) -> None:
    plain_axes(axes, "both")
    low = min(min(pair.predicted, pair.low) for pair in pairs) / ROOM
    high = max(max(pair.predicted, pair.high) for pair in pairs) * ROOM
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.9, zorder=1)
    if found.compare.aim_percent is not None:
        aim = found.compare.aim_percent / 100
        axes.fill_between(
            [low, high],
            [low * (1 - aim), high * (1 - aim)],
            [low * (1 + aim), high * (1 + aim)],
            color=palette.LIGHT["band"],
            alpha=0.7,
            linewidth=0,
            zorder=0.5,
        )
    for label, (name, marker, filled) in LOOKS.items():
        mine = [pair for pair in pairs if _judged(pair) == label]
        if not mine:
            continue
        colour = palette.LIGHT[name]
        whiskers = axes.errorbar(
            [pair.measured for pair in mine],
            [pair.predicted for pair in mine],
            xerr=[
                [max(0.0, pair.measured - pair.low) for pair in mine],
                [max(0.0, pair.high - pair.measured) for pair in mine],
            ],
            fmt=marker,
            color=colour,
            markersize=5.5,
            markerfacecolor=colour if filled else PANEL,
            markeredgecolor=PANEL if filled else colour,
            markeredgewidth=0.7,
            elinewidth=1,
            label=None if label in named else label,
            zorder=3,
        )
        named.add(label)
        points = [
            (
                pair.measured,
                pair.predicted,
                Point(pair.measured, pair.predicted, pair.low, pair.high, pair.repeats),
            )
            for pair in mine
        ]
        sketch.place(axes, label, points, whiskers.get_children(), title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: with_unit(value, found.compare.column))
        )
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    typical = found.typical
    error = f"\nmedian error {show(round(typical * 100, 1))} %" if typical is not None else ""
    axes.set_title(title.replace("_", " ") + error, fontsize=8, color=INK, loc="left")


def _judged(pair: Pair) -> str:
    return UNJUDGED if pair.good is None else WITHIN if pair.good else BEYOND
