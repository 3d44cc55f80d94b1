"""A drawing that is being made: the canvas, and the numbers that are in it.

The page shows the number at which one points, and writes all of them as CSV. So whoever draws
points says so (`Sketch.place`): where they are on their axes, and of which series.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from raytwin.reports import palette, svg
from raytwin.reports.figures import Point

PNG_DPI = 110


@dataclass(frozen=True)
class Mark:
    """A series of points of a panel; each is (x and y in the SVG, x, y, lowest, highest, runs)."""

    label: str
    panel: str
    """Empty where the drawing has one."""
    points: tuple[tuple[float, float, Any, float, float, float, int], ...]


@dataclass(frozen=True)
class Drawn:
    """A drawing, and what is in it."""

    svg: str
    """An element for a page."""
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class _Placed:
    """Points of one label on one pair of axes; where each is drawn there, and the point."""

    axes: Axes
    label: str
    points: Sequence[tuple[float, float, Point]]
    panel: str


class Drawing(Canvas):
    """A figure of matplotlib that a notebook shows by itself, without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=PNG_DPI)
        return buffer.getvalue()


class Sketch:
    """A canvas that is being drawn, and the points that have been placed on it."""

    def __init__(self, width_in: float, height_in: float) -> None:
        self.canvas = Drawing(figsize=(width_in, height_in), dpi=svg.DPI, layout="constrained")
        self.placed: list[_Placed] = []

    def place(
        self,
        axes: Axes,
        label: str,
        points: Sequence[tuple[float, float, Point]],
        artists: Iterable[Artist],
        panel: str = "",
    ) -> None:
        """Keep points with their place, and mark what was drawn for them as theirs."""
        self.placed.append(_Placed(axes, label, points, panel))
        for artist in artists:
            artist.set_gid(svg.SERIES + label)

    def legend(self, columns: int, handles: Sequence[Artist] | None = None) -> None:
        """Draw the legend below all axes, of `handles` or of what has a label.

        Its entries can be told by their labels.
        """
        given = {} if handles is None else {"handles": handles}
        legend = self.canvas.legend(
            **given,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=9,
            labelcolor=palette.LIGHT["ink"],
        )
        for text in legend.get_texts():
            text.set_gid(svg.LEGEND + text.get_text())

    def finished(self, name: str, words: str) -> Drawn:
        """Lay all out, and return the drawing."""
        engine = self.canvas.get_layout_engine()
        assert engine is not None, "the canvas was made with one"
        engine.execute(self.canvas)
        # All has its place now: to lay it out again would take as long again.
        self.canvas.set_layout_engine("none")
        height = self.canvas.get_figheight() * svg.DPI
        marks: dict[tuple[str, str], list[Any]] = {}
        for each in self.placed:
            for x, y, point in each.points:
                across, up = each.axes.transData.transform((x, y))
                numbers = (significant(n) for n in (point.y, point.low, point.high))
                marks.setdefault((each.label, each.panel), []).append(
                    (round(across, 1), round(height - up, 1), point.x, *numbers, point.count)
                )
        return Drawn(
            svg.inline(self.canvas, name, words),
            tuple(Mark(*key, tuple(points)) for key, points in marks.items()),
        )


def significant(value: float) -> float:
    """Return a number to seven digits, which is more than anybody reads off a figure.

    >>> significant(1234567.891), significant(0.1 + 0.2), significant(5)
    (1234568.0, 0.3, 5.0)
    """
    return float(f"{value:.7g}")
