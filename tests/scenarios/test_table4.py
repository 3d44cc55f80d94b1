"""Table 4: simulations as tasks and in rounds, predicted with MPI modelled, measured under MPI."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import raytwin as ray
from raytwin.scenarios.core.scenario import Outcome, Request
from raytwin.scenarios.figures import table4
from raytwin.scenarios.measure import runner
from raytwin.scenarios.peers import PeerError, mpi
from raytwin.scenarios.workloads import simulations
from raytwin.scenarios.workloads.simulations import Episode, episodes, in_rounds_s
from tests.requirements import require


def request(backend: str, **given: str) -> Request:
    return Request(
        backend, settings=table4.SCENARIO.settings("quick", {"repeats": "1", "draws": "2", **given})
    )


def rate(outcome: Outcome, system: str, cpus: int) -> float:
    (found,) = [
        row["timesteps_per_s"]
        for row in outcome.rows
        if (row["system"], row["cpus"]) == (system, cpus)
    ]
    return float(found)


@pytest.fixture
def pendulum() -> None:
    require("peers", not simulations.missing(), simulations.missing())


def test_runs_are_three_a_cpu_of_lengths_that_cover_the_range_and_differ_by_draw() -> None:
    runs = episodes(256, 0, 0)
    assert len(runs) == 3 * 256
    assert len(set(runs)) == len(runs)
    lengths = [run.steps for run in runs]
    assert 10 <= min(lengths) < 30
    assert 980 < max(lengths) <= 1_000
    assert episodes(256, 0, 0) == runs
    assert episodes(256, 1, 0) != runs != episodes(256, 0, 1)


def test_a_round_takes_as_long_as_its_longest_run_and_a_barrier() -> None:
    runs = [Episode(0, steps) for steps in (10, 40, 30, 20, 7, 7)]
    assert in_rounds_s(runs, 2, 0.5, 0.25) == 0.5 * (40 + 30 + 7) + 3 * 0.25
    assert in_rounds_s(runs, 1, 1.0, 0.0) == sum(run.steps for run in runs)


def test_tasks_gain_on_rounds_in_simulation_and_one_point_is_fitted() -> None:
    outcomes = [table4.run(request("sim", cpus="1,16")) for _ in range(2)]
    assert outcomes[0].rows == outcomes[1].rows
    outcome = outcomes[0]
    assert all(each.ok for each in outcome.checks), outcome.checks
    assert rate(outcome, table4.TASKS, 16) > 1.2 * rate(outcome, table4.MODELLED, 16)
    fitted = [row for row in outcome.rows if row["fitted"]]
    assert [(row["system"], row["cpus"]) for row in fitted] == [(table4.MODELLED, 1)]
    assert fitted[0]["timesteps_per_s"] == pytest.approx(table4.PUBLISHED["MPI", 1])


def test_tasks_on_several_nodes_gain_on_rounds_spread_or_not() -> None:
    outcome = table4.run(request("sim", cpus="256"))
    assert all(each.ok for each in outcome.checks), outcome.checks
    rounds = rate(outcome, table4.MODELLED, 256)
    for system in (table4.TASKS, table4.SPREAD):
        assert rate(outcome, system, 256) > 1.1 * rounds, system


def test_what_costs_tasks_their_gain_fails_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(runs: Any, step_s: float, strategy: str) -> list[float]:
        for run in runs:
            ray.get(simulations._model.remote(step_s, run.steps))
        return [0.0] * len(runs)

    monkeypatch.setattr(table4, "as_they_come", one_by_one)
    outcome = table4.run(request("sim", cpus="16"))
    assert [each.ok for each in outcome.checks] == [True, False]


def test_tasks_and_mpi_simulate_the_same_pendulums(pendulum: None) -> None:
    require("mpi", not mpi.missing(), mpi.missing())
    outcome = table4.run(request("local", cpus_on_host="2"))
    found = {(row["system"], row["cpus"]) for row in outcome.rows}
    assert found == {(system, cpus) for system in (table4.TASKS, table4.MPI) for cpus in (1, 2)}
    same = [each for each in outcome.checks if "the same pendulums" in each.name]
    assert [each.ok for each in same] == [True], outcome.checks
    assert outcome.metrics["tasks_as_they_come_to_mpi_2_cpus"] > 0.0


def test_other_scores_than_those_of_the_ranks_fail_a_check(
    monkeypatch: pytest.MonkeyPatch, pendulum: None
) -> None:
    require("mpi", not mpi.missing(), mpi.missing())
    right = table4.as_they_come

    def wrong(*given: Any) -> list[float]:
        return [score + 1e-9 for score in right(*given)]

    monkeypatch.setattr(table4, "as_they_come", wrong)
    outcome = table4.run(request("local", cpus_on_host="1"))
    assert [each.ok for each in outcome.checks] == [False], outcome.checks


def test_without_mpi_its_rows_are_missing_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, pendulum: None
) -> None:
    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not measured: no mpi4py")
    outcome = table4.run(request("local", cpus_on_host="1"))
    assert {row["system"] for row in outcome.rows} == {table4.TASKS}
    assert "MPI is not measured: no mpi4py." in outcome.findings
    assert not any("MPI" in each.name or "ranks" in each.name for each in outcome.checks)


def test_without_gymnasium_it_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(table4, "missing", lambda: "simulations need gymnasium")
    with pytest.raises(PeerError, match="need gymnasium"):
        table4.run(request("local"))
    (job,) = runner.plan(["table4"], ["local"])
    done = runner.run_one(job, tmp_path, None, dataclasses.replace(request("local")).progress)
    assert not done.ok
    assert done.error == "PeerError: simulations need gymnasium"
    assert not done.trace
    # On sim there is no pendulum that it would be needed for.
    assert table4.run(request("sim", cpus="1")).rows
