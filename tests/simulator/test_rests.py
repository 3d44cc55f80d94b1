"""A process that has rested takes longer for its next turn, most if its core has idled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.simulator.machine.costs import REST_MAX_S, CostModel, coldness, load_profile
from tests.simulator.conftest import changed

BODY_S = 0.005
BUSY_REST = 0.1
COLD_S = 0.01


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
    ray.init(backend="sim", nodes=1, cpus_per_node=1, cores_per_host=1, profile=profile)

    @ray.remote
    def body(pause: Any) -> None:
        pause(BODY_S)

    def took_s(pause: Any) -> float:
        ray.get(body.remote(pause))
        began_s = ray.now()
        ray.get(body.remote(pause))
        return ray.now() - began_s - BODY_S

    idle, busy = took_s(ray.sleep), took_s(ray.compute)
    assert idle == pytest.approx(COLD_S * coldness(BODY_S), rel=0.1)
    # A host with one queue does not tell which core was idle.
    rested_s = BUSY_REST * BODY_S if run_queues else BODY_S
    assert busy == pytest.approx(COLD_S * coldness(rested_s), rel=0.1)
