"""The benchmark drawn: raytwin against its peers as bars, and its history commit by commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from raytwin.reports import palette, svg
from raytwin.reports.figures import Point
from raytwin.reports.measurements import Bench, Night
from raytwin.reports.numbers import short
from raytwin.reports.plots import MUTED, plain_axes
from raytwin.reports.sketch import Drawn, Sketch

WIDTH_IN, BAR_IN, HEAD_IN = 9.4, 0.24, 1.0
ACROSS, SMALL_IN = 3, 1.5
LOOKS = (("mea0", ""), ("sim2", "////"), ("ray0", "...."), ("mea2", "xxxx"))
"""Colour and hatch of each peer's bars."""


def against_peers(bench: Bench | None) -> Drawn | None:
    """Return how many times as fast raytwin is as each peer; None if no peer was measured.

    Bars are medians of the ratios within a round, lines go from the lowest to the highest.
    """
    rows = [case for case in bench.rows if case.ratios] if bench else []
    peers = list(dict.fromkeys(peer for case in rows for peer in case.ratios))
    if not rows:
        return None
    with svg.settings():
        sketch = Sketch(WIDTH_IN, HEAD_IN + BAR_IN * len(rows) * (len(peers) + 0.6))
        axes = sketch.canvas.subplots()
        plain_axes(axes, "x")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        thick = 0.8 / len(peers)
        for number, peer in enumerate(peers):
            name, hatch = LOOKS[number % len(LOOKS)]
            mine = [(row, case) for row, case in enumerate(rows) if peer in case.ratios]
            ys = [row + (number - (len(peers) - 1) / 2) * thick for row, _ in mine]
            ratios = [case.ratios[peer] for _, case in mine]
            spread = [case.ratio_range[peer] for _, case in mine]
            label = f"against {peer.capitalize()}"
            bars = axes.barh(
                ys,
                [ratio - 1 for ratio in ratios],
                thick * 0.86,
                left=1,
                color=palette.LIGHT[name],
                hatch=hatch or None,
                edgecolor=palette.LIGHT["panel"],
                linewidth=0.4,
                label=label,
            )
            whiskers = axes.errorbar(
                ratios,
                ys,
                xerr=[
                    [ratio - low for ratio, (low, _) in zip(ratios, spread, strict=True)],
                    [high - ratio for ratio, (_, high) in zip(ratios, spread, strict=True)],
                ],
                fmt="none",
                ecolor=palette.LIGHT["ink"],
                elinewidth=1.1,
                capsize=2.5,
            )
            points = [
                (ratio, y, Point(case.name, ratio, low, high, case.rounds))
                for y, ratio, (low, high), (_, case) in zip(ys, ratios, spread, mine, strict=True)
            ]
            sketch.place(axes, label, points, [*bars, *whiskers.get_children()])
        axes.axvline(1, color=palette.LIGHT["ink"], linewidth=1)
        axes.set_yticks(range(len(rows)), [case.name for case in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("times as fast as the peer, or as small", fontsize=9.5, color=MUTED)
        sketch.legend(len(peers))
        words = "; ".join(
            f"{case.name}: " + ", ".join(f"{n:.3g} times {peer}" for peer, n in case.ratios.items())
            for case in rows
        )
        return sketch.finished("benchmarks-1", f"raytwin against its peers: {words}")


def history(nights: Sequence[Night]) -> Drawn | None:
    """Return the medians of each case over time, a panel each; None with less than two dates."""
    names = list(dict.fromkeys(each.name for night in nights for each in night.benches))
    if len(nights) < 2:
        return None
    with svg.settings():
        down = -(-len(names) // ACROSS)
        sketch = Sketch(WIDTH_IN, 0.6 + SMALL_IN * down)
        panels = sketch.canvas.subplots(down, ACROSS, sharex=True, squeeze=False)
        for number, axes in enumerate(panels.flat):
            if number < len(names):
                _over_time(sketch, axes, names[number], nights)
            else:
                axes.remove()
                panels.flat[number - ACROSS].xaxis.set_tick_params(labelbottom=True)
        words = f"Medians of {len(names)} cases at {len(nights)} commits"
        return sketch.finished("history-1", words)


def _over_time(sketch: Sketch, axes: Axes, name: str, nights: Sequence[Night]) -> None:
    """Draw the medians of one case by the number of the night, with their spread."""
    plain_axes(axes, "y")
    xs, points, unit = [], [], ""
    for number, night in enumerate(nights):
        for each in night.benches:
            if each.name == name:
                where = f"{_day(night)}, {night.commit.id[:9]}"
                low, high = each.value - each.half, each.value + each.half
                xs.append(number)
                points.append(Point(where, each.value, low, high, 1))
                unit = each.unit
    panel = f"{name} ({unit})"
    lines = axes.plot(
        xs,
        [point.y for point in points],
        color=palette.LIGHT["mea0"],
        marker="o",
        markersize=3.5,
        linewidth=1.2,
    )
    area = axes.fill_between(
        xs,
        [point.low for point in points],
        [point.high for point in points],
        color=palette.LIGHT["mea0"],
        alpha=0.2,
        linewidth=0,
    )
    axes.set_title(panel, fontsize=8.5, color=MUTED, loc="left")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xticks([0, len(nights) - 1], [_day(nights[0]), _day(nights[-1])])
    placed = [(x, point.y, point) for x, point in zip(xs, points, strict=True)]
    sketch.place(axes, "raytwin", placed, [*lines, area], panel)


def _day(night: Night) -> str:
    return datetime.fromtimestamp(night.date / 1000, UTC).date().isoformat()
