"""Figure 13: all systems compute the same, the loss falls in both worlds, checks can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.scenarios.applications import sgd
from raytwin.scenarios.applications.sgd import (
    ALLREDUCE,
    CLASSES,
    PARAMETER_SERVER,
    RATE,
    STRATEGIES,
    Network,
    Shape,
    Trainer,
)
from raytwin.scenarios.core.scenario import Outcome, Request, UsageError
from raytwin.scenarios.figures import fig13
from raytwin.scenarios.peers import mpi, times_alone
from tests.requirements import require

SMALL = {
    "layers_on_host": 2, "width": 32, "batch": 16, "steps_on_host": 12, "repeats": 1,
}  # fmt: skip


def settings(**changed: Any) -> dict[str, Any]:
    return {**fig13.SCENARIO.settings("quick", {}), **changed}


def in_one_process(shape: Shape, replicas: int, steps: int) -> list[float]:
    """Return the losses of the same training without any system: one loop."""
    networks = [Network(shape, number) for number in range(replicas)]
    weights = [shape.weights(layer) for layer in range(shape.layers)]
    losses = []
    for _ in range(steps):
        for network in networks:
            for layer, each in enumerate(weights):
                network.forward(layer, each)
        losses.append(float(np.mean([network.loss for network in networks])))
        for layer in reversed(range(shape.layers)):
            total = sum(network.backward(layer) for network in networks)
            weights[layer] = weights[layer] - RATE / replicas * total
    return losses


def test_gradients_are_those_of_the_loss() -> None:
    shape = Shape(layers=3, width=12, batch=8)
    weights = [shape.weights(layer).astype(np.float64) for layer in range(3)]

    def loss(layer: int, row: int, column: int, more: float) -> float:
        moved = [each.copy() for each in weights]
        moved[layer][row, column] += more
        network = Network(shape, 0)  # it draws the same batch
        for number, each in enumerate(moved):
            network.forward(number, each)
        return network.loss

    network = Network(shape, 0)
    for layer, each in enumerate(weights):
        network.forward(layer, each)
    for layer in reversed(range(3)):
        gradient = network.backward(layer)
        for row, column in ((0, 0), (5, 3), (12, CLASSES - 1)):
            slope = (loss(layer, row, column, 1e-4) - loss(layer, row, column, -1e-4)) / 2e-4
            assert gradient[row, column] == pytest.approx(slope, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("backend", ["sim", "local"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_training_is_what_it_would_be_in_one_loop(
    backend: str, strategy: str, replicas: int
) -> None:
    shape = Shape(layers=3, width=24, batch=16)
    ray.init(backend=backend, nodes=replicas, cpus_per_node=1)
    try:
        trainer = Trainer(ray, strategy, replicas, shape)
        losses = trainer.train(3) + trainer.train(9)
    finally:
        ray.shutdown()
    assert losses == pytest.approx(in_one_process(shape, replicas, 12), rel=1e-3)
    assert losses[-1] < 0.7 * losses[0]


def test_a_strategy_that_there_is_not_is_refused() -> None:
    ray.init(backend="sim", num_cpus=1)
    try:
        with pytest.raises(ValueError, match="give one of parameter-server, allreduce"):
            Trainer(ray, "gossip", 1, Shape())
    finally:
        ray.shutdown()


def test_the_paper_s_cluster_in_virtual_time() -> None:
    small = settings(gpus=(4, 16), layers=4, steps=2)
    outcome = fig13.run(Request("sim", settings=small))
    # With few layers, the last gradient to be sent is a large one: that costs, and is not judged.
    judged = [check for check in outcome.checks if "within" not in check.name]
    assert all(check.ok for check in judged), outcome.checks
    for strategy in STRATEGIES:
        name = f"images_per_s_{strategy.replace('-', '_')}_on"
        four, sixteen = (outcome.metrics[f"{name}_{gpus}"] for gpus in (4, 16))
        assert 1.5 * four < sixteen < 4 * four
        assert four < 4 * 64 / 0.4, "no GPU is faster than it is assumed to be"
    again = fig13.run(Request("sim", settings=small))
    assert again.rows == outcome.rows


def test_a_step_of_this_machine_predicts_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(*what: Any) -> list[float]:
        asked.append(what)
        return [0.050, 0.001, 0.002]

    monkeypatch.setattr(times_alone, "measured", measured)
    small = settings(gpus=(4,), layers=2, steps=2, layers_on_host=2, steps_on_host=3, batch=16)
    outcome = fig13.run(Request("sim", settings=small, profile=Path("paper")))
    assert asked == [("sgd_s", 2, 512, 16)]
    found = {
        (row["strategy"], row["replicas"]): row["images_per_s"]
        for row in outcome.rows
        if row["series"] == fig13.HOST
    }
    assert set(found) == {(strategy, each) for strategy in STRATEGIES for each in (1, 2)}
    for (_, replicas), rate in found.items():
        # Each step changes the weights of two layers, and they take turns on one actor or core.
        assert 0.5 * replicas * 16 / 0.050 < rate < replicas * 16 / (0.050 + 0.002)
    # What is said of the paper's cluster stays as it is.
    alone = fig13.run(Request("sim", settings=small))
    assert alone.metrics == outcome.metrics and alone.checks == outcome.checks


def test_gradients_travel_while_a_replica_computes() -> None:
    def images_per_s(layers: int) -> float:
        outcome = fig13.run(Request("sim", settings=settings(gpus=(16,), layers=layers, steps=2)))
        return outcome.metrics["images_per_s_parameter_server_on_16"]

    # The same bytes and seconds, in one layer and in several.
    assert images_per_s(8) > 1.1 * images_per_s(1)


def test_a_number_of_gpus_that_fills_no_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="a multiple, not 12"):
        fig13.run(Request("sim", settings=settings(gpus=(12,))))


def test_the_loss_falls_on_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not measured: no mpi4py")
    outcome = fig13.run(Request("local", nodes=(2,), settings=settings(**SMALL)))
    assert all(check.ok for check in outcome.checks), outcome.checks
    assert {row["system"] for row in outcome.rows} == {"actors"}
    assert "MPI is not measured: no mpi4py." in outcome.findings
    for strategy in STRATEGIES:
        losses = [row["loss"] for row in outcome.rows if row["strategy"] == strategy]
        assert len([loss for loss in losses if loss is not None]) == 1 + SMALL["steps_on_host"]
    for row in outcome.rows:
        if row["images_per_s"] is not None:
            assert row["loss_last"] < 0.7 * row["loss_first"]


@pytest.mark.slow
def test_against_mpi_in_one_run() -> None:
    require("mpi", not mpi.missing(), mpi.missing())
    outcome = fig13.run(Request("local", nodes=(1, 3), settings=settings(**SMALL)))
    assert all(check.ok for check in outcome.checks), outcome.checks
    peers = [row for row in outcome.rows if row["system"] == "mpi" and row["step"] is None]
    assert [row["replicas"] for row in peers] == [1, 3]
    expected = in_one_process(Shape(2, 32, 16), 3, 13)
    losses = [row["loss"] for row in outcome.rows if row["system"] == "mpi" and row["loss"]]
    assert losses == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("series", "changed", "failing"),
    [
        (fig13.HOST, {}, []),
        (fig13.HOST, {"loss_first": 2.0, "loss_last": 2.1}, ["the loss falls", "all strategies"]),
        (fig13.HOST, {"loss_last": 0.6}, ["all strategies"]),
        (fig13.PAPER, {"images_per_s": 80.0}, ["8 GPUs: the parameter server is within"]),
    ],
)
def test_checks_fail(series: str, changed: dict[str, Any], failing: list[str]) -> None:
    plain = {"series": series, "system": "actors", "replicas": 8, "images_per_s": 100.0}
    plain |= {"loss_first": 2.0, "loss_last": 0.5, "step": None, "loss": None}
    outcome = Outcome(
        rows=[
            {**plain, "strategy": PARAMETER_SERVER, **changed},
            {**plain, "strategy": ALLREDUCE},
        ]
    )
    fig13._judge(outcome)
    failed = [check.name for check in outcome.checks if not check.ok]
    assert len(failed) == len(failing), failed
    assert all(name.startswith(start) for name, start in zip(failed, failing, strict=True))


def test_a_cluster_that_does_not_scale_fails_its_check() -> None:
    plain = {"series": fig13.PAPER, "system": "actors", "step": None, "loss": None}
    plain |= {"loss_first": 2.0, "loss_last": 0.5}
    rows = [
        {**plain, "strategy": strategy, "replicas": replicas, "images_per_s": 100.0}
        for strategy in STRATEGIES
        for replicas in (4, 64)
    ]
    outcome = Outcome(rows=rows)
    fig13._judge(outcome)
    assert sum(not check.ok for check in outcome.checks) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_script_takes_a_strategy(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.init(backend="sim", nodes=2, cpus_per_node=2)
    try:
        losses = sgd.main(ray, strategy)
    finally:
        ray.shutdown()
    assert losses[-1] < losses[0] / 3
    assert strategy in capsys.readouterr().out
