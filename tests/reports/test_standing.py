"""The table that opens the report: one word for each figure and table of the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raytwin.reports.html import render
from raytwin.reports.standing import LEVEL, Standing, has_sign_of, row_of
from raytwin.scenarios.core.results import CheckRecord, Record, Result
from raytwin.scenarios.core.scenario import Headline, PublishedPoint, Ratio, Scenario
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


@pytest.mark.parametrize(
    ("published", "found", "same"),
    [
        (PublishedPoint(0, 1.5), 1.01, True),
        (PublishedPoint(0, 1.5), 0.99, False),
        (PublishedPoint(0, 0.5), 0.99, True),
        (PublishedPoint(0, 0.5), 1.01, False),
        (PublishedPoint(0, 1.0, "at_least"), 1.2, True),
        (PublishedPoint(0, 1.0, "at_least"), 0.9, False),
        (PublishedPoint(0, 1.0, "at_most"), 0.9, True),
        (PublishedPoint(0, 1.0, "at_most"), 1.2, False),
        (PublishedPoint(0, 1.0), 1 + 0.9 * LEVEL, True),
        (PublishedPoint(0, 1.0), 1 + 1.1 * LEVEL, False),
        (PublishedPoint(0, 1.0), 1 - 1.1 * LEVEL, False),
    ],
)
def test_a_ratio_has_the_published_sign_or_not(
    published: PublishedPoint, found: float, same: bool
) -> None:
    assert has_sign_of(found, published) is same


def test_the_page_says_why_a_sign_differs_and_only_then() -> None:
    ratio = Ratio(
        "tasks/s, against MPI",
        PublishedPoint("16", 1.5),
        lambda metrics: metrics["rate"],
        lambda metrics: f"MPI <polls> at {metrics['rate']:g}",
    )
    some = replace(scenario(), ratios=(ratio,), figures=())
    for rate, why in ((1.2, ""), (0.8, "MPI &lt;polls&gt; at 0.8")):
        page = render([result("local", rate)], {**synthetic.GOOD, "s": replace(some, name="s")})
        between = page.partition("Between systems")[2].partition("</table>")[0]
        assert "tasks/s, against MPI, measured" in between
        assert ("the same" in between) is not bool(why)
        assert why in between
        assert ("polls" in between) is bool(why)
    page = render([result("sim", 0.8)], {**synthetic.GOOD, "s": replace(some, name="s")})
    assert "Between systems" not in page, "the peer ran on local alone"


def test_a_run_too_small_to_say_why_says_that() -> None:
    ratio = Ratio(
        "tasks/s",
        PublishedPoint("16", 1.5),
        lambda metrics: metrics["rate"],
        lambda metrics: f"{metrics['rate_of_mpi']}",
    )
    (found,) = row_of(replace(scenario(), ratios=(ratio,)), [result("local", 0.5)], []).ratios
    assert found.why == "the run was too small to say why: it has no rate_of_mpi"
