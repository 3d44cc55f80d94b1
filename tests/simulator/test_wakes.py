"""Cores that have halted: what it takes to wake them, and when nothing has to be woken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.scenarios.measure import fit
from raytwin.scenarios.workloads.programs import empty
from tests.simulator.conftest import changed

WAKE_S = 2e-3
WAKE_LATENCY_S = 1e-3
CALLS = 20


def one_at_a_time(profile: str, cores: int) -> tuple[float, float]:
    """Return how long a task takes, and the CPU time of all processes for it, s."""
    session: Any = ray.init(
        backend="sim", nodes=1, cpus_per_node=1, profile=profile, cores_per_host=cores
    )
    try:
        ray.get(empty.remote())
        before, began_s = sum(fit.busy(session.cluster).values()), ray.now()
        for _ in range(CALLS):
            ray.get(empty.remote())
        used_s = sum(fit.busy(session.cluster).values()) - before
        return (ray.now() - began_s) / CALLS, used_s / CALLS
    finally:
        ray.shutdown()


@pytest.fixture
def profiles(free: str, tmp_path: Path) -> tuple[str, str]:
    """Two machines whose cores have run queues: on the second, cores take time to wake."""
    awake = changed(free, tmp_path, run_queues=True)
    (tmp_path / "asleep").mkdir()
    asleep = changed(awake, tmp_path / "asleep", wake_s=WAKE_S, wake_latency_s=WAKE_LATENCY_S)
    return awake, asleep


def test_each_message_to_a_halted_core_wakes_it(profiles: tuple[str, str]) -> None:
    (awake_s, awake_cpu_s), (asleep_s, asleep_cpu_s) = (one_at_a_time(p, 8) for p in profiles)
    # The node, the worker, and the driver, each on a core of its own; the node then hears of the
    # result, too, for which the driver does not wait.
    assert asleep_s - awake_s == pytest.approx(3 * (WAKE_S + WAKE_LATENCY_S), rel=0.1)
    assert asleep_cpu_s - awake_cpu_s == pytest.approx(4 * WAKE_S, rel=0.3)


def test_a_core_that_all_share_stays_awake(profiles: tuple[str, str]) -> None:
    (awake_s, awake_cpu_s), (asleep_s, asleep_cpu_s) = (one_at_a_time(p, 1) for p in profiles)
    # It may have slept before the first call.
    assert asleep_s - awake_s <= (WAKE_S + WAKE_LATENCY_S) / CALLS
    assert asleep_cpu_s - awake_cpu_s <= WAKE_S / CALLS
