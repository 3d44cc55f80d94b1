"""The simulator's own cost grows no faster than the simulated cluster."""

from __future__ import annotations

import time

import pytest

import raytwin as ray
from tests.simulator.programs import increment
from tests.simulator.virtual_cluster import start


def seconds_of(tasks: int, nodes: int) -> float:
    """Return the least of three CPU times of running tasks on a fresh cluster."""
    found = []
    for _ in range(3):
        start(nodes=nodes, cpus_per_node=8)
        began_s = time.process_time()
        for _ in range(tasks // 1_000):
            ray.get(increment.map(range(1_000)))
        found.append(time.process_time() - began_s)
        ray.shutdown()
    return min(found)


@pytest.mark.slow
def test_cost_grows_no_faster_than_the_tasks() -> None:
    few, many = seconds_of(20_000, 4), seconds_of(80_000, 4)
    # Four times the tasks; what grows with their square would take sixteen times.
    assert many < 8 * few


@pytest.mark.slow
def test_cost_per_task_does_not_grow_with_the_nodes() -> None:
    few, many = seconds_of(40_000, 4), seconds_of(40_000, 32)
    # Eight times the nodes send heartbeats, for the same tasks.
    assert many < 8 * few


def start_s(nodes: int) -> float:
    found = []
    for _ in range(3):
        began_s = time.process_time()
        start(nodes=nodes, cpus_per_node=64)
        ray.sleep(0.05)
        found.append(time.process_time() - began_s)
        ray.shutdown()
    return min(found)


@pytest.mark.slow
def test_idle_workers_cost_no_more_than_their_number() -> None:
    few, many = start_s(10), start_s(40)
    assert many < 8 * few
