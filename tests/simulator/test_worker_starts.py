"""Processes that start use their cores, timers tick, and short computations pass together."""

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


def test_a_node_that_starts_needs_a_core_first(free: str, tmp_path: Path) -> None:
    profile = changed(free, tmp_path, start_worker_s=START_S)
    session: Any = ray.init(
        backend="sim", nodes=2, nodes_per_host=2, cpus_per_node=1, profile=profile
    )
    ray.sleep(10 * START_S)
    session.cluster.restart_node(1)
    began_s = ray.now()
    while "node:1" not in session.cluster.processes:
        ray.sleep(START_S / 10)
    assert START_S <= ray.now() - began_s <= 1.2 * START_S


def test_a_node_that_is_killed_while_it_starts_does_not_come_up(free: str, tmp_path: Path) -> None:
    profile = changed(free, tmp_path, start_worker_s=START_S)
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=1, profile=profile)
    session.cluster.restart_node(1)
    ray.sleep(START_S / 2)
    session.cluster.kill_node(1)
    ray.sleep(10 * START_S)
    assert "node:1" not in session.cluster.processes


@pytest.mark.parametrize(("tick_s", "after_s"), [(0.0, 0.0023), (0.001, 0.003)])
def test_a_timer_wakes_its_process_at_the_next_tick(
    free: str, tmp_path: Path, tick_s: float, after_s: float
) -> None:
    session: Any = ray.init(backend="sim", nodes=1, profile=changed(free, tmp_path, timer_s=tick_s))
    process = session.cluster.processes["node:0"]
    fired_s: list[float] = []
    began_s = ray.now()
    process.contexts["node:0"].after(0.0023, lambda: fired_s.append(ray.now() - began_s))
    ray.sleep(0.1)
    assert fired_s == pytest.approx([after_s])


def test_short_computations_of_a_range_pass_together(free: str) -> None:
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=free)
    compute = ray.remote(ray.compute)
    ray.get(compute.remote(1e-6))
    env = session.cluster.env

    def events(tasks: int) -> int:
        """Return how many events a range of tasks of a microsecond takes."""
        before = next(env._eid)
        ray.get(compute.map([1e-6] * tasks))
        return next(env._eid) - before

    began_s = ray.now()
    few, many = events(100), events(2_000)
    assert many - few < 200
    assert ray.now() - began_s == pytest.approx(2_100e-6)
