"""Processes that start use their host's cores: of many at once each waits for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.conftest import changed

START_S = 0.02
CORES = 2
"""Of the free profile's hosts."""
ACTORS = 8


@ray.remote(num_cpus=0)
class Idle:
    def there(self) -> bool:
        return True


def seconds_to_start(profile: str, actors: int) -> float:
    """Return how long it takes until so many actors answer, each in a new worker."""
    ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=profile)
    try:
        began_s = ray.now()
        assert all(
            ray.get([each.there.remote() for each in [Idle.remote() for _ in range(actors)]])
        )
        return ray.now() - began_s
    finally:
        ray.shutdown()


@pytest.mark.parametrize("run_queues", [False, True])
def test_workers_that_start_at_once_share_the_cores(
    free: str, tmp_path: Path, run_queues: bool
) -> None:
    profile = changed(free, tmp_path, start_worker_s=START_S, run_queues=run_queues)
    few, many = (seconds_to_start(profile, number) for number in (CORES, ACTORS))
    assert START_S <= few < 1.5 * START_S
    # The node starts some more, for the CPUs of its own.
    assert START_S * ACTORS / CORES <= many < 1.5 * START_S * ACTORS / CORES


def test_a_node_that_dies_takes_the_workers_that_start_with_it(free: str, tmp_path: Path) -> None:
    profile = changed(free, tmp_path, start_worker_s=10 * START_S, run_queues=True)
    session: Any = ray.init(
        backend="sim", nodes=2, nodes_per_host=2, cpus_per_node=1, profile=profile
    )
    session.cluster.zygotes.end_node(0)  # those that a node starts of its own accord
    actors = [Idle.options(resources={"node:1": 0.01}).remote() for _ in range(ACTORS)]
    ray.sleep(START_S)
    session.cluster.kill_node(1)
    began_s = ray.now()
    ray.compute(START_S)
    assert ray.now() - began_s == pytest.approx(START_S), "it shares its core with nobody"
    assert actors
