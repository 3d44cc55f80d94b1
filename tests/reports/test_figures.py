"""Rows become curves: medians with spread, one series one marker, filters."""

from __future__ import annotations

import dataclasses

import pytest

from raytwin.reports.figures import MEASURED, RAY, SIMULATED, build, check_columns
from raytwin.scenarios.core.results import Record, Result, ResultError
from raytwin.scenarios.core.scenario import Band, FigureSpec, PublishedPoint, Row

SPEC = FigureSpec("t", "nodes", "rate", "nodes", "rate", series=("policy",))


def result(backend: str, rows: list[Row]) -> Result:
    return Result(Record("s", backend, {}, 0, {}, {}, {}, []), rows)


def row(policy: str, nodes: object, rate: object, **more: object) -> Row:
    return {"policy": policy, "nodes": nodes, "rate": rate, **more}


def test_median_and_spread_by_x_in_order() -> None:
    rows = [row("a", 2, 5), row("a", 1, 10), row("a", 1, 30), row("a", 1, 11)]
    (curve,) = build(SPEC, [result("local", rows)]).curves
    assert curve.source == MEASURED
    first, second = curve.points
    assert (first.x, first.y, first.low, first.high, first.count) == (1, 11, 10, 30, 3)
    assert (second.x, second.y, second.count) == (2, 5, 1)


def test_one_series_is_the_same_on_each_source_and_shades_are_by_source() -> None:
    figure = build(
        SPEC,
        [
            result("local", [row("b", 1, 1)]),
            result("sim", [row("a", 1, 1), row("b", 1, 1)]),
        ],
    )
    seen = {(c.source, c.label): (c.series, c.shade) for c in figure.curves}
    assert seen[SIMULATED, "b"][0] == seen[MEASURED, "b"][0] != seen[SIMULATED, "a"][0]
    assert (seen[SIMULATED, "a"][1], seen[SIMULATED, "b"][1], seen[MEASURED, "b"][1]) == (0, 1, 0)
    assert [c.source for c in figure.curves] == [SIMULATED, SIMULATED, MEASURED]
    assert seen[SIMULATED, "a"][0] == 0


def test_filters_and_missing_cells() -> None:
    rows = [row("a", 1, 1), row("b", 1, 1), row("a", None, 1), row("a", 2, None)]
    spec = dataclasses.replace(SPEC, where={"policy": "a", "backend": "sim"})
    figure = build(spec, [result("sim", rows), result("local", rows)])
    assert [(c.source, c.label, len(c.points)) for c in figure.curves] == [(SIMULATED, "a", 1)]


def test_named_spread_columns() -> None:
    spec = dataclasses.replace(SPEC, y_min="low", y_max="high")
    rows = [row("a", 1, 5, low=1, high=9), row("a", 1, 6, low=2, high=8)]
    (curve,) = build(spec, [result("local", rows)]).curves
    assert (curve.points[0].low, curve.points[0].high) == (1, 9)


def test_texts_on_x_are_categories_in_order_of_appearance() -> None:
    spec = dataclasses.replace(SPEC, published=(PublishedPoint("mpi", 3),))
    figure = build(spec, [result("sim", [row("a", "ray", 1), row("a", "dask", 2)])])
    assert figure.categories == ("ray", "dask", "mpi")


@pytest.mark.parametrize("value", ["fast", True, 1e300])
def test_what_cannot_be_drawn_names_file_and_column(value: object) -> None:
    with pytest.raises(ResultError, match=r"local/rows\.csv: column 'rate'"):
        build(SPEC, [result("local", [row("a", 1, value)])])


def test_nothing_to_draw() -> None:
    assert not build(SPEC, []).drawable
    assert build(dataclasses.replace(SPEC, published=(PublishedPoint(1, 1),)), []).drawable


@pytest.mark.parametrize("rows", [[], [{"a": 1, "b": 2}], [{"nodes": 1}], [row("a", 1, None)]])
def test_rows_without_the_columns_of_any_figure_are_refused(rows: list[Row]) -> None:
    other = dataclasses.replace(SPEC, y="speed")
    with pytest.raises(ResultError) as raised:
        check_columns((SPEC, other), result("local", rows))
    (line,) = str(raised.value).splitlines()
    assert line.startswith("local/rows.csv: no figure can be drawn from it")
    assert line.endswith("(of nodes, rate, speed)")
    check_columns((SPEC, other), result("local", [*rows, {"nodes": 1, "speed": 2}]))
    check_columns((), result("local", rows))


def test_bands_are_of_the_axis_and_of_the_rows_that_are_drawn() -> None:
    def band(label: str, column: str = "nodes", **where: str) -> Band:
        return Band(column, 1.0, 2.0, label, where)

    found = result("sim", [row("a", 1, 1), row("a", 2, 1)])
    found.record.bands += [
        band("all"), band("all"), band("of a", policy="a"), band("of b", policy="b"),
        band("of another axis", "time_s"),
    ]  # fmt: skip
    spec = dataclasses.replace(SPEC, where={"policy": ("a", "c")})
    bands = build(spec, [found, result("local", [row("a", 1, 1)])]).bands
    assert {source: [b.label for b in some] for source, some in bands.items()} == {
        SIMULATED: ["all", "of a"]
    }


def test_sources_have_panels_where_faults_are_shaded() -> None:
    sim, local = (result(backend, [row("a", 1, 1)]) for backend in ("sim", "local"))
    assert build(SPEC, [sim, local]).panels == ()
    sim.record.bands.append(Band("nodes", 1.0, 2.0, "a fault"))
    assert build(SPEC, [sim, local]).panels == (SIMULATED, MEASURED)
    assert build(SPEC, [sim]).panels == ()


def test_ray_is_a_source_of_its_own_below_the_others() -> None:
    sim, local, ray = (result(name, [row("a", 1, 1)]) for name in ("sim", "local", "ray"))
    sim.record.bands.append(Band("nodes", 1.0, 2.0, "a fault"))
    figure = build(SPEC, [ray, sim, local])
    assert [curve.source for curve in figure.curves] == [SIMULATED, MEASURED, RAY]
    assert figure.panels == (SIMULATED, MEASURED, RAY)
    assert build(SPEC, [sim, ray]).panels == (SIMULATED, RAY)


def test_categories_have_no_bands() -> None:
    found = result("sim", [row("a", "one", 1)])
    found.record.bands.append(Band("nodes", 1.0, 2.0, "a fault"))
    assert build(SPEC, [found]).bands == {}
