"""Figures whose predictions of this machine are near the policy's threshold."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import raytwin as ray
from raytwin.runtime.api import lifecycle
from raytwin.scenarios.core.scenario import (
    Compare,
    FigureSpec,
    Outcome,
    Request,
    Scenario,
    Silent,
)
from raytwin.scenarios.measure.runner import Job, carry_out


@ray.remote
def nap(seconds: float) -> None:
    ray.sleep(seconds)


def bursts(count: int, thresholds: list[float]) -> Scenario:
    """Return a scenario of bursts; its runs add the thresholds of their clusters."""

    def run(request: Request) -> Outcome:
        session = ray.init(
            backend="sim", nodes=4, cpus_per_node=2, profile=str(request.profile or "paper")
        )
        thresholds.append(session.cluster.config.spill_wait_s)  # type: ignore[attr-defined]
        began_s = ray.now()
        for _ in range(5):
            ray.get([nap.remote(0.005) for _ in range(count)])
        return Outcome([{"burst": count, "elapsed_s": ray.now() - began_s}])

    compare = Compare(on=("burst",), column="elapsed_s")
    figure = FigureSpec("Bursts", "burst", "elapsed_s", "tasks", "time", compare=compare)
    return Scenario("bursts", "Bursts", "Figure S9", ("sim",), run, "Bursts.", figures=(figure,))


def findings(count: int, profile: Path | None) -> tuple[list[str], list[float]]:
    """Return what is found, and the thresholds with which it ran."""
    thresholds: list[float] = []
    job = Job(bursts(count, thresholds), "sim", "quick", 0, None, {})
    return carry_out(job, profile, Silent()).record.findings, thresholds


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    paper = files("raytwin.simulator").joinpath("profiles", "paper.json").read_bytes()
    path.write_bytes(paper.replace(b'"paper"', b'"this machine"'))
    return path


def test_a_figure_near_the_threshold_has_both_sides(profile: Path) -> None:
    (said,), thresholds = findings(12, profile)
    assert thresholds == pytest.approx([0.02, 0.016, 0.024])
    assert said.startswith("Near a threshold in 1 of 1 simulated clusters of this machine: up to ")
    assert "; with 16 ms and 24 ms elapsed_s (burst 12) is " in said
    lower, _, higher, _, _, value = said.rstrip(".").split()[-6:]
    assert len({lower, higher, value}) == 3
    assert not lifecycle.OVERRIDES


@pytest.mark.parametrize(
    "count, of_machine", [(4, True), (12, False)], ids=["far", "of another machine"]
)
def test_what_is_far_from_it_or_no_prediction_of_this_machine_runs_once(
    count: int, of_machine: bool, profile: Path
) -> None:
    assert findings(count, profile if of_machine else None) == ([], [0.02])
