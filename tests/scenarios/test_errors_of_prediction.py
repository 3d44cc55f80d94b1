"""Every scenario that is predicted and measured has its errors in the report."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from raytwin.reports.fidelity import judge
from raytwin.scenarios.core.results import Record, Result
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.figures import fig10a, fig10b, fig11b
from raytwin.scenarios.measure import registry

SMALL: dict[Any, dict[str, Any]] = {
    fig10a: {"seconds": 0.3, "kill_s": 0.1, "member": "tail"},
    fig10b: {"tasks": 6_000, "memory_max": 200_000},
    fig11b: {"actors": 10, "steps": 8, "kill_step": 5, "period_s": 0.3},
}


def test_a_scenario_on_sim_and_on_local_says_which_rows_predict_which() -> None:
    both = [each for each in registry.scenarios().values() if {"sim", "local"} <= {*each.backends}]
    assert both
    silent = [each.name for each in both if not any(spec.compare for spec in each.figures)]
    assert silent == []


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile as of this machine, with the paper's costs."""
    path = tmp_path / "profile.json"
    paper = files("raytwin.simulator").joinpath("profiles", "paper.json").read_bytes()
    path.write_bytes(paper.replace(b'"paper"', b'"this machine"'))
    return path


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.SCENARIO.name)
def test_each_prediction_of_a_scenario_has_one_measurement(module: Any, profile: Path) -> None:
    scenario = module.SCENARIO
    settings = scenario.settings("quick", {}) | SMALL[module]
    results = [
        Result(
            Record(scenario.name, backend, {}, 0, {}, {}, {}, []),
            scenario.run(Request(backend, settings=settings, profile=profile)).rows,
        )
        for backend in ("sim", "local")
    ]
    compares = [spec.compare for spec in scenario.figures if spec.compare]
    for found in (judge(compare, results) for compare in compares):
        assert found.pairs, found.compare.column
        assert not found.unpaired
        assert {pair.repeats for pair in found.pairs} == {1}
        assert all(pair.error is not None for pair in found.pairs), found.compare.column


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.SCENARIO.name)
def test_a_profile_changes_no_metric_of_the_papers_cluster(module: Any, profile: Path) -> None:
    """A prediction of this machine adds rows, and leaves what baselines hold."""
    slow = profile.read_bytes().replace(b'"turn_s": 5e-06', b'"turn_s": 5e-05')
    profile.write_bytes(slow)
    settings = module.SCENARIO.settings("quick", {}) | SMALL[module]
    runs = [
        module.SCENARIO.run(Request("sim", settings=settings, profile=given))
        for given in (None, profile)
    ]
    without, with_profile = runs
    assert with_profile.metrics == without.metrics
    assert len(with_profile.rows) > len(without.rows)
