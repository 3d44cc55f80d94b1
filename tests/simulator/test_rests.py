"""Code that has rested takes longer the next time, most if its core has idled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.simulator.machine.costs import REST_MAX_S, CostModel, coldness, load_profile
from tests.simulator.conftest import changed

BODY_S = 0.005
BUSY_REST = 0.1
COLD_S = 1e-4


def test_a_core_that_is_busy_keeps_the_processes_that_rest_warmer(
    free: str, tmp_path: Path
) -> None:
    profile = load_profile(changed(free, tmp_path, busy_rest=BUSY_REST))
    costs = CostModel(profile.driver, profile)
    assert coldness(BODY_S) == costs.coldness(BODY_S, BODY_S) == (BODY_S / REST_MAX_S) ** 0.5
    assert costs.coldness(BODY_S, 0.0) == pytest.approx(coldness(BUSY_REST * BODY_S))
    assert costs.coldness(BODY_S, 0.0) < costs.coldness(BODY_S, 0.001) < coldness(BODY_S)
    assert coldness(2 * REST_MAX_S) == 1.0
    assert CostModel(profile.driver).coldness(BODY_S, 0.0) == coldness(BODY_S)


@pytest.mark.parametrize("run_queues", [False, True])
def test_a_driver_is_as_cold_as_its_core_was_idle(
    free: str, tmp_path: Path, run_queues: bool
) -> None:
    driver = {"cold_s": COLD_S}
    profile = changed(free, tmp_path, run_queues=run_queues, busy_rest=BUSY_REST, driver=driver)
    session: Any = ray.init(
        backend="sim", nodes=1, cpus_per_node=1, cores_per_host=1, profile=profile
    )
    process = session.world.process

    @ray.remote
    def body(pause: Any) -> None:
        pause(BODY_S)

    def used_s(pause: Any) -> float:
        for _ in range(5):  # every code path has run, and rested since
            before_s = process.busy_s + process.debt_s
            ray.get(body.remote(pause))
        return float(process.busy_s + process.debt_s - before_s)

    idle_s, busy_s = used_s(ray.sleep), used_s(ray.compute)
    # A host with one queue does not tell which core was idle.
    rested_s = BUSY_REST * BODY_S if run_queues else BODY_S
    assert busy_s / idle_s == pytest.approx(coldness(rested_s) / coldness(BODY_S), rel=0.1)


def test_a_code_path_is_as_cold_as_it_has_rested_itself(free: str, tmp_path: Path) -> None:
    profile = changed(free, tmp_path, driver={"cold_s": COLD_S})
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=profile)
    process = session.world.process
    process._idled_s = BODY_S

    def costs_s(*paths: str) -> float:
        return float(process.end_rests(paths))

    assert costs_s("get", "put") == pytest.approx(2 * COLD_S)  # neither has run yet
    assert costs_s("get", "put") == 0.0
    process.cluster.env.run(until=process.cluster.env.now + BODY_S)
    once_s = COLD_S * coldness(BODY_S)
    assert costs_s("get") == pytest.approx(once_s)
    assert costs_s("get", "put") == pytest.approx(once_s)
