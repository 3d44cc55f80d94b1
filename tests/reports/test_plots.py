"""Drawings: complete, readable, the same each time."""

from __future__ import annotations

import dataclasses
import re
import warnings

import pytest

from raytwin.reports import palette, plots
from raytwin.reports.figures import MEASURED, RAY, SIMULATED, Figure, build
from raytwin.scenarios.core.results import Record, Result
from raytwin.scenarios.core.scenario import Band, FigureSpec, PublishedPoint, Row
from tests.scenarios.synthetic import PLACEMENT, SCALING


@pytest.fixture
def figure(found: list[Result]) -> Figure:
    """A figure with all that there is to draw."""
    return build(SCALING.figures[0], [r for r in found if r.record.scenario == "scaling"])


def svg(figure: Figure) -> str:
    """Return the SVG of a figure."""
    return plots.drawn(figure).svg


def test_an_image_is_the_same_each_time(figure: Figure) -> None:
    assert svg(figure) == svg(figure)


def test_an_image_has_every_curve_in_the_colour_of_its_source(figure: Figure) -> None:
    drawn = svg(figure)
    assert [f"var(--sim{n})" in drawn for n in range(4)] == [True, True, True, False]
    assert [f"var(--mea{n})" in drawn for n in range(4)] == [True, False, False, False]
    for label in ("published", "simulated bottom-up", "measured this host"):
        assert f'data-legend="{label}"' in drawn, label
        assert f'data-series="{label}"' in drawn, label
    assert ">≥ 1.8M</text>" in drawn


def test_a_number_that_costs_were_fitted_to_looks_and_is_called_so() -> None:
    points = (PublishedPoint(1, 5.0, fitted=True), PublishedPoint(2, 9.0))
    spec = FigureSpec("Steps", "cpus", "rate", "CPUs", "steps/s", published=points)
    drawn = plots.drawn(build(spec, []))
    assert [mark.label for mark in drawn.marks] == ["published, fitted to", "published"]
    fitted, predicted = (
        re.search(f'data-series="{mark.label}".*?style="([^"]*)"/></g>', drawn.svg)[1]  # type: ignore[index]
        for mark in drawn.marks
    )
    assert fitted != predicted


def test_every_colour_of_a_drawing_is_one_of_the_page(figure: Figure, faulty: Figure) -> None:
    stacked = FigureSpec("t", "time_s", "first", "s", "tasks", stack=("again",), second="nodes")
    rows: list[Row] = [{"time_s": at, "first": 3, "again": 1, "nodes": 2} for at in range(4)]
    bars = build(stacked, [Result(Record("s", "sim", {}, 0, {}, {}, {}, []), rows)])
    for each in (figure, faulty, bars):
        assert re.findall("#[0-9a-f]{6}", svg(each)) == []
    assert "<pattern" in svg(bars), "told apart without colours, too"


def test_a_drawing_has_its_numbers_and_their_places(figure: Figure) -> None:
    drawn = plots.drawn(figure)
    marks = {mark.label: mark.points for mark in drawn.marks}
    width, height = map(float, re.search('viewBox="0 0 (\\S+) (\\S+)"', drawn.svg).groups())  # type: ignore[union-attr]
    assert marks["simulated bottom-up"][-1][2:] == (100, 1.8e6, 1.8e6, 1.8e6, 1)
    assert all(points[0][6] == 5 for label, points in marks.items() if "measured" in label)
    xs = [x for x, *_ in marks["simulated bottom-up"]]
    ys = [y for _, y, *_ in marks["simulated bottom-up"]]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True), "more is higher up"
    assert all(0 < x < width and 0 < y < height for points in marks.values() for x, y, *_ in points)


def test_identifiers_of_two_drawings_are_different(figure: Figure) -> None:
    one, two = (
        set(re.findall(' id="([^"]+)"', plots.drawn(figure, name).svg)) for name in ("one", "two")
    )
    assert one
    assert one.isdisjoint(two)


