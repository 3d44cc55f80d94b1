"""Ratios between systems: each says why its sign may differ, from what its run measured."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.reports.standing import has_sign_of, row_of
from raytwin.scenarios.core.results import Record, Result
from raytwin.scenarios.core.scenario import Ratio
from raytwin.scenarios.figures import fig12a, fig13, fig14a, fig14b, table3, table4
from raytwin.scenarios.peers import times_alone

WITH_PEERS = (fig12a, fig13, fig14a, fig14b, table3, table4)
"""The figures and tables of which the paper has a ratio between systems."""


class Metrics(dict[str, float]):
    """Has whatever a ratio asks for."""

    def __init__(self, value: float, **given: float) -> None:
        super().__init__(given)
        self.value = value
        self.asked: set[str] = set()

    def __missing__(self, name: str) -> float:
        self.asked.add(name)
        return self.value


def ratios() -> list[tuple[str, Ratio]]:
    return [(module.SCENARIO.name, r) for module in WITH_PEERS for r in module.SCENARIO.ratios]


@pytest.mark.parametrize(("name", "ratio"), ratios())
def test_a_ratio_explains_itself_with_numbers_of_its_run(name: str, ratio: Ratio) -> None:
    sizes = {"tasks_as_they_come_to_mpi_2_cpus": 0.5, "tasks_as_they_come_to_mpi_1_cpus": 0.5}
    few, many = Metrics(2.5e5, **sizes), Metrics(7.5e5, **sizes)
    why = ratio.why(few)
    assert why != ratio.why(many), "it says what was measured"
    assert few.asked
    with pytest.raises(KeyError):
        ratio.found({})


def test_every_comparison_of_the_paper_is_made_on_real_processes() -> None:
    found = {name for name, ratio in ratios() if ratio.backend == "local"}
    assert found == {module.SCENARIO.name for module in WITH_PEERS}


@pytest.mark.parametrize("module", WITH_PEERS)
def test_a_run_without_the_peer_has_no_ratio(module: Any) -> None:
    result = Result(Record(module.SCENARIO.name, "local", {}, 0, {}, {}, {}, []), [])
    assert row_of(module.SCENARIO, [result], []).ratios == ()


def test_the_cause_on_a_large_vector_is_not_that_on_a_small_one() -> None:
    metrics = {
        "times_faster_than_mpi_1_mb_on_2_nodes": 3.0,
        "fastest_s_1_mb_on_2_nodes": 0.010, "slowest_s_1_mb_on_2_nodes": 0.085,
        "fastest_mpi_s_1_mb_on_2_nodes": 0.001, "slowest_mpi_s_1_mb_on_2_nodes": 0.092,
    }  # fmt: skip
    result = Result(Record("fig12a", "local", {}, 0, {}, {}, metrics, []), [])
    (found,) = row_of(fig12a.SCENARIO, [result], []).ratios
    assert not has_sign_of(found.found, found.ratio.published)
    assert "MPI took 1 to 92 ms, raytwin 10 to 85 ms" in found.why
    assert "at their best MPI is 10 times faster, as published" in found.why
    assert "500 KB" in found.why and "2 hops" in found.why


def test_times_are_measured_by_a_process_of_its_own() -> None:
    small = times_alone.measured("sgd_s", 1, 16, 8)
    large = times_alone.measured("sgd_s", 4, 512, 128)
    assert all(0.0 < least < most for least, most in zip(small, large, strict=True))
    small = times_alone.measured("passes_s", 100_000, 2)
    large = times_alone.measured("passes_s", 100_000, 2, 10_000_000, 2)[2:]
    assert all(0.0 < least < most for least, most in zip(small, large, strict=True))
    (small_s,) = times_alone.measured("policy_s", 64, 4_000)
    (large_s,) = times_alone.measured("policy_s", 64, 100_000)
    assert 0.0 < small_s < large_s
