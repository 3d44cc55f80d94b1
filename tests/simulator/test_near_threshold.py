"""The count of decisions near the threshold, in simulated clusters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import raytwin as ray
from raytwin.simulator.cluster import simulated_cluster
from raytwin.simulator.cluster.cluster_usage import UsageMeter
from tests.simulator.virtual_cluster import start


class _Uncounted(simulated_cluster.ThresholdCounter):
    def __call__(self, view: Any, count: int) -> None: ...


@ray.remote
def nap(seconds: float) -> None:
    ray.sleep(seconds)


def bursts(count: int, seconds: float) -> tuple[float, dict[str, Any], Any]:
    """Run bursts of equal tasks; return when they end, the turns and messages, and the tally."""
    with start(nodes=4, cpus_per_node=2) as session:
        meter = UsageMeter(session.cluster)
        for _ in range(5):
            ray.get([nap.remote(seconds) for _ in range(count)])
        counts = {role: asdict(each) for role, each in session.cluster.counts.items()}
        return ray.now(), counts, meter.usage().threshold


def test_counting_moves_neither_the_time_nor_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, counts, tally = bursts(12, 0.005)
    monkeypatch.setattr(simulated_cluster, "ThresholdCounter", _Uncounted)
    assert bursts(12, 0.005)[:2] == (now_s, counts)
    assert tally.near > 0


def test_bursts_are_near_the_threshold_only_if_they_fill_a_queue_to_it() -> None:
    # Two CPUs do 8 tasks of 5 ms in the threshold's 20 ms.
    assert bursts(12, 0.005)[2].is_near
    assert bursts(4, 0.005)[2].near == 0
