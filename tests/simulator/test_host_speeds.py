"""Hosts of different speeds: what they compute takes longer, and what they send does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.conftest import changed
from tests.simulator.virtual_cluster import elapsed_s, start


def computed_s(node: int) -> float:
    """Return how long a second's computation takes on a node whose worker has started."""
    work = ray.remote(resources={f"node:{node}": 0.01})(ray.compute)
    ray.get(work.remote(0.0))
    return elapsed_s(lambda: ray.get(work.remote(1.0)))


@pytest.mark.parametrize("run_queues", [False, True])
def test_a_slow_host_takes_longer(free: str, tmp_path: Path, run_queues: bool) -> None:
    profile = changed(free, tmp_path, run_queues=run_queues)
    start(nodes=3, profile=profile, host_speeds=[1.0, 0.5, 2])
    assert [computed_s(node) for node in range(3)] == pytest.approx([1.0, 2.0, 0.5], abs=0.01)


def test_the_nodes_of_a_host_share_its_speed(free: str) -> None:
    start(nodes=3, profile=free, nodes_per_host=2, host_speeds=[0.5, 0.25])
    assert [computed_s(node) for node in range(3)] == pytest.approx([2.0, 2.0, 4.0], abs=0.01)


def test_a_fault_slows_a_slow_host_down_until_it_is_healed(free: str) -> None:
    cluster = start(nodes=2, profile=free, host_speeds=[1.0, 0.5]).cluster
    cluster.slow_cores(1, 3.0)
    assert computed_s(1) == pytest.approx(6.0, abs=0.01)
    cluster.heal_node(1)
    assert computed_s(1) == pytest.approx(2.0, abs=0.01)
    cluster.restart_node(1)
    ray.sleep(1.0)
    assert computed_s(1) == pytest.approx(2.0, abs=0.01), "it is the same host"


def test_a_node_that_joins_has_the_profiles_speed(free: str) -> None:
    cluster = start(nodes=1, profile=free, host_speeds=[0.5]).cluster
    added = cluster.add_node({"CPU": 1})
    ray.sleep(1.0)
    assert [computed_s(0), computed_s(added)] == pytest.approx([2.0, 1.0], abs=0.01)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([1.0], ValueError, "host_speeds has 1 numbers for 2 hosts"),
        ([1.0, 0.0], ValueError, "host_speeds[1] is above 0, not 0"),
        ([-1.0, 1.0], ValueError, "host_speeds[0] is 0 or more, not -1.0"),
        ([1.0, "fast"], TypeError, "host_speeds[1] is a number, not 'fast'"),
        (0.5, TypeError, "host_speeds is a list of numbers, one for each host, not 0.5"),
        ("11", TypeError, "host_speeds is a list of numbers, one for each host, not '11'"),
    ],
    ids=str,
)
def test_bad_speeds_are_one_clear_error(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        start(nodes=2, host_speeds=given)
    assert str(raised.value) == text
    assert not ray.is_initialized()
