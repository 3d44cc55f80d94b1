"""The table that opens the report: one word for each figure and table of the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raytwin.reports.html import render
from raytwin.reports.standing import Standing, row_of
from raytwin.scenarios.core.results import CheckRecord, Record, Result
from raytwin.scenarios.core.scenario import Headline, PublishedPoint, Scenario
from tests.scenarios import synthetic

AT_100 = PublishedPoint(100, 200.0)


def scenario(**changes: Any) -> Scenario:
    given: dict[str, Any] = {
        "what": "tasks/s",
        "simulated": lambda metrics: metrics["rate"],
        "published": AT_100,
        **changes,
    }
    some = next(iter(synthetic.GOOD.values()))
    return replace(some, headline=Headline(**given))


def result(backend: str, rate: float | None, ok: bool = True) -> Result:
    metrics = {} if rate is None else {"rate": rate}
    return Result(Record("s", backend, {}, 0, {}, {}, metrics, [CheckRecord("c", ok, "")]), [])


@pytest.mark.parametrize(
    ("changes", "results", "standing"),
    [
        ({}, [result("sim", 240.0)], Standing.REPRODUCED),
        ({}, [result("sim", 251.0)], Standing.MISSED),
        ({}, [result("sim", 240.0, ok=False)], Standing.MISSED),
        ({}, [result("sim", 240.0), result("local", 1.0, ok=False)], Standing.MISSED),
        ({}, [result("local", 240.0)], Standing.NOT_RUN),
        ({}, [result("sim", None)], Standing.NOT_RUN),
        ({"fitted": "all"}, [result("sim", 200.0)], Standing.FITTED),
        ({"fitted": "all"}, [result("sim", 2.0)], Standing.MISSED),
        ({"published": None}, [result("sim", 5.0)], Standing.SHAPE_ONLY),
        ({"published": replace(AT_100, kind="at_least")}, [result("sim", 999.0)],
         Standing.REPRODUCED),
        ({"published": replace(AT_100, kind="at_least")}, [result("sim", 199.0)],
         Standing.MISSED),
        ({"published": replace(AT_100, kind="at_most")}, [result("sim", 1.0)],
         Standing.REPRODUCED),
        ({"published": replace(AT_100, kind="at_most")}, [result("sim", 201.0)],
         Standing.MISSED),
    ],
)  # fmt: skip
def test_one_word_judges_a_figure(
    changes: dict[str, Any], results: list[Result], standing: Standing
) -> None:
    assert row_of(scenario(**changes), results, []).standing is standing


def test_the_error_is_against_the_published_value() -> None:
    at_least = replace(AT_100, kind="at_least")
    assert row_of(scenario(), [result("sim", 150.0)], []).error == pytest.approx(-0.25)
    assert row_of(scenario(published=at_least), [result("sim", 300.0)], []).error is None
    missed = row_of(scenario(published=at_least), [result("sim", 100.0)], [])
    assert missed.error == pytest.approx(-0.5)


def test_peers_are_those_of_the_run_and_ray() -> None:
    some = scenario(peer=lambda metrics: metrics["rate"] / 2, peer_name="MPI")
    row = row_of(some, [result("local", 8.0), result("ray", 3.0)], [])
    assert (row.measured, row.peers) == (8.0, (("MPI", 4.0), ("Ray", 3.0)))


def test_what_was_not_run_is_in_the_table(found: list[Result]) -> None:
    some = scenario()
    further = replace(some, name="later", figure="Table 9")
    page = render(found, {**synthetic.GOOD, some.name: some, "later": further})
    assert "Table 9" in page
    assert "raytwin run later" in page


def test_nothing_is_green_while_an_aim_is_missed(found: list[Result]) -> None:
    """The synthetic predictions miss their aims."""
    some = scenario(published=None)
    front = render(found, {**synthetic.GOOD, some.name: some}).partition("</header>")[0]
    assert "predictions within their aim" in front
    assert 'class="good"' not in front
