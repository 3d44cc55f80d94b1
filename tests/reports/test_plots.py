"""Drawings: themed by the page, the same each time, also as a PNG."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from raytwin.reports import plots
from raytwin.reports.figures import Figure, build
from raytwin.scenarios.core.results import Result
from raytwin.scenarios.core.scenario import PublishedPoint
from tests.scenarios.synthetic import PLACEMENT, SCALING


@pytest.fixture
def figure(found: list[Result]) -> Figure:
    """A figure with all that there is to draw."""
    return build(SCALING.figures[0], [r for r in found if r.record.scenario == "scaling"])


@pytest.mark.parametrize("narrow", [False, True])
def test_svg_takes_colours_and_font_from_the_page(figure: Figure, narrow: bool) -> None:
    drawn = plots.svg(figure, "a", narrow)
    assert not re.findall(r"#[0-9a-f]{6}", drawn)
    assert "DejaVu" not in drawn
    assert {"--sim0", "--sim1", "--mea0", "--ink"} <= set(re.findall(r"var\((--\w+)\)", drawn))
    assert ">100<" in drawn
    assert "<metadata" not in drawn
    assert "<style" not in drawn


def test_svg_is_the_same_each_time_and_differs_by_identity(figure: Figure) -> None:
    assert plots.svg(figure, "a") == plots.svg(figure, "a")
    ids = [set(re.findall(r'id="([^"]+)"', plots.svg(figure, name))) for name in "ab"]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_nothing_to_complain_about(found: list[Result]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scenario in (SCALING, PLACEMENT):
            for spec in scenario.figures:
                some = [r for r in found if r.record.scenario == scenario.name]
                plots.svg(build(spec, some), "a")


def test_legend_has_every_curve_and_no_look_twice(figure: Figure) -> None:
    keys = plots.legend(figure)
    assert [key.source for key in keys] == ["published", *["simulated"] * 3, "measured"]
    looks = [(key.colour, key.marker, key.dash) for key in keys]
    assert len(set(looks)) == len(looks)


def test_description_has_the_numbers(figure: Figure) -> None:
    told = plots.describe(figure)
    assert "simulated bottom-up: from 180K at 10 to 1.8M at 100" in told
    assert "published: ≥ 1M at 60" in told


@pytest.mark.parametrize(
    ("kind", "shown"), [("value", "5 ms"), ("at_least", "≥ 5 ms"), ("at_most", "≤ 5 ms")]
)
def test_bounds(kind: str, shown: str) -> None:
    assert plots.bound(PublishedPoint(1, 0.005, kind), "s") == shown  # type: ignore[arg-type]


@pytest.mark.parametrize("dark", [False, True])
def test_png(figure: Figure, tmp_path: Path, dark: bool) -> None:
    path = tmp_path / "figure.png"
    plots.save_png(figure, path, dark)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_every_colour_can_be_read_on_its_panel() -> None:
    for palette in (plots.LIGHT, plots.DARK):
        for name, colour in palette.items():
            if name in ("panel", "grid"):
                continue
            least = 4.5 if name in ("ink", "muted") else 3.0
            assert contrast(colour, palette["panel"]) >= least, (name, colour)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it."""
    lights = sorted(map(luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
