"""Figures 14a and 14b: what learns does learn, and every step is counted once."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.scenarios.applications import es, ppo
from raytwin.scenarios.core.scenario import Request, UsageError
from raytwin.scenarios.figures import fig14a, fig14b
from raytwin.scenarios.peers import mpi, times_alone
from tests.requirements import require


@pytest.fixture
def gymnasium() -> None:
    try:
        import gymnasium  # noqa: F401
    except ImportError:
        require("rl", False, "gymnasium is not installed")


def settings_of(module: Any, **given: Any) -> dict[str, Any]:
    return {**module.SCENARIO.settings("quick", {}), **given}


def checks(outcome: Any) -> dict[str, bool]:
    return {check.name: check.ok for check in outcome.checks}


def test_a_tree_of_aggregators_adds_up_every_pair_once() -> None:
    """Whatever the shares: fewer pairs than leaves, and a tree of three levels."""
    problem = fig14a.Timed(1e-5, 1e-6, fig14a.STEPS_MIN, fig14a.STEPS_MAX, 1_000)
    ray.init(backend="sim", nodes=2, cpus_per_node=4, seed=1)
    try:
        children = es.plant(ray, problem, leaves=5, fan_out=2)
        assert len(children) == 2
        for count in (1, 3, 5, 37):
            seeds = range(10, 10 + count)
            total, _ = es.run_population(ray, problem, children, ray.Blob(1_000), seeds)
            assert total.pairs == count
            assert total.steps == sum(problem_steps(seed) for seed in seeds)
    finally:
        ray.shutdown()


def problem_steps(seed: int) -> int:
    return random.Random(seed).randint(fig14a.STEPS_MIN, fig14a.STEPS_MAX)


def test_a_driver_alone_gains_nothing_where_a_tree_does() -> None:
    """The prediction that the figure is about, at sizes that take seconds."""
    outcome = fig14a.run(
        Request("sim", nodes=(1, 8), settings=settings_of(fig14a, tasks=700, add_us=3_000.0))
    )
    assert checks(outcome)["every task was added up once"]
    seconds = {(row["aggregation"], row["cores"]): row["iteration_s"] for row in outcome.rows}
    assert seconds[fig14a.ALONE, 64] < 1.5 * seconds[fig14a.ALONE, 512]
    assert seconds[fig14a.TREE, 64] > 3 * seconds[fig14a.TREE, 512]
    assert seconds[fig14a.ALONE, 512] > 2 * seconds[fig14a.TREE, 512]


def test_iterations_of_this_machine_are_predicted_from_what_their_parts_take(
    gymnasium: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"pendulum_s": [0.010, 1e-5], "balance_s": [0.004, 0.050, 0.02, 12_000]}
    monkeypatch.setattr(times_alone, "measured", lambda function, *arguments: taken[function])
    profile = Path("paper")  # any other will do; this one has more cores than are used here
    one = Request("sim", settings=settings_of(fig14a, cores=(64,), tasks=10), profile=profile)
    rows = [row for row in fig14a.run(one).rows if row["series"] == fig14a.HOST]
    for aggregation in (fig14a.TREE, fig14a.ALONE):
        found = [row["iteration_s"] for row in rows if row["aggregation"] == aggregation]
        assert len(found) == fig14a.PREDICTED
        # 20 pairs on two nodes of one CPU.
        assert 0.1 < np.median(found) < 0.15
    other = settings_of(fig14b, cpus=(8,), steps=2_000)
    outcome = fig14b.run(Request("sim", settings=other, profile=profile))
    found = [row["iteration_s"] for row in outcome.rows if row["series"] == fig14b.HOST]
    # 8 rollouts by two simulators, and then training; those that were begun before count, too.
    assert 0.05 < np.median(found) < 4 * 0.004 + 0.050 + 0.02
    assert {row["system"] for row in outcome.rows if row["series"] == fig14b.HOST} == {
        fig14b.ACTORS
    }


@pytest.mark.real
def test_evolution_strategies_learn_the_pendulum(gymnasium: None) -> None:
    """The score rises by far more than it varies, and rises alike without the tree."""
    outcome = fig14a.run(Request("local", settings=settings_of(fig14a)))
    scores = [row["score"] for row in outcome.rows if row["aggregation"] == fig14a.TREE]
    assert len(scores) == 30
    assert np.mean(scores[-5:]) > np.mean(scores[:5]) + 150
    assert all(checks(outcome).values()) and len(outcome.checks) == 2
    first = [row["score"] for row in outcome.rows if row["iteration"] == 0]
    assert len(first) == 2 and first[0] == pytest.approx(first[1])


@pytest.mark.parametrize("module", [fig14a, fig14b])
def test_without_gymnasium_the_scenario_says_so_and_makes_nothing_up(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    outcome = module.run(Request("local", settings=settings_of(module)))
    assert outcome.findings == [module.NO_GYMNASIUM]
    assert "pip install 'raytwin[rl]'" in module.NO_GYMNASIUM
    assert not outcome.rows and not outcome.metrics and not outcome.checks


def test_another_seed_learns_from_other_noise(gymnasium: None) -> None:
    ray.init(backend="sim", nodes=1, cpus_per_node=2, seed=0)
    try:
        scores = [
            [each.score for each in islice(es.learn(ray, 2, None, seed), 2)] for seed in (0, 0, 1)
        ]
    finally:
        ray.shutdown()
    assert scores[0] == scores[1] != scores[2]


def loss(weights: Any, batch: ppo.Rollout) -> float:
    """What `Network.gradient` is the gradient of, written as the paper on PPO does."""
    logs, values, _ = ppo.Network.forward(weights, batch.observations)
    ratio = np.exp(logs[np.arange(len(values)), batch.actions] - batch.log_probabilities)
    gain = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    clipped = np.minimum(ratio * gain, np.clip(ratio, 1 - ppo.CLIP, 1 + ppo.CLIP) * gain)
    entropy = -(np.exp(logs) * logs).sum(axis=1)
    off = 0.005 * (values - batch.returns) ** 2
    return float((-clipped + off - ppo.CURIOSITY * entropy).mean())


def test_the_gradient_is_the_slope_of_the_clipped_loss() -> None:
    rng = np.random.default_rng(5)
    count = 64
    weights = ppo.Network(3).weights + 0.3 * rng.normal(size=ppo.Network(3).weights.shape)
    batch = ppo.Rollout(
        rng.normal(size=(count, ppo.INPUTS)),
        rng.integers(ppo.ACTIONS, size=count),
        np.log(rng.uniform(0.2, 0.8, size=count)),
        rng.normal(size=count),
        rng.normal(size=count),
        [],
    )
    found = ppo.Network.gradient(weights, batch)
    for index in rng.integers(len(weights), size=40):
        step = np.zeros_like(weights)
        step[index] = 1e-6
        slope = (loss(weights + step, batch) - loss(weights - step, batch)) / 2e-6
        assert found[index] == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.real
def test_actors_and_mpi_learn_to_balance_the_pole(gymnasium: None) -> None:
    require("mpi", not mpi.missing(), mpi.missing())
    outcome = fig14b.run(Request("local", settings=settings_of(fig14b, repeats=1)))
    assert all(checks(outcome).values()), outcome.checks
    for system in (fig14b.ACTORS, fig14b.MPI):
        scores = [row["score"] for row in outcome.rows if row["system"] == system]
        assert len(scores) == 10
        assert min(scores[-2:]) > 2 * max(scores[:2])
    assert all(row["steps"] == 2_000 for row in outcome.rows if row["system"] == fig14b.MPI)
    assert any("times as many steps a second as MPI" in each for each in outcome.findings)


def test_without_mpi_the_actors_learn_alone_and_that_is_said(
    gymnasium: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not measured: no mpi4py")
    settings = settings_of(fig14b, repeats=1, iterations=4, steps_on_host=500)
    outcome = fig14b.run(Request("local", settings=settings))
    assert outcome.findings == ["MPI is not measured: no mpi4py"]
    assert {row["system"] for row in outcome.rows} == {fig14b.ACTORS}


def test_actors_do_not_wait_for_the_slowest_rollout() -> None:
    """Their iteration is shorter than that of processes that have to have trained first."""
    settings = settings_of(fig14b, cpus=(8, 32), steps=20_000)
    outcome = fig14b.run(Request("sim", settings=settings))
    assert all(checks(outcome).values()), outcome.checks
    played = [r for r in outcome.rows if r["system"] == fig14b.ACTORS and r["steps"] is not None]
    assert len(played) == 4
    # Never faster than all CPUs could play the steps.
    for row in played:
        assert row["iteration_s"] > 0.95 * row["steps"] * 500e-6 / row["cpus"]


def test_whole_hosts_are_paid_for() -> None:
    settings = {"gpu_host_usd": 10.0, "cpu_host_usd": 1.0}
    assert fig14b.usd(8, 1, 3600, settings) == 10
    assert fig14b.usd(64, 8, 3600, settings) == 10
    assert fig14b.usd(65, 8, 3600, settings) == 11
    assert fig14b.usd(512, 8, 1800, settings) == (10 + 7) / 2
    assert fig14b.usd(512, 64, 3600, settings) == 80


def test_fig14b_has_no_nodes_to_choose() -> None:
    with pytest.raises(UsageError, match="give --set cpus="):
        fig14b.run(Request("sim", nodes=(2,), settings=settings_of(fig14b)))