def test_nothing_to_complain_about(found: list[Result]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scenario in (SCALING, PLACEMENT):
            for spec in scenario.figures:
                some = [r for r in found if r.record.scenario == scenario.name]
                svg(build(spec, some))


def test_description_has_the_numbers(figure: Figure) -> None:
    told = plots.describe(figure)
    assert "simulated bottom-up: from 180K at 10 to 1.8M at 100" in told
    assert "published: ≥ 1M at 60" in told


@pytest.fixture
def faulty() -> Figure:
    """A figure over time of both worlds, each with a fault of its own."""
    spec = FigureSpec("Rates", "time_s", "rate", "time (s)", "results/s")
    found = []
    for backend, end in (("sim", 2.0), ("local", 3.5)):
        rows = [{"time_s": at, "rate": 10.0 * at} for at in range(5)]
        bands = [Band("time_s", 1.0, end, "kill node:1")]
        found.append(Result(Record("s", backend, {}, 0, {}, {}, {}, [], [], bands), rows))
    return build(spec, found)


def test_faults_are_shaded_and_each_world_has_a_panel(faulty: Figure) -> None:
    drawn = svg(faulty)
    assert drawn.count(">kill node:1<") == 2
    assert drawn.count("var(--band)") == 3, "one for each panel, and the legend's"
    alone = svg(dataclasses.replace(faulty, bands={}))
    assert "var(--band)" not in alone
    height, less = (
        float(re.search(r'viewBox="0 0 \S+ ([0-9.]+)"', each)[1]) for each in (drawn, alone)
    )  # type: ignore[index]
    assert height > 1.4 * less


def test_description_names_the_faults(faulty: Figure) -> None:
    told = plots.describe(faulty)
    assert "simulated fault: kill node:1, from 1 to 2" in told
    assert "measured fault: kill node:1, from 1 to 3.5" in told


@pytest.mark.parametrize(
    ("kind", "shown"), [("value", "5 ms"), ("at_least", "≥ 5 ms"), ("at_most", "≤ 5 ms")]
)
def test_bounds(kind: str, shown: str) -> None:
    assert plots.bound(PublishedPoint(1, 0.005, kind), "s") == shown  # type: ignore[arg-type]


def test_published_points_of_two_systems_are_told_apart_by_the_markers_of_their_series() -> None:
    points = tuple(
        PublishedPoint(x, y, series=series, system=system)
        for series, system, y in (("tasks", "Ray", 5.0), ("ranks", "MPI", 3.0))
        for x in (1, 16)
    )
    spec = FigureSpec("Steps", "cpus", "rate", "CPUs", "steps/s", ("system",), published=points)
    rows = [{"cpus": 1, "rate": 4.0, "system": system} for system in ("ranks", "tasks")]
    figure = build(spec, [Result(Record("s", "sim", {}, 0, {}, {}, {}, []), rows)])
    markers = {point.of: plots._published_marker(figure, point) for point in points}
    series = {curve.label: plots.MARKERS[curve.series] for curve in figure.curves}
    assert markers == {"Ray": series["tasks"], "MPI": series["ranks"]}
    assert markers["Ray"] != markers["MPI"]
    drawn = svg(figure)
    for system in markers:
        assert drawn.count(f'data-legend="published {system}"') == 1
    told = plots.describe(figure)
    assert "published Ray: 5 at 16" in told
    assert "published MPI: 3 at 1" in told
    unrun = build(spec, [])
    assert len({plots._published_marker(unrun, point) for point in points}) == 2


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_every_colour_can_be_read_on_its_panel(colours: dict[str, str]) -> None:
    assert colours.keys() == palette.LIGHT.keys()
    for name, colour in colours.items():
        if name in ("ink", "muted", "good", "bad", "warn"):
            assert contrast(colour, colours["panel"]) >= 4.5, name
        elif name[:-1] in ("sim", "mea", "ray"):
            assert contrast(colour, colours["panel"]) >= 3.0, name


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it."""
    lights = sorted(map(luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_ray_has_a_colour_and_markers_of_its_own() -> None:
    """So it is told from raytwin's own measurements, with colours and without."""
    others = {*plots.COLOURS[SIMULATED], *plots.COLOURS[MEASURED]}
    assert others.isdisjoint(plots.COLOURS[RAY])
    assert set(plots.MARKERS).isdisjoint(plots.RAY_MARKERS)
    rows: list[Row] = [{"nodes": nodes, "rate": 10.0 * nodes} for nodes in (1, 2)]
    some = [Result(Record("s", each, {}, 0, {}, {}, {}, []), rows) for each in ("local", "ray")]
    drawn = svg(build(FigureSpec("t", "nodes", "rate", "nodes", "tasks/s"), some))
    assert "var(--ray0)" in drawn
    for label in ("measured", "Ray"):
        assert f'data-legend="{label}"' in drawn
